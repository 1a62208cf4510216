"""Freezing and restoring on a fake VMM: what is kept, who is who, and each step failing in turn with nothing left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from frozen_rig import NOTE, order, take
from host_rig import BASE, HostRig, guest_file, put_guest_file
from torpor.errors import (
    Busy,
    Conflict,
    InvalidRequest,
    NotFound,
    TorporError,
)
from torpor.host.flow.ask import guest_of
from torpor.host.flow.create import Source, create
from torpor.host.flow.delete import delete
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.pause import pause, resume
from torpor.host.flow.rollback import rollback
from torpor.host.flow.snapshot import snapshot
from torpor.host.flow.wake import wake
from torpor.host.revive import revive
from torpor.model.ids import SandboxId, new_sandbox_id, new_snapshot_id
from torpor.model.snapshot import Kind
from torpor.storage.frozen import DISK


async def test_a_hibernated_sandbox_has_no_machine_and_wakes_as_it_was(rig: HostRig, one: SandboxId) -> None:
    taken = await hibernate(rig.host, one, order(Kind.HIBERNATION))
    assert rig.driver.running == []
    names = sorted(entry.name for entry in (rig.layout.sandboxes / one).iterdir())
    assert names == ["asleep", "base", "console.log", "egress.json", "usage.json"]
    incarnation = await wake(rig.host, one)
    assert incarnation.base.snapshot is not None
    assert incarnation.base.snapshot.id == taken.id
    assert await guest_file(rig, one, NOTE) == b"before"
    assert not (rig.layout.sandboxes / one / "asleep").exists()


async def test_hibernating_and_waking_again_do_nothing(rig: HostRig, one: SandboxId) -> None:
    first = await hibernate(rig.host, one, order(Kind.HIBERNATION))
    assert await hibernate(rig.host, one, order(Kind.HIBERNATION)) == first
    woken = await wake(rig.host, one)
    assert await wake(rig.host, one) is woken
    assert [each.id for each in rig.host.snapshots.all()] == [first.id]


async def test_a_sandbox_is_put_to_sleep_again_and_again(rig: HostRig, one: SandboxId) -> None:
    for number in range(5):
        await put_guest_file(rig, one, NOTE, str(number).encode())
        await hibernate(rig.host, one, order(Kind.HIBERNATION))
        await wake(rig.host, one)
        assert await guest_file(rig, one, NOTE) == str(number).encode()
    parents = [each.parent for each in rig.host.snapshots.all()]
    assert parents == [None, *[each.id for each in rig.host.snapshots.all()][:-1]]


async def test_who_sleeps_is_not_asked_but_told_to_be_woken(rig: HostRig, one: SandboxId) -> None:
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    with pytest.raises(Busy, match="sleeps"):
        async with guest_of(rig.host, one):
            pass


async def test_a_snapshot_is_of_its_instant_and_the_sandbox_runs_on(rig: HostRig, one: SandboxId) -> None:
    taken = await take(rig, one)
    await put_guest_file(rig, one, NOTE, b"after")
    other = new_sandbox_id()
    await create(rig.host, other, Source(snapshot=taken))
    assert await guest_file(rig, one, NOTE) == b"after"
    assert await guest_file(rig, other, NOTE) == b"before"


async def test_each_restored_sandbox_has_an_identity_and_an_entropy_of_its_own(rig: HostRig, one: SandboxId) -> None:
    taken = await take(rig, one)
    children = [new_sandbox_id() for _ in range(8)]
    await asyncio.gather(*(create(rig.host, child, Source(snapshot=taken)) for child in children))
    adopted = [machine.guest.identities[-1] for machine in rig.driver.machines[-8:]]  # type: ignore[attr-defined]
    assert {each["sandbox_id"] for each in adopted} == set(children)
    assert len({each["entropy"] for each in adopted}) == 8


async def test_the_environment_is_inherited_and_added_to(rig: HostRig, one: SandboxId) -> None:
    taken = await take(rig, one)
    child = new_sandbox_id()
    await create(rig.host, child, Source(snapshot=taken, env={"MORE": "1"}))
    guest = rig.driver.running[-1].guest
    assert {"FROM": "create", "MORE": "1"}.items() <= guest.env.items()  # type: ignore[attr-defined]


async def test_deleting_a_snapshot_breaks_nothing_that_came_from_it(rig: HostRig, one: SandboxId) -> None:
    taken, child = await take(rig, one), new_sandbox_id()
    await create(rig.host, child, Source(snapshot=taken))
    slept = await hibernate(rig.host, one, order(Kind.HIBERNATION))
    for each in (taken, slept.id):
        rig.host.snapshots.remove(each)
    await wake(rig.host, one)
    for sandbox in (one, child):
        assert await guest_file(rig, sandbox, NOTE) == b"before"
        await take(rig, sandbox)


async def test_a_paused_sandbox_stands_still_until_it_is_resumed(rig: HostRig, one: SandboxId) -> None:
    for _ in range(2):
        await pause(rig.host, one)
    assert rig.driver.running[0].paused
    with pytest.raises(Busy):
        await guest_file(rig, one, NOTE)
    for _ in range(2):
        await resume(rig.host, one)
    assert await guest_file(rig, one, NOTE) == b"before"


async def test_a_paused_sandbox_stays_paused_through_a_snapshot_and_can_be_put_to_sleep(
    rig: HostRig, one: SandboxId
) -> None:
    await pause(rig.host, one)
    taken = await take(rig, one)
    assert rig.driver.running[0].paused
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    await wake(rig.host, one)
    child = new_sandbox_id()
    await create(rig.host, child, Source(snapshot=taken))
    assert await guest_file(rig, one, NOTE) == await guest_file(rig, child, NOTE) == b"before"


async def test_a_sleeper_is_forked_and_sleeps_on(rig: HostRig, one: SandboxId) -> None:
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    child = new_sandbox_id()
    await create(rig.host, child, Source(sleeper=one))
    assert await guest_file(rig, child, NOTE) == b"before"
    assert rig.host.live.sleeper(one) is not None


@pytest.mark.parametrize("state", ["running", "paused", "asleep", "dead", "gone"])
async def test_a_rollback_works_from_every_state(rig: HostRig, one: SandboxId, state: str) -> None:
    taken = await take(rig, one)
    await put_guest_file(rig, one, NOTE, b"after")
    if state == "paused":
        await pause(rig.host, one)
    elif state == "asleep":
        await hibernate(rig.host, one, order(Kind.HIBERNATION))
    elif state == "dead":
        rig.driver.running[0].die("it crashed")
    elif state == "gone":
        await delete(rig.host, one)
    await rollback(rig.host, one, taken)
    assert await guest_file(rig, one, NOTE) == b"before"
    assert len(rig.driver.running) == 1
    assert [entry.name for entry in rig.layout.sandboxes.iterdir()] == [one]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (Source(snapshot=new_snapshot_id()), NotFound),
        (Source(sleeper=new_sandbox_id()), NotFound),
        (Source(), InvalidRequest),
        (Source(template=BASE, snapshot=new_snapshot_id()), InvalidRequest),
    ],
)
async def test_what_is_not_there_makes_no_sandbox(rig: HostRig, source: Source, error: type[TorporError]) -> None:
    with pytest.raises(error):
        await create(rig.host, new_sandbox_id(), source)


async def test_a_running_sandbox_is_no_sleeper(rig: HostRig, one: SandboxId) -> None:
    with pytest.raises(Conflict, match="does not sleep"):
        await create(rig.host, new_sandbox_id(), Source(sleeper=one))


# -- after a crash of the server


async def test_sleepers_are_found_after_a_crash_and_what_ran_is_removed(
    rig: HostRig, one: SandboxId, tmp_path: Path
) -> None:
    other = new_sandbox_id()
    await create(rig.host, other, Source(template=BASE))
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    again = await rig.killed(machines_die=True)
    (sleeper,) = again.host.live.sleepers()
    assert sleeper.id == one
    assert not (rig.layout.sandboxes / other).exists()
    await wake(again.host, one)
    assert await guest_file(again, one, NOTE) == b"before"
    await delete(again.host, one)


async def test_the_rename_of_its_snapshot_puts_a_sandbox_to_sleep_for_good(rig: HostRig, one: SandboxId) -> None:
    """A crash right after it: the base is the old one yet, and the machine's disk is there."""
    folder = rig.layout.sandboxes / one
    taken = await snapshot(rig.host, one, order(Kind.HIBERNATION))
    (folder / "asleep").write_text(taken.id)
    rig.host.live.take(one)
    again = await rig.killed()
    (sleeper,) = again.host.live.sleepers()
    assert again.driver.running == []
    assert again.driver.survivors == []
    assert sleeper.base.snapshot is not None
    assert sleeper.base.snapshot.id == taken.id
    assert not (folder / DISK).exists()
    rig.host.live.enter(sleeper)


