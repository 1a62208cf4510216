"""What every guest's agent does, the real one (as a process of this machine) and the fake one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guest_agent import get, put, run, running_agent, sh
from torpor import errors
from torpor.guest.client import Guest, connect
from torpor.kit.shielded import wait_ended
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor.testing.fake_guest import FakeGuest
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder


@dataclass
class Subject:
    """A guest, a folder in it to work in, and the host's end of its line."""

    guest: Guest
    place: str
    sock: socket.socket


@pytest.fixture(params=["agent", "agent-without-cgroups", "fake"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "fake":
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(FakeGuest().serve(theirs))
        with ours:
            async with await connect(ours.dup(), timeout_s=10) as guest:
                yield Subject(guest, "/work", ours)
        await serving
        return
    (tmp_path / "work").mkdir()
    async with running_agent(tmp_path, cgroups=request.param == "agent") as agent, await agent.connect() as guest:
        yield Subject(guest, str(tmp_path / "work"), agent.sock)


@pytest.fixture
def guest(subject: Subject) -> Guest:
    return subject.guest


@pytest.fixture
def place(subject: Subject) -> str:
    return subject.place


async def test_a_command_s_output_comes_before_its_exit(guest: Guest) -> None:
    async with guest.exec(ExecOrder(argv=["echo", "one", "two"])) as frames:
        received = [frame async for frame in frames]
    assert [frame.kind for frame in received] == [Kind.STDOUT, Kind.EXIT]
    assert received[0].payload == b"one two\n"


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("false", 1), ("exit 44", 44), ("exit 255", 255)])
async def test_the_exit_code_is_the_command_s(guest: Guest, script: str, code: int) -> None:
    ran = await sh(guest, script)
    assert (ran.code, ran.outcome.signal, ran.outcome.timed_out) == (code, None, False)


async def test_an_unknown_command_is_127_and_named_on_stderr(guest: Guest) -> None:
    ran = await run(guest, "no-such-command")
    assert ran.code == 127
    assert b"no-such-command" in ran.stderr
    assert b"not found" in ran.stderr


async def test_a_signal_is_128_and_its_number_with_its_name(guest: Guest) -> None:
    ran = await sh(guest, "kill -9 $$")
    assert (ran.code, ran.outcome.signal) == (137, "SIGKILL")


async def test_stdout_and_stderr_are_apart(guest: Guest) -> None:
    ran = await sh(guest, "echo out; echo err >&2")
    assert (ran.stdout, ran.stderr) == (b"out\n", b"err\n")


async def test_the_environment_is_given_exactly_and_does_not_leak_into_the_next_command(guest: Guest) -> None:
    ran = await run(guest, "printenv", "A", env={"A": 'x y"z\nq é'})
    assert ran.stdout.decode() == 'x y"z\nq é\n'
    assert (await run(guest, "printenv", "A")).code == 1


