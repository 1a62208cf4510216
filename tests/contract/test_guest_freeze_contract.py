"""What every guest's agent does around a freeze, the real one (as a process of this machine) and the fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from guest_agent import get, put, run, sh
from guest_subject import KINDS, Subject, subject_of
from torpor import errors
from torpor.guest.client import Guest, connect
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with subject_of(request.param, tmp_path) as subject:
        yield subject


@pytest.fixture
def guest(subject: Subject) -> Guest:
    return subject.guest


async def test_a_command_that_was_running_goes_on_after_the_wake_and_tells_its_end(subject: Subject) -> None:
    script = "echo before; sleep 0.5; echo after; exit 7"
    async with subject.guest.exec(ExecOrder(argv=["/bin/sh", "-c", script])) as frames:
        assert (await anext(frames)).payload == b"before\n"
        await subject.leave()
        await subject.wake()
        rest = [frame async for frame in frames]
    assert rest[0].payload == b"after\n"
    assert (rest[-1].kind, b'"exit_code":7' in rest[-1].payload) == (Kind.EXIT, True)


async def found(guest: Guest, **order: Any) -> tuple[str, str]:
    """Return what a command finds in the variables TOKEN and OTHER, "" where there is none."""
    token, other = [await run(guest, "printenv", name, **order) for name in ("TOKEN", "OTHER")]
    return token.stdout.decode().strip(), other.stdout.decode().strip()


async def test_secrets_are_in_the_environment_until_others_take_the_place_of_all_of_them(subject: Subject) -> None:
    guest, who = subject.guest, Identity(new_sandbox_id())
    assert await found(guest) == ("", "")
    await guest.adopt(who, env={"TOKEN": "plain"}, secrets={"TOKEN": "t", "OTHER": "o"})
    assert await found(guest) == ("t", "o")
    assert await found(guest, env={"TOKEN": "of this command"}) == ("of this command", "o")
    await guest.adopt(who)
    assert await found(guest) == ("t", "o"), "an adoption that says nothing of them keeps them"
    await subject.leave()
    await subject.wake()
    assert await found(guest) == ("t", "o"), "they are in the memory that was frozen"
    await guest.adopt(Identity(new_sandbox_id()), secrets={"OTHER": "new"})
    assert await found(guest) == ("plain", "new")
    await guest.adopt(Identity(new_sandbox_id()), secrets={})
    assert await found(guest) == ("plain", "")


@pytest.mark.parametrize("cut", [0, 1, 13, 20_001])
async def test_a_download_goes_on_wherever_its_line_broke_off(subject: Subject, cut: int) -> None:
    data = bytes(range(256)) * 8000
    await put(subject.guest, f"{subject.place}/file", data)
    received = b""
    async with subject.guest.read(f"{subject.place}/file") as chunks:
        received += await anext(chunks)
        for _ in range(3):
            await subject.leave(cut)
            await subject.wake()
            received += await anext(chunks, b"")
        async for chunk in chunks:
            received += chunk
    assert received == data
    assert await get(subject.guest, f"{subject.place}/file") == data


async def test_an_upload_goes_on_where_it_was(subject: Subject) -> None:
    data = bytes(range(256)) * 8000
    moved = asyncio.Event()
    goes_on = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield data[:500_000]
        moved.set()
        await goes_on.wait()
        yield data[500_000:]

    upload = asyncio.create_task(subject.guest.write(f"{subject.place}/file", chunks()))
    await moved.wait()
    await subject.leave()
    goes_on.set()  # what the client sends meanwhile waits here
    await subject.wake()
    assert await upload == len(data)
    assert await get(subject.guest, f"{subject.place}/file") == data


async def test_input_and_output_of_a_command_are_exact_over_many_wakes(subject: Subject) -> None:
    data = bytes(range(256)) * 4000
    running = asyncio.create_task(run(subject.guest, "cat", stdin=data))
    for _ in range(4):
        await asyncio.sleep(0)
        await subject.leave()
        await subject.wake()
    assert (await running).stdout == data


async def test_a_guest_that_is_away_is_busy_and_serves_again_after(subject: Subject) -> None:
    await subject.leave()
    with pytest.raises(errors.Busy):
        await run(subject.guest, "true")
    await subject.wake()
    assert (await run(subject.guest, "echo", "on")).stdout == b"on\n"


async def test_a_command_given_up_while_its_guest_is_away_is_killed_when_it_is_back(subject: Subject) -> None:
    running = asyncio.create_task(run(subject.guest, "sleep", "1000"))
    await subject.guest.ping()
    await subject.leave()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await subject.wake()
    assert (await run(subject.guest, "echo", "on")).stdout == b"on\n"


async def test_closing_a_guest_that_is_away_ends_its_calls(subject: Subject) -> None:
    running = asyncio.create_task(run(subject.guest, "sleep", "1000"))
    await subject.guest.ping()
    await subject.leave()
    await subject.guest.aclose()
    with pytest.raises(errors.OutcomeUnknown):
        await running
    assert not subject.guest.suspended


async def test_a_new_host_after_a_freeze_finds_a_guest_that_waits_to_be_somebody(subject: Subject) -> None:
    running = asyncio.create_task(run(subject.guest, "sleep", "1000"))
    await subject.guest.ping()
    await subject.guest.quiesce(timeout_s=10)
    await subject.relay.end()
    with pytest.raises(errors.OutcomeUnknown):
        await running
    async with await connect(subject.relay.connect(), timeout_s=10) as second:
        identity = Identity(new_sandbox_id())
        assert await second.adopt(identity, thaw=False, event="fork") == 0
        await second.thaw()
        assert (await run(second, "printenv", "TORPOR_SANDBOX_ID")).stdout.decode() == identity.sandbox_id + "\n"


async def test_a_freeze_that_is_called_off_leaves_everything_as_it_was(guest: Guest) -> None:
    async with guest.exec(ExecOrder(argv=["/bin/sh", "-c", "sleep 0.2; echo on"])) as frames:
        await guest.quiesce(timeout_s=10, leaving=True)
        assert guest.confirmed
        await guest.thaw()
        assert not guest.confirmed
        guest.release()
        assert (await anext(frames)).payload == b"on\n"


@pytest.mark.parametrize("settle", [False, True])
async def test_a_guest_where_nothing_runs_is_quiet_at_once(guest: Guest, settle: bool) -> None:
    await guest.quiesce(timeout_s=10, settle=settle, hooks=True)
    await guest.thaw()
    guest.release()
    assert (await run(guest, "echo", "on")).stdout == b"on\n"


async def test_the_environment_is_kept_and_added_to_under_what_a_command_is_given(guest: Guest) -> None:
    first, second = Identity(new_sandbox_id()), Identity(new_sandbox_id())
    await guest.adopt(first, env={"A": "1", "B": "1", "TORPOR_SANDBOX_ID": "a lie"})
    await guest.adopt(second, env={"B": "2"})
    await guest.adopt(second)
    for name, expected in (("A", "1"), ("B", "2"), ("TORPOR_SANDBOX_ID", second.sandbox_id)):
        assert (await run(guest, "printenv", name)).stdout.decode() == expected + "\n"
    assert (await run(guest, "printenv", "A", env={"A": "mine"})).stdout == b"mine\n"
    assert (await run(guest, "printenv", "A")).stdout == b"1\n"


async def test_hooks_that_there_are_not_are_no_hooks(guest: Guest) -> None:
    assert await guest.adopt(Identity(new_sandbox_id()), event="wake") == 0
    assert await guest.run_hooks("fork") == []


async def test_nothing_can_be_started_before_the_processes_go_on(guest: Guest) -> None:
    """Where there are control groups to stop them by; elsewhere nothing stands still."""
    if guest.features["containment"] == "sessions":
        pytest.skip("no control groups: nothing stands still")
    async with guest.exec(ExecOrder(argv=["sleep", "1000"])):
        await guest.quiesce(timeout_s=10)
        await guest.adopt(Identity(new_sandbox_id()), thaw=False)
        guest.release()
        with pytest.raises(errors.Busy):
            await sh(guest, "true")
        await guest.adopt(Identity(new_sandbox_id()))
        assert (await sh(guest, "true")).code == 0
