"""The folder of snapshots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from frozen_parts import a_snapshot, fill, publish_snapshot, publish_template, snapshot_id
from torpor.errors import Conflict, FreezeFailed, NotFound, SnapshotCorrupt, Unsupported
from torpor.kit.files import sweep
from torpor.model.ids import SnapshotId
from torpor.storage.frozen import MANIFEST, seal
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots, write_manifest


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "home")
    made.make()
    return made


def test_a_published_snapshot_is_read_back_as_it_was_written(layout: Layout) -> None:
    written = publish_snapshot(layout)
    store = Snapshots(layout)
    assert store.get(written.id) == written == store.open(written.id).snapshot
    assert written.id in store
    assert written.size_bytes > 0


def test_a_draft_is_not_to_be_seen_before_it_is_published(layout: Layout) -> None:
    store = Snapshots(layout)
    with store.draft(snapshot_id(1)) as draft:
        fill(draft)
        write_manifest(draft, a_snapshot(), seal(draft))
        assert store.all() == []
        assert snapshot_id(1) not in store
    assert list(layout.snapshots.iterdir()) == []


def test_a_draft_of_a_killed_server_is_litter(layout: Layout) -> None:
    (layout.snapshots / f".draft-{snapshot_id(1)}-00").mkdir()
    assert Snapshots(layout).all() == []
    assert len(sweep(layout.snapshots)) == 1
    assert list(layout.snapshots.iterdir()) == []


def test_an_id_that_is_taken_is_refused_before_and_at_the_publishing(layout: Layout) -> None:
    store = Snapshots(layout)
    with store.draft(snapshot_id(1)) as draft:
        fill(draft)
        write_manifest(draft, a_snapshot(), seal(draft))
        first = publish_snapshot(layout)
        with pytest.raises(Conflict, match="already"):
            store.publish(draft, snapshot_id(1))
    assert store.get(snapshot_id(1)) == first
    with pytest.raises(Conflict, match="already"), store.draft(snapshot_id(1)):
        pass
    assert [entry.name for entry in layout.snapshots.iterdir()] == [snapshot_id(1)]


def test_a_folder_of_snapshots_that_cannot_be_written_is_a_failed_freeze(tmp_path: Path) -> None:
    with pytest.raises(FreezeFailed, match="could not be published"), Snapshots(Layout(tmp_path)).draft(snapshot_id(1)):
        pass


@pytest.mark.parametrize("name", ["snp-0000000000000009", "../snapshots", "", "sbx-0000000000000001", "."])
def test_what_is_no_snapshot_is_not_found(layout: Layout, name: str) -> None:
    publish_snapshot(layout)
    store = Snapshots(layout)
    for verb in (store.get, store.open, store.verify, store.remove):
        with pytest.raises(NotFound, match="there is no snapshot"):
            verb(SnapshotId(name))


def test_a_snapshot_under_another_s_id_or_a_template_among_them_is_refused(layout: Layout) -> None:
    publish_snapshot(layout)
    store = Snapshots(layout)
    store.path(snapshot_id(1)).rename(store.path(snapshot_id(2)))
    with pytest.raises(SnapshotCorrupt, match=f"{snapshot_id(2)} holds the snapshot {snapshot_id(1)}"):
        store.open(snapshot_id(2))
    publish_template(layout)
    (layout.templates / "base").rename(store.path(snapshot_id(3)))
    with pytest.raises(SnapshotCorrupt, match="holds the template 'base'"):
        store.open(snapshot_id(3))


def test_all_are_told_oldest_first_and_one_that_cannot_be_read_hides_none(layout: Layout) -> None:
    written = [publish_snapshot(layout, number) for number in (3, 1, 2)]
    (layout.snapshots / "lost+found").mkdir()
    manifest = Snapshots(layout).path(snapshot_id(2)) / MANIFEST
    manifest.chmod(0o600)
    manifest.write_text("{")
    store = Snapshots(layout)
    with capture_logs() as logs:
        assert store.all() == [written[1], written[0]]
        assert store.all() == [written[1], written[0]]
    assert [(entry["event"], entry["snapshot"]) for entry in logs] == [("a snapshot cannot be read", snapshot_id(2))]
    assert snapshot_id(2) in store.names()


def test_a_list_follows_what_is_published_removed_and_changed(layout: Layout) -> None:
    store = Snapshots(layout)
    first = publish_snapshot(layout, 1)
    assert store.all() == [first]
    second = publish_snapshot(layout, 2)
    assert store.all() == [first, second]
    store.remove(first.id)
    assert store.all() == [second]
    manifest = store.path(second.id) / MANIFEST
    said = manifest.read_text()
    manifest.unlink()
    assert store.all() == []
    manifest.write_text(said)
    assert store.all() == [second]


def test_a_list_reads_each_manifest_once(layout: Layout) -> None:
    store, first = Snapshots(layout), publish_snapshot(layout)
    assert store.all() == [first]
    assert store.all()[0] is store.all()[0]


def test_a_snapshot_of_another_format_can_be_removed_but_not_opened(layout: Layout) -> None:
    publish_snapshot(layout)
    store = Snapshots(layout)
    manifest = store.path(snapshot_id(1)) / MANIFEST
    said = {**json.loads(manifest.read_text()), "format": 99}
    manifest.chmod(0o600)
    manifest.write_text(json.dumps(said))
    with pytest.raises(Unsupported, match=f"the snapshot {snapshot_id(1)} is in format 99"):
        store.open(snapshot_id(1))
    store.remove(snapshot_id(1))
    assert list(layout.snapshots.iterdir()) == []


_PUBLISHING = """
import pathlib, sys
from frozen_parts import publish_snapshot
from torpor.storage.layout import Layout
layout = Layout(pathlib.Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 1000):
    publish_snapshot(layout, number)
    print(number, flush=True)
"""


def test_a_server_killed_while_it_publishes_leaves_whole_snapshots_and_litter_only(layout: Layout) -> None:
    published: list[int] = []
    for kills in range(3):
        argv = [sys.executable, "-c", _PUBLISHING, str(layout.home), str(1 + kills * 100)]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
        ) as server:
            assert server.stdout is not None
            published += [int(server.stdout.readline()) for _ in range(3)]
            server.kill()  # somewhere in the next one
    sweep(layout.snapshots)
    store = Snapshots(layout)
    there = {entry.name for entry in layout.snapshots.iterdir()}
    assert there >= {snapshot_id(number) for number in published}
    for name in there:
        assert store.verify(SnapshotId(name)) > 0
