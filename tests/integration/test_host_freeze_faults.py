"""Each step of a freeze and of a restore failing in turn, on a fake VMM: everything is as before, and nothing left."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from frozen_rig import NOTE, order, take
from host_rig import HostRig, guest_file, put_guest_file
from torpor.errors import (
    FreezeFailed,
    RestoreFailed,
    SandboxLost,
    SnapshotCorrupt,
    TorporError,
    Unsupported,
)
from torpor.host.flow.create import Source, create
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.rollback import rollback
from torpor.host.flow.snapshot import snapshot
from torpor.host.flow.wake import wake
from torpor.model.ids import SandboxId, new_sandbox_id
from torpor.model.snapshot import Kind
from torpor.storage.frozen import DISK, MEMORY, STATE
from torpor.testing.fake_guest import FakeGuest
from torpor.vmm.fake import Dies


def _no_draft(rig: HostRig, one: SandboxId) -> None:
    del one
    rig.layout.snapshots.rename(rig.layout.home / "kept")
    rig.layout.snapshots.write_text("a file where a folder should be")


def _no_image(rig: HostRig, one: SandboxId) -> None:
    (rig.layout.sandboxes / one / "base" / MEMORY).unlink()


def _no_overlay(rig: HostRig, one: SandboxId) -> None:
    (rig.layout.sandboxes / one / DISK).unlink()


def _no_pause(rig: HostRig, one: SandboxId) -> None:
    del one
    rig.driver.faults["pause"] = FreezeFailed("the machine does not stop")


def _no_state(rig: HostRig, one: SandboxId) -> None:
    del one
    rig.driver.faults["save_state"] = FreezeFailed("the state was not saved")


def _no_memory(rig: HostRig, one: SandboxId) -> None:
    del one
    rig.driver.faults["save_memory"] = FreezeFailed("the memory was not saved")


STEPS = [_no_draft, _no_image, _no_overlay, _no_pause, _no_state, _no_memory]


def _mend(rig: HostRig, one: SandboxId, kept: Path) -> None:
    """Put back what was taken away."""
    if rig.layout.snapshots.is_file():
        rig.layout.snapshots.unlink()
        (rig.layout.home / "kept").rename(rig.layout.snapshots)
    folder = rig.layout.sandboxes / one
    for part in ("base/" + MEMORY, DISK):
        if not (folder / part).exists():
            os.link(kept / Path(part).name, folder / part)


@pytest.mark.parametrize("breaks", STEPS)
@pytest.mark.parametrize("verb", [snapshot, hibernate])
async def test_whichever_step_of_a_freeze_fails_the_sandbox_runs_on_and_nothing_is_left(
    rig: HostRig,
    one: SandboxId,
    tmp_path: Path,
    breaks: Callable[[HostRig, SandboxId], None],
    verb: Callable[..., Coroutine[Any, Any, object]],
) -> None:
    earlier = await take(rig, one)
    await put_guest_file(rig, one, NOTE, b"after")
    folder = rig.layout.sandboxes / one
    os.link(folder / "base" / MEMORY, tmp_path / MEMORY)
    os.link(folder / DISK, tmp_path / DISK)
    breaks(rig, one)
    with pytest.raises(TorporError):
        await verb(rig.host, one, order(Kind.HIBERNATION))
    _mend(rig, one, tmp_path)
    assert await guest_file(rig, one, NOTE) == b"after"
    assert not (folder / "asleep").exists()
    assert [entry.name for entry in rig.layout.snapshots.iterdir()] == [earlier]
    assert (await snapshot(rig.host, one, order())).parent == earlier  # and the next one is as good as ever


@pytest.mark.parametrize("step", ["pause", "save_state", "save_memory", "resume"])
async def test_a_machine_that_dies_in_the_middle_of_a_freeze_is_lost_and_nothing_is_left(
    rig: HostRig, one: SandboxId, step: str
) -> None:
    earlier = await take(rig, one)
    rig.driver.faults[step] = Dies()  # type: ignore[index]
    with pytest.raises((SandboxLost, FreezeFailed)):
        await snapshot(rig.host, one, order())
    with pytest.raises(SandboxLost):
        rig.host.live.get(one)
    assert [entry.name for entry in rig.layout.snapshots.iterdir()] == [earlier]


async def test_a_guest_that_does_not_stand_still_is_frozen_without_its_help(rig: HostRig, one: SandboxId) -> None:
    rig.driver.running[0].guest.refuse_quiesce = "too many processes"  # type: ignore[attr-defined]
    taken, child = await take(rig, one), new_sandbox_id()
    await create(rig.host, child, Source(snapshot=taken))
    assert await guest_file(rig, one, NOTE) == await guest_file(rig, child, NOTE) == b"before"


async def test_a_sandbox_whose_guest_does_not_stand_still_goes_to_sleep_all_the_same(
    rig: HostRig, one: SandboxId
) -> None:
    rig.driver.running[0].guest.refuse_quiesce = "too many processes"  # type: ignore[attr-defined]
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    await wake(rig.host, one)
    assert await guest_file(rig, one, NOTE) == b"before"


# Each breaks one step of a restore, given the folder of what is restored.
Break = Callable[[HostRig, Path], None]


def _flip_state(rig: HostRig, folder: Path) -> None:
    del rig
    _flip(folder / STATE)


def _flip_memory(rig: HostRig, folder: Path) -> None:
    del rig
    _flip(folder / MEMORY)


def _flip_disk(rig: HostRig, folder: Path) -> None:
    del rig
    _flip(folder / DISK)


def _flip(file: Path) -> None:
    file.chmod(0o600)
    with file.open("r+b") as opened:
        first = opened.read(1)
        opened.seek(0)
        opened.write(bytes([first[0] ^ 1]))


def _lose_disk(rig: HostRig, folder: Path) -> None:
    del rig
    (folder / DISK).unlink()


def _other_processor(rig: HostRig, folder: Path) -> None:
    del folder
    rig.driver.fingerprint = dataclasses.replace(rig.driver.fingerprint, cpu_model="another")


def _other_accelerator(rig: HostRig, folder: Path) -> None:
    del folder
    rig.driver.fingerprint = dataclasses.replace(rig.driver.fingerprint, accelerator="kvm")


def _other_format(rig: HostRig, folder: Path) -> None:
    del rig
    manifest = folder / "manifest.json"
    manifest.chmod(0o600)
    manifest.write_text(manifest.read_text().replace('"format": ', '"format": 9'))


def _no_load(rig: HostRig, folder: Path) -> None:
    del folder
    rig.driver.failures.append(RestoreFailed("the machine did not start"))


def _no_resume(rig: HostRig, folder: Path) -> None:
    del folder
    rig.driver.faults["resume"] = RestoreFailed("the machine does not run")


def _silent(rig: HostRig, folder: Path) -> None:
    del folder
    rig.connect_s = 2
    rig.guests.append(FakeGuest(silent=True))


def _no_adoption(rig: HostRig, folder: Path) -> None:
    del folder
    rig.guests.append(FakeGuest(refuse_adopt="the random pool cannot be reseeded"))


def _no_thaw(rig: HostRig, folder: Path) -> None:
    del folder
    rig.guests.append(FakeGuest(refuse_thaw="the clock cannot be set"))


RESTORE_STEPS: list[tuple[Break, type[TorporError]]] = [
    (_flip_state, SnapshotCorrupt),
    (_flip_memory, SnapshotCorrupt),
    (_flip_disk, SnapshotCorrupt),
    (_lose_disk, SnapshotCorrupt),
    (_other_processor, Unsupported),
    (_other_accelerator, Unsupported),
    (_other_format, Unsupported),
    (_no_load, RestoreFailed),
    (_no_resume, RestoreFailed),
    (_silent, RestoreFailed),
    (_no_adoption, RestoreFailed),
    (_no_thaw, TorporError),
]


@pytest.mark.parametrize(("breaks", "error"), RESTORE_STEPS)
async def test_whichever_step_of_a_restore_from_a_snapshot_fails_nothing_is_left(
    rig: HostRig, one: SandboxId, breaks: Break, error: type[TorporError]
) -> None:
    taken = await take(rig, one)
    before = rig.left
    breaks(rig, rig.host.snapshots.path(taken))
    with pytest.raises(error):
        await create(rig.host, new_sandbox_id(), Source(snapshot=taken))
    assert rig.left == before


@pytest.mark.parametrize(("breaks", "error"), [step for step in RESTORE_STEPS if step[0] is not _other_format])
async def test_whichever_step_of_a_wake_fails_the_sandbox_sleeps_as_before(
    rig: HostRig, one: SandboxId, tmp_path: Path, breaks: Break, error: type[TorporError]
) -> None:
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    before, fingerprint = rig.left, rig.driver.fingerprint
    base = rig.layout.sandboxes / one / "base"
    shutil.copytree(base, tmp_path / "kept", copy_function=shutil.copy2)
    breaks(rig, base)
    with pytest.raises(error):
        await wake(rig.host, one)
    shutil.rmtree(base)
    (tmp_path / "kept").rename(base)
    rig.driver.fingerprint = fingerprint
    assert rig.left == before
    await wake(rig.host, one)
    assert await guest_file(rig, one, NOTE) == b"before"


async def test_a_second_wake_that_fails_leaves_the_sandbox_in_its_second_sleep(rig: HostRig, one: SandboxId) -> None:
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    await wake(rig.host, one)
    await put_guest_file(rig, one, NOTE, b"after")
    second = await hibernate(rig.host, one, order(Kind.HIBERNATION))
    rig.driver.failures.append(RestoreFailed("the machine did not start"))
    with pytest.raises(RestoreFailed):
        await wake(rig.host, one)
    assert (rig.layout.sandboxes / one / "asleep").read_text().strip() == second.id


@pytest.mark.parametrize(("breaks", "error"), RESTORE_STEPS)
async def test_whichever_step_of_a_rollback_fails_the_sandbox_is_as_before(
    rig: HostRig, one: SandboxId, breaks: Break, error: type[TorporError]
) -> None:
    taken = await take(rig, one)
    await put_guest_file(rig, one, NOTE, b"after")
    before = rig.left
    # What runs has links of its own, so the snapshot has to be another file to be damaged alone.
    folder = rig.host.snapshots.path(taken)
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copy2)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    breaks(rig, folder)
    with pytest.raises(error):
        await rollback(rig.host, one, taken)
    assert rig.left == before
    assert await guest_file(rig, one, NOTE) == b"after"


@pytest.mark.parametrize("turns", range(0, 80, 4))
@pytest.mark.parametrize("verb", [snapshot, hibernate])
async def test_a_freeze_cancelled_at_any_point_has_happened_or_not(
    rig: HostRig, one: SandboxId, verb: Callable[..., Coroutine[Any, Any, object]], turns: int
) -> None:
    freezing = asyncio.ensure_future(verb(rig.host, one, order(Kind.HIBERNATION)))
    for _ in range(turns):
        await asyncio.sleep(0)
    freezing.cancel()
    await asyncio.gather(freezing, return_exceptions=True)
    async with rig.host.live.lock(one):  # what was under way has ended
        pass
    await wake(rig.host, one)
    assert await guest_file(rig, one, NOTE) == b"before"
    assert all(not entry.name.startswith(".") for entry in rig.layout.snapshots.iterdir())
