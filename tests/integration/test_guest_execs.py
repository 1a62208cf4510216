"""Commands under the real agent, as an ordinary process of this machine."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from guest_agent import Agent, is_there, put, run, running_agent, sh, wait_gone
from torpor import errors
from torpor.guest.client import Guest
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(params=["cgroups", "sessions"])
async def agent(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Agent]:
    async with running_agent(tmp_path, cgroups=request.param == "cgroups") as agent:
        yield agent


@pytest.fixture
async def guest(agent: Agent) -> AsyncIterator[Guest]:
    async with await agent.connect() as guest:
        yield guest


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 262_144, 262_145])
async def test_output_is_exact_at_every_size(guest: Guest, size: int) -> None:
    ran = await run(guest, "head", "-c", str(size), "/dev/zero")
    assert (ran.code, ran.stdout, ran.stderr) == (0, bytes(size), b"")


async def test_two_large_outputs_at_once_are_each_exact_and_in_order(guest: Guest) -> None:
    ran = await sh(guest, "seq 1 1500000 & seq 1 1500000 | tr 0-9 a-j >&2; wait")
    expected = "".join(f"{number}\n" for number in range(1, 1_500_001)).encode()
    assert ran.code == 0
    assert ran.stdout == expected
    assert ran.stderr == expected.translate(bytes.maketrans(b"0123456789", b"abcdefghij"))


async def test_exit_codes_and_signals(guest: Guest, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo no first line; exit 5\n")
    assert (await run(guest, str(plain))).code == 126
    plain.chmod(0o755)
    assert (await run(guest, str(plain), "x")).stdout == b"no first line\n"
    assert (await run(guest, str(plain))).code == 5
    lost = tmp_path / "lost"
    lost.write_text("#!/no/such/interpreter\n")
    lost.chmod(0o755)
    assert (await run(guest, str(lost))).code == 127
    assert (await run(guest, str(tmp_path))).code == 126
    assert (await run(guest, "")).code == 127
    assert (await sh(guest, "exit 300")).code == 44
    assert (await sh(guest, "kill -TERM $$")).outcome.signal == "SIGTERM"
    assert (await sh(guest, "kill -TERM $$")).code == 143


async def test_a_command_is_found_on_the_path_it_is_given(guest: Guest, tmp_path: Path) -> None:
    for folder, mode in (("denied", 0o644), ("allowed", 0o755)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text(f"#!/bin/sh\necho {folder}\n")
        (tmp_path / folder / "tool").chmod(mode)
    path = f"{tmp_path}/none:{tmp_path}/denied:{tmp_path}/allowed"
    assert (await run(guest, "tool", env={"PATH": path})).stdout == b"allowed\n"
    assert (await run(guest, "tool", env={"PATH": f"{tmp_path}/denied"})).code == 126
    assert (await run(guest, "tool", env={"PATH": ""}, cwd=str(tmp_path / "allowed"))).stdout == b"allowed\n"


async def test_200_short_commands_8_at_a_time_have_the_right_codes(guest: Guest) -> None:
    codes = [random.Random(7).randrange(256) for _ in range(200)]
    turns = asyncio.Semaphore(8)

    async def one(code: int) -> int:
        async with turns:
            return (await sh(guest, f"exit {code}")).code

    assert await asyncio.gather(*(one(code) for code in codes)) == codes


async def test_nothing_of_the_agent_is_in_a_command(guest: Guest, agent: Agent) -> None:
    ran = await run(guest, "env")
    names = {line.split("=")[0] for line in ran.stdout.decode().splitlines()}
    assert names == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG"}
    open_files = await run(guest, "ls", "/proc/self/fd")
    assert open_files.stdout.split() == [b"0", b"1", b"2", b"3"]  # the last one is ls reading the folder
    facts = (await sh(guest, "cat /proc/self/stat; cat /proc/self/status")).stdout.decode()
    assert int(facts.split()[5]) != os.getsid(agent.pid)
    # Python ignores SIGPIPE and SIGXFSZ; a command must not.
    (ignored,) = re.findall(r"^SigIgn:\t([0-9a-f]{16})$", facts, re.MULTILINE)
    # (`make` hands on the C library's own signals 32 and 33 as ignored, and nobody can change that.)
    assert int(ignored, 16) & 0x7FFFFFFF == 0
    assert "SigBlk:\t0000000000000000" in facts


async def test_stdin_that_is_not_read_is_no_error(guest: Guest) -> None:
    data = os.urandom(2_000_000)
    assert (await run(guest, "true", stdin=data)).code == 0
    assert (await run(guest, "head", "-c", "10", stdin=data)).stdout == data[:10]
    assert (await sh(guest, "exec <&-; echo closed", stdin=data)).stdout == b"closed\n"
    assert (await run(guest, "sh", "-c", "sleep 0.1; cat", stdin=data)).stdout == data


async def test_without_stdin_a_command_reads_end_of_file(guest: Guest) -> None:
    assert (await run(guest, "cat")).stdout == b""


async def test_a_timeout_kills_the_whole_tree_and_keeps_what_was_written(guest: Guest) -> None:
    script = "sleep 1000 & echo $!; (sh -c 'sleep 1000' & echo $!); sleep 1000"
    ran = await sh(guest, script, timeout_s=0.3)
    assert (ran.code, ran.outcome.signal, ran.outcome.timed_out) == (137, "SIGKILL", True)
    assert 300 <= ran.outcome.duration_ms < 10_000
    for pid in ran.stdout.split():
        await wait_gone(guest, int(pid))


@pytest.mark.parametrize("agent", ["cgroups"], indirect=True)
async def test_a_timeout_kills_who_has_left_session_and_parents(guest: Guest, agent: Agent) -> None:
    if agent.cgroup is None:
        pytest.skip("no cgroup v2 here")
    ran = await sh(guest, "(setsid sh -c 'echo $$; exec sleep 1000' &); sleep 1000", timeout_s=0.3)
    await wait_gone(guest, int(ran.stdout))


async def test_leaving_early_kills_the_whole_tree(guest: Guest) -> None:
    order = ExecOrder(argv=["sh", "-c", "setsid sleep 1000 & echo $!; sleep 1000"])
    async with guest.exec(order) as frames:
        pid = int((await anext(frames)).payload)
        assert is_there(pid)
    await wait_gone(guest, pid)


async def test_background_children_neither_hold_the_command_open_nor_are_they_stopped(
    guest: Guest, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    # What it writes to the inherited stdout is far more than a pipe holds.
    ran = await sh(guest, f"(head -c 3000000 /dev/zero; echo $? > {tmp_path}/fifo) & echo started")
    assert (ran.code, ran.stdout[:8]) == (0, b"started\n")
    assert (await run(guest, "cat", str(tmp_path / "fifo"))).stdout == b"0\n"


async def test_the_last_words_of_a_command_are_delivered_even_if_others_write_on(guest: Guest) -> None:
    ran = await sh(guest, "yes & echo $!; head -c 200000 /dev/zero | tr '\\0' z >&2")
    try:
        assert ran.stderr == b"z" * 200_000
        assert ran.code == 0
    finally:
        os.kill(int(ran.stdout.split()[0]), 9)


async def test_a_thousand_orphans_leave_no_zombie(guest: Guest, agent: Agent) -> None:
    # Each holds the pipe to cat, so the command ends after the last of them.
    ran = await sh(guest, "for i in $(seq 1000); do (sh -c 'echo x' &); done | wc -l")
    assert ran.stdout.strip() == b"1000"
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    for _ in range(2000):
        if not children.read_text():
            return
        await guest.ping()
    raise AssertionError(f"children left: {children.read_text()}")


async def test_a_reader_that_stops_blocks_its_own_command_only(guest: Guest, agent: Agent) -> None:
    before = agent.peak_kib()
    async with guest.exec(ExecOrder(argv=["head", "-c", "20000000", "/dev/zero"])) as frames:
        first = await anext(frames)
        for _ in range(20):
            assert (await sh(guest, "echo on; exit 3")).code == 3
        rest = [frame async for frame in frames]
    assert len(first.payload) + sum(len(frame.payload) for frame in rest[:-1]) == 20_000_000
    assert rest[-1].kind is Kind.EXIT
    assert agent.peak_kib() - before < 4096


async def test_groups_are_removed_when_they_are_empty(guest: Guest, agent: Agent, tmp_path: Path) -> None:
    if agent.cgroup is None:
        pytest.skip("no cgroup v2 here")
    os.mkfifo(tmp_path / "fifo")
    await sh(guest, f"(read line < {tmp_path}/fifo) > /dev/null 2>&1 &")
    used = [group for group in agent.cgroup.glob("user/exec-*") if (group / "cgroup.procs").read_text()]
    assert len(used) == 1
    await sh(guest, f"echo go > {tmp_path}/fifo")
    for _ in range(2000):
        if not used[0].exists():
            return
        await guest.ping()
    raise AssertionError("the group is still there")


async def test_cwd(guest: Guest, tmp_path: Path) -> None:
    odd = tmp_path / "a b\N{BLACK STAR}"
    odd.mkdir()
    assert (await run(guest, "pwd", cwd=str(odd))).stdout.decode() == f"{odd}\n"
    odd.rmdir()
    (tmp_path / "file").touch()
    for cwd in (str(odd), str(tmp_path / "file"), "relative"):
        with pytest.raises(errors.InvalidRequest, match="cwd"):
            await run(guest, "pwd", cwd=cwd)


@pytest.mark.parametrize(
    "wrong", [{"argv": []}, {"argv": ["a\0b"]}, {"env": {"A=B": "x"}}, {"user": "no-such-user"}, {"timeout_s": -1}]
)
async def test_a_request_that_makes_no_sense_is_refused(guest: Guest, wrong: dict[str, object]) -> None:
    order = ExecOrder.model_validate({"argv": ["true"]} | wrong)
    with pytest.raises(errors.InvalidRequest):
        async with guest.exec(order) as frames:
            await anext(frames)


async def test_stdin_that_is_no_base64_is_refused(guest: Guest) -> None:
    with pytest.raises(errors.InvalidRequest, match="base64"):
        async with guest.exec(ExecOrder(argv=["cat"], stdin="!")):
            pytest.fail("the block was entered")


@as_root
async def test_another_user_has_his_own_everything(guest: Guest) -> None:
    script = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; grep -E '^(Uid|Gid|CapPrm|CapEff)' /proc/self/status"
    ran = await sh(guest, script, user="nobody", cwd="/")
    lines = ran.stdout.decode().splitlines()
    assert lines[:3] == ["65534", "65534", "65534"]
    assert lines[3].endswith(" nobody nobody")
    assert {word for line in lines[4:6] for word in line.split()[1:]} == {"65534"}
    assert {int(line.split()[1], 16) for line in lines[6:]} == {0}
    root = await sh(guest, "id -u; echo $HOME $USER $PATH")
    assert root.stdout == b"0\n/root root /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    assert (await run(guest, "id", "-un", user="65534")).stdout == b"nobody\n"


@as_root
async def test_another_user_may_not_enter_what_is_closed_to_him(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    with pytest.raises(errors.InvalidRequest, match="cwd"):
        await run(guest, "pwd", cwd=str(tmp_path / "closed"), user="nobody")
    program = tmp_path / "closed" / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert (await run(guest, str(program), user="nobody", cwd="/")).code == 126


async def test_a_command_is_left_running_when_the_line_is_taken_over(agent: Agent, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    async with await agent.connect() as first:
        order = ExecOrder(argv=["sh", "-c", f"echo on; head -c 3000000 /dev/zero; cat; echo done > {tmp_path}/fifo"])
        order.stdin = base64.b64encode(b"x" * 1_000_000).decode()
        async with first.exec(order) as frames:
            await anext(frames)
            await first.aclose()
            async with await agent.connect() as second:
                assert (await run(second, "cat", str(tmp_path / "fifo"))).stdout == b"done\n"


async def test_a_quiet_guest_stands_still(agent: Agent, guest: Guest, tmp_path: Path) -> None:
    if agent.cgroup is None:
        pytest.skip("no cgroup v2 here")
    await sh(guest, "(while :; do :; done) > /dev/null 2>&1 & echo $!")
    await guest.quiesce(timeout_s=10)
    events = (agent.cgroup / "user/cgroup.events").read_text()
    assert "frozen 1" in events
    guest.release()
    with pytest.raises(errors.Busy):
        await run(guest, "true")
    await guest.thaw()
    assert "frozen 0" in (agent.cgroup / "user/cgroup.events").read_text()
    assert (await run(guest, "true")).code == 0


async def test_a_long_environment_reaches_the_command(guest: Guest, tmp_path: Path) -> None:
    env = {f"V{number}": "\N{BLACK STAR}" * 1000 for number in range(300)}
    ran = await sh(guest, "env | grep -c '^V'", env=env)
    assert ran.stdout == b"300\n"
    assert (await run(guest, "true", env={"A": "x" * 1_000_000})).code == 126


async def test_files_put_by_the_host_can_be_run(guest: Guest, tmp_path: Path) -> None:
    await put(guest, f"{tmp_path}/program", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert stat.S_IMODE((tmp_path / "program").stat().st_mode) == 0o755
    assert (await run(guest, f"{tmp_path}/program")).stdout == b"ran\n"


@pytest.fixture
def away(agent: Agent) -> Iterator[Path]:
    """A control group beside those of the commands, into which root may lead processes."""
    if agent.cgroup is None:
        pytest.skip("there are no control groups")
    path = agent.cgroup / "away"
    path.mkdir()
    yield path
    path.rmdir()


async def test_a_command_that_root_led_out_of_its_group_still_ends_at_its_timeout(guest: Guest, away: Path) -> None:
    ran = await sh(guest, f"echo $$ > {away}/cgroup.procs; exec sleep 60", timeout_s=0.5)
    assert ran.outcome.timed_out
    assert ran.outcome.signal == "SIGKILL"


async def test_a_command_may_remove_its_own_group_and_nothing_else_notices(guest: Guest, away: Path) -> None:
    name = "$(basename $(grep ^0:: /proc/self/cgroup))"
    leave = f"own={away.parent}/user/{name}; echo $$ > {away}/cgroup.procs; "
    assert (await sh(guest, leave + "rmdir $own && exit 3")).code == 3
    late = await sh(guest, leave + "rmdir $own && exec sleep 60", timeout_s=1)
    assert late.outcome.timed_out
    assert (await sh(guest, "echo still here")).stdout == b"still here\n"


async def test_groups_made_ahead_that_root_removes_cost_one_refusal_each_and_no_more(
    agent: Agent, guest: Guest
) -> None:
    if agent.cgroup is None:
        pytest.skip("there are no control groups")
    await guest.ping()
    for spare in (agent.cgroup / "user").glob("exec-*"):
        spare.rmdir()
    for _ in range(2):
        with pytest.raises(errors.Busy):
            await sh(guest, "true")
    assert (await sh(guest, "exit 4")).code == 4
