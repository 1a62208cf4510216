"""Which images must stay when a bake clears up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from frozen_parts import a_snapshot, a_template, fill, publish_snapshot, publish_template, snapshot_id
from torpor.errors import SnapshotCorrupt
from torpor.host.bake import images_in_use
from torpor.host.record import BASE
from torpor.model.ids import SnapshotId
from torpor.storage.frozen import MANIFEST, link_parts, seal
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots, write_manifest


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.make()
    return made


def publish_standing_on(layout: Layout, number: int, root: str) -> SnapshotId:
    store = Snapshots(layout)
    template = dataclasses.replace(a_template(), images={"root": root})
    with store.draft(snapshot_id(number)) as draft:
        fill(draft)
        write_manifest(draft, dataclasses.replace(a_snapshot(number), template=template), seal(draft))
        store.publish(draft, snapshot_id(number))
    return snapshot_id(number)


def test_what_a_template_a_snapshot_or_a_sandbox_stands_on_is_in_use(layout: Layout) -> None:
    publish_template(layout)
    publish_standing_on(layout, 1, "root-of-a-snapshot")
    gone = publish_standing_on(layout, 2, "root-of-a-sandbox")
    (layout.sandboxes / "sbx-0123456789bcdfgh").mkdir()
    link_parts(Snapshots(layout).path(gone), layout.sandboxes / "sbx-0123456789bcdfgh" / BASE)
    Snapshots(layout).remove(gone)
    own = {"kernel-1", "root-1", "runtime-1"}
    assert images_in_use(layout) == own | {"root-of-a-snapshot", "root-of-a-sandbox"}


def test_while_a_snapshot_cannot_be_read_nothing_can_be_called_unused(layout: Layout) -> None:
    publish_snapshot(layout)
    manifest = Snapshots(layout).path(snapshot_id(1)) / MANIFEST
    manifest.chmod(0o600)
    manifest.write_text("{")
    with pytest.raises(SnapshotCorrupt):
        images_in_use(layout)