@pytest.mark.parametrize("machines_die", [False, True])
async def test_a_sandbox_marked_to_sleep_in_what_was_not_published_does_not_sleep(
    rig: HostRig, one: SandboxId, machines_die: bool
) -> None:
    (rig.layout.sandboxes / one / "asleep").write_text(new_snapshot_id())
    rig.host.live.take(one)
    again = await rig.killed(machines_die=machines_die)
    assert again.host.live.sleepers() == []
    assert not (rig.layout.sandboxes / one / "asleep").exists()
    assert [each.id for each in again.host.live.all()] == ([] if machines_die else [one])
    await delete(again.host, one)
    assert again.left == []


async def test_a_sleeper_that_cannot_be_read_is_left_alone_and_its_reason_told(rig: HostRig, one: SandboxId) -> None:
    taken = await hibernate(rig.host, one, order(Kind.HIBERNATION))
    rig.host.snapshots.remove(taken.id)
    manifest = rig.layout.sandboxes / one / "base" / "manifest.json"
    manifest.unlink()
    manifest.write_text("{")
    found = await rig.recover()
    assert found.sleepers() == []
    assert "manifest" in found.damaged[one]
    assert manifest.exists()


async def test_a_mark_that_says_nothing_is_left_alone_too(rig: HostRig, one: SandboxId) -> None:
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    (rig.layout.sandboxes / one / "asleep").write_bytes(b"\xff\xfe")
    assert list((await rig.recover()).damaged) == [one]


async def test_a_machine_that_stands_still_for_want_of_room_goes_on(rig: HostRig, one: SandboxId) -> None:
    rig.driver.running[0].stalled = True
    await revive(rig.host.live, rig.host.live.get(one))
    assert not rig.driver.running[0].stalled
    assert await guest_file(rig, one, NOTE) == b"before"
