"""Verbs whose caller goes away in the middle, on a fake VMM: what is told of a sandbox is what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from frozen_rig import NOTE, order, take
from host_rig import HostRig, guest_file
from torpor.errors import SandboxLost, SnapshotCorrupt
from torpor.host.flow.ask import guest_of
from torpor.host.flow.create import Source, create
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.pause import pause, resume
from torpor.host.views import incarnation_view
from torpor.model.ids import SandboxId, new_sandbox_id
from torpor.model.snapshot import Kind
from torpor.storage.frozen import STATE
from torpor.testing.fake_guest import FakeGuest
from torpor.wire.host import ExecOrder


async def cut_short(work: Coroutine[Any, Any, object]) -> None:
    """Cancel work as soon as it has begun."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never held")


async def test_a_pause_whose_caller_goes_away_is_told_as_a_pause(rig: HostRig, one: SandboxId) -> None:
    await cut_short(pause(rig.host, one))
    incarnation = rig.host.live.get(one)
    assert incarnation.stands_still
    assert incarnation_view(incarnation).status == "paused"
    await resume(rig.host, one)
    assert await guest_file(rig, one, NOTE) == b"before"


async def test_a_resume_whose_caller_goes_away_is_told_as_a_resume(rig: HostRig, one: SandboxId) -> None:
    await pause(rig.host, one)
    await cut_short(resume(rig.host, one))
    incarnation = rig.host.live.get(one)
    assert (incarnation.stands_still, incarnation_view(incarnation).status) == (False, "running")


async def test_a_resume_that_fails_leaves_the_sandbox_paused(rig: HostRig, one: SandboxId) -> None:
    await pause(rig.host, one)
    rig.driver.faults["resume"] = SandboxLost("the machine does not answer")
    with pytest.raises(SandboxLost):
        await resume(rig.host, one)
    incarnation = rig.host.live.get(one)
    assert (incarnation.stands_still, incarnation_view(incarnation).status) == (True, "paused")


async def test_a_create_whose_caller_goes_away_while_hooks_run_leaves_nothing(rig: HostRig, one: SandboxId) -> None:
    taken, child = await take(rig, one), new_sandbox_id()
    guest = FakeGuest(hooks=1, silent_hooks=True)
    rig.guests.append(guest)
    task = asyncio.create_task(create(rig.host, child, Source(snapshot=taken)))
    await until(lambda: bool(guest.hooks_run))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [each.id for each in rig.host.live.all()] == [one]
    assert len(rig.driver.running) == 1
    assert [entry.name for entry in rig.layout.sandboxes.iterdir()] == [one]


async def test_what_a_damaged_sleeper_sleeps_in_makes_no_children(rig: HostRig, one: SandboxId) -> None:
    await hibernate(rig.host, one, order(Kind.HIBERNATION))
    state = rig.layout.sandboxes / one / "base" / STATE
    state.chmod(0o600)
    state.write_bytes(bytes(state.stat().st_size))
    with pytest.raises(SnapshotCorrupt):
        await create(rig.host, new_sandbox_id(), Source(sleeper=one))


async def test_what_is_under_way_in_a_paused_machine_that_dies_is_told_so(rig: HostRig, one: SandboxId) -> None:
    async def command() -> None:
        async with guest_of(rig.host, one) as guest:
            await guest.run(ExecOrder(argv=["sleep", "3600"]))

    running = asyncio.create_task(command())
    await until(lambda: bool(rig.driver.running[0].guest.under_way))  # type: ignore[attr-defined]
    await pause(rig.host, one)
    rig.driver.running[0].die("it was killed")
    async with asyncio.timeout(5):
        with pytest.raises(SandboxLost):
            await running
