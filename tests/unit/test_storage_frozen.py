"""What is frozen: sealed, checked when it is opened, verified in full, linked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frozen_parts import (
    PAGE,
    PAGES,
    a_snapshot,
    a_template,
    fill,
    fill_over,
    flip,
    publish_snapshot,
    publish_template,
    snapshot_id,
)
from reflinks import reflink_volume
from torpor.errors import FreezeFailed, OutOfSpace, SnapshotCorrupt, Unsupported
from torpor.kit.files import allocated_bytes
from torpor.kit.sums import sums_of
from torpor.storage import frozen, snapshots
from torpor.storage.frozen import (
    DISK,
    DISK_SUMS,
    MANIFEST,
    MEMORY,
    MEMORY_SUMS,
    MEMORY_USED,
    PARTS,
    STATE,
    check,
    read_ahead,
    seal,
    verify,
)
from torpor.storage.layout import Layout
from torpor.storage.manifest import Manifest, Part, parse_manifest, print_manifest
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates

# What was in use is only told of a guest that was brought to life, so it is empty here.
_SEALED = tuple(part for part in PARTS if part not in (MANIFEST, MEMORY_USED))


def opened(folder: Path) -> frozen.Frozen:
    """Return what is frozen in a folder, after the check that whoever opens it makes."""
    found = frozen.read(folder)
    check(found)
    return found


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "home")
    made.make()
    return made


def test_a_manifest_keeps_every_field_of_a_template_and_of_a_snapshot() -> None:
    parts = {MEMORY: Part(4096, 1_700_000_000_123_456_789), STATE: Part(10, 5, "ab")}
    for record in (a_template(), dataclasses.replace(a_snapshot(), size_bytes=77)):
        manifest = Manifest(record, parts)
        assert parse_manifest(print_manifest(manifest).encode(), "it", "mend it") == manifest


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "7", '{"format": "x"}', '{"format": 2, "record": {}}', '{"format": 1, "what": "cake"}', "\xff"],
)
def test_a_text_that_is_no_manifest_is_damaged(text: str) -> None:
    with pytest.raises(SnapshotCorrupt, match="the manifest of it is damaged"):
        parse_manifest(text.encode("latin-1"), "it", "mend it")


def test_a_manifest_that_was_cut_or_changed_anywhere_is_never_believed() -> None:
    text = print_manifest(Manifest(a_snapshot(), {MEMORY: Part(4096, 5)})).encode()
    for cut in range(0, len(text) - 2, 7):
        with pytest.raises(SnapshotCorrupt):
            parse_manifest(text[:cut], "it", "mend it")
    for at in range(0, len(text) - 2, 5):
        changed = text[:at] + bytes([text[at] ^ 4]) + text[at + 1 :]
        try:
            read = parse_manifest(changed, "it", "mend it")
        except (SnapshotCorrupt, Unsupported):
            continue
        assert read == parse_manifest(text, "it", "mend it")  # blanks between the values mean nothing


@pytest.mark.parametrize(("record", "format", "lacks"), [(a_template(), 2, "bays"), (a_snapshot(), 1, "volumes")])
def test_a_manifest_of_an_older_format_is_read(record: Any, format: int, lacks: str) -> None:
    said = json.loads(print_manifest(Manifest(record, {})))
    del said["record"][lacks], said["checksum"]
    said["format"] = format
    checksum = hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert parse_manifest(json.dumps({**said, "checksum": checksum}).encode(), "it", "") == Manifest(record, {})


@pytest.mark.parametrize("record", [a_template(), a_snapshot()])
def test_a_manifest_of_another_format_is_refused_by_name(record: Any) -> None:
    said = json.loads(print_manifest(Manifest(record, {})))
    said["format"] = 99
    with pytest.raises(Unsupported, match="it is in format 99, and this version reads up to") as caught:
        parse_manifest(json.dumps(said).encode(), "it", "mend it")
    assert caught.value.hint == "mend it"


def test_what_was_baked_before_manifests_had_checksums_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="it is in format 1"):
        parse_manifest(b'{"format": 1, "name": "base"}', "it", "mend it")


def test_a_sealed_draft_has_true_checksums_and_nobody_may_write_it(tmp_path: Path) -> None:
    fill(tmp_path)
    sealed = seal(tmp_path)
    assert set(sealed.parts) == {*_SEALED, MEMORY_USED}
    assert (tmp_path / MEMORY_SUMS).read_bytes() == sums_of(tmp_path / MEMORY, 4096)
    assert (tmp_path / DISK_SUMS).read_bytes() == sums_of(tmp_path / DISK, 65536)
    for part, known in sealed.parts.items():
        status = (tmp_path / part).stat()
        assert (status.st_size, status.st_mtime_ns) == (known.size, known.mtime_ns)
        assert status.st_mode & 0o777 == 0o400
        assert (known.sha256 is None) == (part in (MEMORY, DISK))
    assert sealed.size_bytes == allocated_bytes(tmp_path)


def test_only_what_changed_is_read_again_for_checksums_and_they_are_those_of_the_whole(layout: Layout) -> None:
    publish_snapshot(layout)
    base = Snapshots(layout).path(snapshot_id(1))
    # A page that nobody says was written: its checksum has to come from the base, not from reading it.
    flip(base / MEMORY, 20 * PAGE, keep_time=True)
    draft = layout.snapshots / ".draft-x"
    draft.mkdir()
    seal(draft, fill_over(base, draft, 3 * PAGE, b"changed"))
    known, true = (draft / MEMORY_SUMS).read_bytes(), sums_of(draft / MEMORY, PAGE)
    assert [page for page in range(PAGES) if known[page * 4 :][:4] != true[page * 4 :][:4]] == [20]
    assert (draft / DISK_SUMS).read_bytes() == sums_of(draft / DISK, 65536)


def test_checksums_of_a_base_that_are_damaged_are_not_handed_on(layout: Layout) -> None:
    publish_snapshot(layout)
    base = Snapshots(layout).path(snapshot_id(1))
    flip(base / MEMORY_SUMS, 40 * 4, keep_time=True)
    draft = layout.snapshots / ".draft-x"
    draft.mkdir()
    seal(draft, fill_over(base, draft, 3 * PAGE, b"changed"))
    assert (draft / MEMORY_SUMS).read_bytes() == sums_of(draft / MEMORY, PAGE)


def test_a_draft_that_lacks_a_part_cannot_be_sealed(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / STATE).unlink()
    with pytest.raises(FreezeFailed, match="could not be written"):
        seal(tmp_path)


def test_what_was_published_opens_with_its_record_and_verifies_with_all_its_bytes(layout: Layout) -> None:
    template, snapshot = publish_template(layout), publish_snapshot(layout)
    baked, taken = Templates(layout).open(template.name), Snapshots(layout).open(snapshot.id)
    assert (baked.title, baked.template, baked.snapshot) == ("the template 'base'", template, None)
    assert (taken.title, taken.template, taken.snapshot) == (f"the snapshot {snapshot.id}", a_template(), snapshot)
    size = sum((taken.folder / part).stat().st_size for part in _SEALED)
    assert verify(taken) == size == Snapshots(layout).verify(snapshot.id)


@pytest.mark.parametrize("part", _SEALED)
def test_a_changed_byte_of_a_touched_part_is_found_when_it_is_opened(layout: Layout, part: str) -> None:
    publish_snapshot(layout)
    flip(Snapshots(layout).path(snapshot_id(1)) / part, 10, keep_time=False)
    with pytest.raises(
        SnapshotCorrupt, match=rf"snapshot {snapshot_id(1)} is damaged: its file '{part}' has other"
    ) as caught:
        Snapshots(layout).open(snapshot_id(1))
    assert caught.value.hint


@pytest.mark.parametrize("part", _SEALED)
def test_a_byte_that_rotted_unseen_is_found_when_it_is_verified(layout: Layout, part: str) -> None:
    publish_snapshot(layout)
    flip(Snapshots(layout).path(snapshot_id(1)) / part, 10, keep_time=True)
    with pytest.raises(SnapshotCorrupt, match=f"its file '{part}' has other bytes"):
        Snapshots(layout).verify(snapshot_id(1))


def test_the_offset_of_the_first_damaged_block_is_named(layout: Layout) -> None:
    publish_snapshot(layout)
    for at in (5 * PAGE + 17, PAGES * PAGE - 1):
        flip(Snapshots(layout).path(snapshot_id(1)) / MEMORY, at, keep_time=True)
    with pytest.raises(SnapshotCorrupt, match=f"from byte {5 * PAGE} on"):
        Snapshots(layout).verify(snapshot_id(1))


def test_a_machine_s_state_is_read_whenever_it_is_opened(layout: Layout) -> None:
    publish_snapshot(layout)
    flip(Snapshots(layout).path(snapshot_id(1)) / STATE, 0, keep_time=True)
    with pytest.raises(SnapshotCorrupt, match="its file 'state'"):
        Snapshots(layout).open(snapshot_id(1))


@pytest.mark.parametrize("part", _SEALED)
def test_a_part_that_is_gone_or_of_another_length_is_named(layout: Layout, part: str) -> None:
    publish_snapshot(layout)
    path = Snapshots(layout).path(snapshot_id(1)) / part
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(SnapshotCorrupt, match=f"'{part}' has {size - 1} bytes, not {size}"):
        Snapshots(layout).open(snapshot_id(1))
    path.unlink()
    with pytest.raises(SnapshotCorrupt, match=f"lacks its file '{part}'"):
        Snapshots(layout).open(snapshot_id(1))


def test_a_copy_without_times_is_read_once_and_then_trusted(layout: Layout) -> None:
    publish_snapshot(layout)
    path = Snapshots(layout).path(snapshot_id(1))
    shutil.copytree(path, layout.home / "copy", copy_function=shutil.copyfile)
    copied = opened(layout.home / "copy")
    for part in _SEALED:
        assert (copied.folder / part).stat().st_mtime_ns == copied.parts[part].mtime_ns
    flip(copied.folder / MEMORY, 0, keep_time=True)
    check(copied)  # sizes and times vouch for it now


def test_checksums_that_were_damaged_do_not_vouch_for_a_touched_part(layout: Layout) -> None:
    publish_snapshot(layout)
    folder = Snapshots(layout).path(snapshot_id(1))
    flip(folder / MEMORY, 0, keep_time=False)
    flip(folder / MEMORY_SUMS, 0, keep_time=True)
    with pytest.raises(SnapshotCorrupt, match=r"its file 'memory\.sums'"):
        Snapshots(layout).open(snapshot_id(1))


def test_linked_parts_are_the_same_files_and_outlive_their_source(layout: Layout) -> None:
    publish_snapshot(layout)
    store, base = Snapshots(layout), layout.sandboxes / "base"
    frozen.link_parts(store.path(snapshot_id(1)), base)
    store.open(snapshot_id(1))  # links change no times that count
    store.remove(snapshot_id(1))
    linked = opened(base)
    assert linked.snapshot is not None
    assert linked.snapshot.id == snapshot_id(1)
    assert verify(linked) > PAGES * PAGE


def test_linking_replaces_what_was_linked_before_and_leaves_it_alone_if_it_fails(layout: Layout) -> None:
    for number in (1, 2, 3):
        publish_snapshot(layout, number)
    store, base = Snapshots(layout), layout.sandboxes / "base"
    frozen.link_parts(store.path(snapshot_id(1)), base)
    frozen.link_parts(store.path(snapshot_id(2)), base)
    (store.path(snapshot_id(3)) / DISK_SUMS).unlink()
    with pytest.raises(FileNotFoundError):
        frozen.link_parts(store.path(snapshot_id(3)), base)
    assert opened(base).snapshot == store.get(snapshot_id(2))
    assert [entry.name for entry in layout.sandboxes.iterdir()] == ["base"]


def test_a_folder_without_a_manifest_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(SnapshotCorrupt, match="lacks its manifest"):
        frozen.read(tmp_path)


def _freeze_over(layout: Layout, base: Path, number: int, data: bytes) -> int:
    store = Snapshots(layout)
    with store.draft(snapshot_id(number)) as draft:
        sealed = seal(draft, fill_over(base, draft, PAGE, data))
        sized = snapshots.write_manifest(draft, a_snapshot(number), sealed)
        store.publish(draft, sized.id)
        return sized.size_bytes


def test_with_reflinks_a_snapshot_costs_what_changed_and_verifies_whole(tmp_path: Path) -> None:
    with reflink_volume(tmp_path) as volume:
        layout = Layout(volume)
        layout.make()
        first = publish_snapshot(layout)
        assert first.size_bytes >= PAGES // 2 * PAGE
        size = _freeze_over(layout, Snapshots(layout).path(first.id), 2, b"changed")
        small = sum(
            allocated_bytes(Snapshots(layout).path(snapshot_id(2)) / part) for part in _SEALED[1:2] + _SEALED[3:]
        )
        assert small + 2 * PAGE <= size <= small + 4 * PAGE
        assert Snapshots(layout).verify(snapshot_id(2)) > PAGES * PAGE


def test_a_full_disk_is_told_as_the_host_s_with_its_figures_and_leaves_no_draft(tmp_path: Path) -> None:
    with reflink_volume(tmp_path) as volume:
        layout = Layout(volume)
        layout.make()
        publish_snapshot(layout)
        base, store = Snapshots(layout).path(snapshot_id(1)), Snapshots(layout)
        with store.draft(snapshot_id(2)) as draft:
            changes = fill_over(base, draft, PAGE, b"changed")
            _fill_up(volume)
            with pytest.raises(OutOfSpace, match="the host's disk is full: 0 of") as caught:
                seal(draft, changes)
        assert caught.value.hint is not None
        assert {entry.name for entry in layout.snapshots.iterdir()} == {snapshot_id(1)}
        store.open(snapshot_id(1))


def _fill_up(volume: Path) -> None:
    """Leave not a block on a file system."""
    size = 1024 * 1024
    with (volume / "ballast").open("wb", buffering=0) as ballast:
        while size >= 512:
            try:
                ballast.write(bytes(size))
            except OSError:
                size //= 2
        os.fsync(ballast.fileno())


def nothing(draft: Path) -> None:
    assert draft.is_dir()


def fill_and_seal(draft: Path) -> None:
    fill(draft)
    seal(draft)


@pytest.mark.parametrize("step", [nothing, fill, fill_and_seal])
def test_a_draft_that_is_left_at_any_step_is_gone(layout: Layout, step: Callable[[Path], None]) -> None:
    def leave_it() -> None:
        with Snapshots(layout).draft(snapshot_id(1)) as draft:
            step(draft)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        leave_it()
    assert list(layout.snapshots.iterdir()) == []


def test_small_parts_have_a_cryptographic_checksum(tmp_path: Path) -> None:
    fill(tmp_path)
    sealed = seal(tmp_path)
    assert sealed.parts[STATE].sha256 == hashlib.sha256((tmp_path / STATE).read_bytes()).hexdigest()


def test_what_a_restore_needs_first_is_noted_guarded_and_read_ahead(layout: Layout) -> None:
    publish_snapshot(layout)
    _freeze_over(layout, Snapshots(layout).path(snapshot_id(1)), 2, b"changed")
    taken = Snapshots(layout).open(snapshot_id(2))
    used = taken.folder / MEMORY_USED
    assert struct.unpack("<QQ", used.read_bytes()) == (PAGE, PAGE)
    read_ahead(taken)
    flip(used, 3, keep_time=True)
    read_ahead(taken)  # a hint that leads nowhere is no harm
    with pytest.raises(SnapshotCorrupt, match=r"memory\.used"):
        verify(taken)
