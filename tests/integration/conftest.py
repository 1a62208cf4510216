"""A host on a fake VMM with one sandbox in it; files that need another `rig` have their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from frozen_rig import NOTE
from host_rig import BASE, HostRig, new_rig, put_guest_file
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.model.ids import SandboxId, SnapshotId, new_sandbox_id


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HostRig]:
    """A host with the template `base`; whatever it has of sandboxes and snapshots at the end can be deleted."""
    rig = new_rig(tmp_path)
    await rig.bake()
    yield rig
    live = rig.host.live
    for sandbox in [*(each.id for each in live.all()), *(each.id for each in live.sleepers()), *live.damaged]:
        await delete(rig.host, sandbox)
    for entry in rig.layout.snapshots.iterdir():
        rig.host.snapshots.remove(SnapshotId(entry.name))
    assert rig.left == []


@pytest.fixture
async def one(rig: HostRig) -> SandboxId:
    """A running sandbox with a note in it that says "before"."""
    sandbox = new_sandbox_id()
    await create(rig.host, sandbox, Source(template=BASE, env={"FROM": "create"}))
    await put_guest_file(rig, sandbox, NOTE, b"before")
    return sandbox
