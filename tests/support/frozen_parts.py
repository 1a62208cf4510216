"""Frozen guests for tests of storage: real files, small, with a template's or a snapshot's manifest."""

from __future__ import annotations

import dataclasses
import os
from datetime import UTC, datetime
from pathlib import Path

from torpor.kit.files import clone
from torpor.kit.runs import Run, Written
from torpor.model.ids import SandboxId, SnapshotId, TemplateName
from torpor.model.snapshot import Cost, Kind, Snapshot
from torpor.model.template import Fingerprint, Template
from torpor.storage import snapshots, templates
from torpor.storage.frozen import DISK, MEMORY, STATE, Changes, read, seal
from torpor.storage.layout import Layout
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates

BASE = TemplateName("base")
PAGE, PAGES = 4096, 64


def a_template(name: str = BASE, version: str = "10.0.2") -> Template:
    fields = {field.name: "x" for field in dataclasses.fields(Fingerprint)}
    return Template(
        name=TemplateName(name),
        digest="0" * 16,
        created_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        cpu=1,
        memory_mib=256,
        disk_gib=4,
        command_line="quiet",
        images={"kernel": "kernel-1", "root": "root-1", "runtime": "runtime-1"},
        fingerprint=Fingerprint(**{**fields, "version": version}),
        cold_boot_ms=5000,
    )


def snapshot_id(number: int) -> SnapshotId:
    return SnapshotId(f"snp-{number:016}")


def a_snapshot(number: int = 1) -> Snapshot:
    return Snapshot(
        id=snapshot_id(number),
        kind=Kind.CHECKPOINT,
        sandbox=SandboxId("sbx-0123456789bcdfgh"),
        created_at=datetime(2026, 1, 2, 0, number % 60, tzinfo=UTC),
        template=a_template(),
        parent=snapshot_id(number - 1) if number > 1 else None,
        name="a name",
        cost=Cost(pause_ms=12.3, took_ms=45.6, dirty_bytes=8192, written_bytes=4096),
    )


def fill(draft: Path) -> None:
    """Write what a machine would: a memory that is half holes, a state, a disk of three blocks and a bit."""
    with (draft / MEMORY).open("wb") as memory:
        memory.write(os.urandom(PAGES // 2 * PAGE))
        memory.truncate(PAGES * PAGE)
    (draft / STATE).write_bytes(os.urandom(5000))
    (draft / DISK).write_bytes(os.urandom(3 * 65536 + 512))


def fill_over(base: Path, draft: Path, at: int, data: bytes) -> Changes:
    """Write what a machine that came from `base` would, with `data` at an offset of its memory and of its disk."""
    for part in (MEMORY, DISK):
        clone(base / part, draft / part)
        with (draft / part).open("r+b") as file:
            file.seek(at)
            file.write(data)
    (draft / STATE).write_bytes(os.urandom(5000))
    run: Run = (at // PAGE * PAGE, -(-len(data) // PAGE) * PAGE)
    return Changes(read(base), Written(run[1], (run,), used=(run,)))


def publish_template(layout: Layout, template: Template | None = None) -> Template:
    template = template or a_template()
    with Templates(layout).publish(template.name) as draft:
        fill(draft)
        return templates.write_manifest(draft, template, seal(draft))


def publish_snapshot(layout: Layout, number: int = 1) -> Snapshot:
    store = Snapshots(layout)
    with store.draft(snapshot_id(number)) as draft:
        fill(draft)
        snapshot = snapshots.write_manifest(draft, a_snapshot(number), seal(draft))
        store.publish(draft, snapshot.id)
        return snapshot


def flip(path: Path, offset: int, *, keep_time: bool) -> None:
    """Change one byte of an immutable file; with `keep_time` as a disk that rots would, unseen."""
    status = path.stat()
    mode = status.st_mode & 0o777
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    path.chmod(mode)
    later = status.st_mtime_ns if keep_time else status.st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(status.st_atime_ns, later))