@pytest.mark.parametrize("size", [0, 1, 262_143, 262_145, 1_000_003])
async def test_stdin_comes_back_exactly(guest: Guest, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert (await run(guest, "cat", stdin=data)).stdout == data


async def test_a_command_that_outlasts_its_timeout_is_killed(guest: Guest) -> None:
    ran = await run(guest, "sleep", "1000", timeout_s=0.05)
    assert (ran.code, ran.outcome.signal, ran.outcome.timed_out) == (137, "SIGKILL", True)


async def test_leaving_a_command_early_ends_it_and_the_guest_serves_on(guest: Guest) -> None:
    async with guest.exec(ExecOrder(argv=["sleep", "1000"])):
        pass
    assert (await run(guest, "echo", "on")).stdout == b"on\n"


async def test_a_cancelled_caller_ends_its_command(guest: Guest) -> None:
    caller = asyncio.create_task(run(guest, "sleep", "1000"))
    await guest.ping()
    caller.cancel()
    await wait_ended(caller)
    assert caller.cancelled()
    assert (await run(guest, "echo", "on")).stdout == b"on\n"


async def test_a_missing_working_folder_is_refused_by_name(guest: Guest, place: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="nowhere"):
        await run(guest, "true", cwd=f"{place}/nowhere")


async def test_many_commands_run_at_once(guest: Guest) -> None:
    ran = await asyncio.gather(*(sh(guest, f"echo {code}; exit {code}") for code in range(40)))
    assert [one.code for one in ran] == list(range(40))
    assert [one.stdout for one in ran] == [f"{code}\n".encode() for code in range(40)]


@pytest.mark.parametrize("size", [0, 1, 32_755, 262_144, 1_000_003])
async def test_a_file_is_read_as_it_was_written(guest: Guest, place: str, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert await put(guest, f"{place}/deep/down/file", data) == size
    assert await get(guest, f"{place}/deep/down/file") == data
    entry = await guest.stat(f"{place}/deep/down/file")
    assert (entry.name, entry.is_dir, entry.size, entry.mode, entry.user) == ("file", False, size, 0o644, "root")


async def test_a_mode_is_set_when_given_and_kept_when_not(guest: Guest, place: str) -> None:
    await put(guest, f"{place}/file", b"1", mode=0o640)
    await put(guest, f"{place}/file", b"2")
    assert (await guest.stat(f"{place}/file")).mode == 0o640


async def test_appending_adds_to_a_file(guest: Guest, place: str) -> None:
    await put(guest, f"{place}/file", b"one ", append=True)
    await put(guest, f"{place}/file", b"two", append=True)
    assert await get(guest, f"{place}/file") == b"one two"


async def test_an_upload_that_breaks_off_changes_nothing(guest: Guest, place: str) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise ConnectionResetError("the client is gone")

    await put(guest, f"{place}/file", b"old")
    with pytest.raises(ConnectionResetError):
        await guest.write(f"{place}/file", broken())
    assert await get(guest, f"{place}/file") == b"old"
    assert [entry.name for entry in await guest.list(place)] == ["file"]


async def test_what_cannot_be_read_fails_before_the_first_byte(guest: Guest, place: str) -> None:
    for path, expected in ((f"{place}/none", errors.NotFound), (place, errors.InvalidRequest)):
        with pytest.raises(expected):
            async with guest.read(path):
                pytest.fail("the block was entered")


@pytest.mark.parametrize("path", ["relative", "", "./x"])
async def test_a_path_that_is_not_absolute_is_refused(guest: Guest, path: str) -> None:
    for ask in (get(guest, path), put(guest, path, b""), guest.stat(path), guest.list(path), guest.mkdir(path)):
        with pytest.raises(errors.InvalidRequest, match="absolute"):
            await ask


async def test_making_a_folder_makes_its_parents_and_is_idempotent(guest: Guest, place: str) -> None:
    for _ in range(2):
        await guest.mkdir(f"{place}/a/b")
    assert (await guest.stat(f"{place}/a/b")).is_dir


async def test_making_a_folder_where_a_file_stands_is_a_conflict(guest: Guest, place: str) -> None:
    await put(guest, f"{place}/file", b"")
    with pytest.raises(errors.Conflict):
        await guest.mkdir(f"{place}/file")


async def test_writing_over_a_folder_is_refused(guest: Guest, place: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        await put(guest, place, b"x")


async def test_removing(guest: Guest, place: str) -> None:
    await put(guest, f"{place}/tree/file", b"")
    with pytest.raises(errors.Conflict):
        await guest.remove(f"{place}/tree")
    await guest.remove(f"{place}/tree", recursive=True)
    with pytest.raises(errors.NotFound):
        await guest.remove(f"{place}/tree", recursive=True)
    with pytest.raises(errors.InvalidRequest):
        await guest.remove("/", recursive=True)
    assert await guest.list(place) == []


async def test_renaming_replaces_a_file(guest: Guest, place: str) -> None:
    await put(guest, f"{place}/one", b"1")
    await put(guest, f"{place}/two", b"2")
    await guest.rename(f"{place}/one", f"{place}/two")
    assert [entry.name for entry in await guest.list(place)] == ["two"]
    assert await get(guest, f"{place}/two") == b"1"
    with pytest.raises(errors.NotFound):
        await guest.rename(f"{place}/one", f"{place}/three")


async def test_listing_is_by_name_and_only_one_level_deep(guest: Guest, place: str) -> None:
    for name in ("c", "a/below", "b"):
        await put(guest, f"{place}/{name}", b"")
    listed = await guest.list(place)
    assert [(entry.name, entry.path, entry.is_dir) for entry in listed] == [
        ("a", f"{place}/a", True),
        ("b", f"{place}/b", False),
        ("c", f"{place}/c", False),
    ]
    with pytest.raises(errors.InvalidRequest):
        await guest.list(f"{place}/b")


async def test_a_walk_tells_parents_before_children_by_name(guest: Guest, place: str) -> None:
    for name in ("b/two", "b/one/deep", "a"):
        await put(guest, f"{place}/{name}", b"")
    async with guest.walk(place) as entries:
        paths = [entry.path.removeprefix(place) async for entry in entries]
    assert paths == ["/a", "/b", "/b/one", "/b/one/deep", "/b/two"]
    with pytest.raises(errors.NotFound):
        async with guest.walk(f"{place}/none"):
            pytest.fail("the block was entered")


async def test_a_walk_may_be_left_early(guest: Guest, place: str) -> None:
    await put(guest, f"{place}/file", b"")
    async with guest.walk(place) as entries:
        assert (await anext(entries)).name == "file"
    await guest.ping()


async def test_adopting_gives_commands_the_sandbox_s_id(guest: Guest) -> None:
    identity = Identity(new_sandbox_id())
    await guest.adopt(identity)
    assert (await run(guest, "printenv", "TORPOR_SANDBOX_ID")).stdout.decode() == identity.sandbox_id + "\n"


async def test_a_quiet_guest_runs_on_when_it_is_told(guest: Guest) -> None:
    await guest.quiesce(timeout_s=10)
    await guest.thaw()
    guest.release()
    assert (await run(guest, "echo", "on")).stdout == b"on\n"


async def test_a_call_under_way_when_the_line_closes_has_an_unknown_outcome(guest: Guest) -> None:
    call = asyncio.create_task(run(guest, "sleep", "1000"))
    await guest.ping()
    await guest.aclose()
    with pytest.raises(errors.OutcomeUnknown):
        await call
    assert guest.closed.is_set()
    with pytest.raises(errors.Unavailable):
        await guest.ping()


async def test_a_new_connection_takes_over_in_the_middle_of_everything(subject: Subject) -> None:
    guest, place = subject.guest, subject.place
    await put(guest, f"{place}/big", b"x" * 2_000_000)
    async with guest.read(f"{place}/big") as chunks:
        await anext(chunks)
        sleeper = asyncio.create_task(run(guest, "sleep", "1000", timeout_s=0.05))
        await guest.ping()
        await guest.aclose()
        async with await connect(subject.sock.dup(), timeout_s=10) as second:
            assert await get(second, f"{place}/big") == b"x" * 2_000_000
            assert (await run(second, "echo", "on")).stdout == b"on\n"
        with pytest.raises(errors.OutcomeUnknown):
            await _to_the_end(chunks)
        with pytest.raises(errors.OutcomeUnknown):
            await sleeper


async def _to_the_end(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass
