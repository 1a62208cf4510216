"""Jobs under the real agent, as an ordinary process of this machine: much output, little room, many of them."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_agent import Agent, run, running_agent, sh
from torpor import errors
from torpor.guest.client import Guest
from torpor.model.ids import JobId, new_job_id
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOrder, ExecOutcome, Job, JobOrder

EXEC_KEEPS = 16 * 1024 * 1024
STARTED_KEEPS = 256 * 1024 * 1024
# What an exec whose spool is full has written beyond what was read of it: its pipe is full, too.
PIPE = 256 * 1024


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    async with running_agent(tmp_path) as agent:
        yield agent


@pytest.fixture
async def guest(agent: Agent) -> AsyncIterator[Guest]:
    async with await agent.connect() as guest:
        yield guest


def counting_to(number: int) -> bytes:
    return "".join(f"{line}\n" for line in range(1, number + 1)).encode()


def count_to(number: int, **more: object) -> JobOrder:
    return JobOrder.model_validate({"job": new_job_id(), "argv": ["seq", str(number)], **more})


def id_of(order: ExecOrder) -> JobId:
    assert order.job is not None
    return JobId(order.job)


async def heard(frames: AsyncIterator[Frame]) -> tuple[bytes, ExecOutcome]:
    pieces: list[bytes] = []
    async for frame in frames:
        if frame.kind is Kind.EXIT:
            return b"".join(pieces), ExecOutcome.model_validate_json(frame.payload)
        pieces.append(frame.payload)
    raise AssertionError("it did not end")


async def listen(guest: Guest, job: JobId, at: int = 0) -> tuple[bytes, ExecOutcome]:
    async with guest.attach(job, at) as frames:
        return await heard(frames)


async def ended(guest: Guest, job: JobId) -> Job:
    """Return a job once it has ended, without listening to it."""
    while (told := await guest.job(job)).outcome is None:
        pass
    return told


async def is_stuck(guest: Guest, job: JobId) -> int:
    """Return how much a command has written that can write no more: nothing more came while others ran."""
    before = -1
    while (now := (await guest.job(job)).stdout_bytes) != before:
        before = now
        await sh(guest, "sleep 0.2")
    return before


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1_000_003, 100_000_000])
async def test_an_exec_s_output_is_exact_at_every_size_and_the_agent_s_memory_is_not_where_it_is(
    agent: Agent, guest: Guest, size: int
) -> None:
    await run(guest, "true", job=new_job_id())
    before = agent.peak_kib()
    ran = await run(guest, "head", "-c", str(size), "/dev/zero", job=new_job_id())
    assert (len(ran.stdout), ran.stdout.count(0), ran.stderr, ran.code) == (size, size, b"", 0)
    assert agent.peak_kib() - before < 2048


async def test_two_large_outputs_of_a_job_at_once_are_each_exact_and_in_order(guest: Guest) -> None:
    ran = await sh(guest, "seq 1 800000 & seq 1 800000 | tr 0-9 a-j >&2; wait", job=new_job_id())
    expected = counting_to(800_000)
    assert ran.stdout == expected
    assert ran.stderr == expected.translate(bytes.maketrans(b"0123456789", b"abcdefghij"))


async def test_single_bytes_and_nul_bytes_are_exact(guest: Guest) -> None:
    ran = await sh(guest, "for i in $(seq 500); do printf '\\000x'; done", job=new_job_id())
    assert ran.stdout == b"\0x" * 500


async def test_an_exec_that_nobody_hears_keeps_all_it_can_and_then_waits(agent: Agent, guest: Guest) -> None:
    wanted = ExecOrder(job=new_job_id(), argv=["seq", "4000000"])
    async with guest.exec(wanted):
        pass
    job = id_of(wanted)
    assert await is_stuck(guest, job) == EXEC_KEEPS
    told = await guest.job(job)
    assert (told.stdout_start, told.outcome) == (0, None)
    stdout, outcome = await listen(guest, job)
    assert stdout == counting_to(4_000_000)
    assert outcome.exit_code == 0
    assert agent.peak_kib() < 40_000


async def test_a_listener_who_lost_what_was_on_its_way_finds_it_again(guest: Guest) -> None:
    wanted = ExecOrder(job=new_job_id(), argv=["seq", "4000000"])
    expected = counting_to(4_000_000)
    received = bytearray()
    while len(received) < len(expected):
        order = wanted.model_copy(update={"stdout_from": len(received)})
        async with guest.exec(order) as frames:
            size = 0
            async for frame in frames:
                size += len(frame.payload)
                if size > 9_000_000:  # and of that the last million is lost on its way
                    break
                if frame.kind is Kind.STDOUT and size < 8_000_000:
                    received += frame.payload
                elif frame.kind is Kind.EXIT:
                    rest, _ = await listen(guest, id_of(wanted), len(received))
                    received += rest
    assert received == expected


async def test_a_slow_listener_slows_his_own_command_and_nobody_else(agent: Agent, guest: Guest) -> None:
    wanted = ExecOrder(job=new_job_id(), argv=["seq", "4000000"])
    async with guest.exec(wanted) as frames:
        first = await anext(frames)
        assert await is_stuck(guest, id_of(wanted)) < 2 * EXEC_KEEPS
        fast = await sh(guest, "seq 1000000", job=new_job_id())
        assert fast.stdout == counting_to(1_000_000)
        rest, _ = await heard(frames)
    assert first.payload + rest == counting_to(4_000_000)
    assert agent.peak_kib() < 40_000


async def test_a_started_job_never_waits_and_its_newest_output_is_kept(agent: Agent, guest: Guest) -> None:
    number = 34_000_000
    size = sum(9 * 10 ** (digits - 1) * (digits + 1) for digits in range(1, 8)) + (number - 9_999_999) * 9
    assert size > STARTED_KEEPS
    wanted = count_to(number)
    job = id_of(wanted)
    await guest.start(wanted)
    told = await ended(guest, job)
    assert (told.stdout_bytes, told.stdout_start) == (size, size - STARTED_KEEPS)
    with pytest.raises(errors.InvalidRequest, match=str(told.stdout_start)):
        await listen(guest, job, told.stdout_start - 1)
    async with guest.attach(job, told.stdout_start) as frames:
        received, tail, head = 0, b"", b""
        async for frame in frames:
            if frame.kind is Kind.STDOUT:
                received += len(frame.payload)
                head = head or frame.payload
                tail = (tail + frame.payload)[-9_000:]
    assert received == STARTED_KEEPS
    lines = head.split(b"\n")[1:-1]
    assert [int(line) for line in lines] == list(range(int(lines[0]), int(lines[0]) + len(lines)))
    assert tail == b"".join(b"%d\n" % line for line in range(number - 999, number + 1))
    assert agent.peak_kib() < 40_000


async def test_a_started_job_waits_for_a_listener_who_is_behind(guest: Guest) -> None:
    wanted = JobOrder(job=new_job_id(), argv=["head", "-c", "300000000", "/dev/zero"])
    await guest.start(wanted)
    async with guest.attach(id_of(wanted)) as frames:
        received = len((await anext(frames)).payload)
        assert await is_stuck(guest, id_of(wanted)) <= STARTED_KEEPS
        async for frame in frames:
            received += len(frame.payload) if frame.kind is Kind.STDOUT else 0
    assert received == 300_000_000


@pytest.mark.parametrize("limit", [0, 10_000, 1_000_000])
async def test_without_room_on_the_disk_an_exec_loses_nothing(agent: Agent, guest: Guest, limit: int) -> None:
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (limit, limit))
    wanted = ExecOrder(job=new_job_id(), argv=["seq", "1000000"])
    async with guest.exec(wanted):
        pass
    # A full pipe, what is in memory, and the file as large as it could get.
    assert await is_stuck(guest, id_of(wanted)) <= limit + 3 * 65_536
    stdout, outcome = await listen(guest, id_of(wanted))
    assert (stdout, outcome.exit_code) == (counting_to(1_000_000), 0)
    assert (await sh(guest, "seq 1000000", job=new_job_id())).stdout == counting_to(1_000_000)
    assert agent.peak_kib() < 40_000


@pytest.mark.parametrize("limit", [0, 1_000_000])
async def test_without_room_on_the_disk_a_started_job_goes_on_and_tells_what_it_keeps(
    agent: Agent, guest: Guest, limit: int
) -> None:
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (limit, limit))
    wanted, expected = count_to(1_000_000), counting_to(1_000_000)
    await guest.start(wanted)
    told = await ended(guest, id_of(wanted))
    assert told.stdout_bytes == len(expected)
    assert max(limit - 131_072, 32_768) <= told.stdout_bytes - told.stdout_start <= limit + 131_072
    assert (await listen(guest, id_of(wanted), told.stdout_start))[0] == expected[told.stdout_start :]


async def test_a_job_s_background_children_neither_hold_it_open_nor_are_they_stopped(
    guest: Guest, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    script = f"(head -c 3000000 /dev/zero; echo $? > {tmp_path}/fifo) & echo started"
    ran = await sh(guest, script, job=new_job_id())
    assert (ran.code, ran.stdout[:8]) == (0, b"started\n")
    assert (await run(guest, "cat", str(tmp_path / "fifo"))).stdout == b"0\n"


async def test_the_last_words_of_a_job_are_kept_even_if_others_write_on(guest: Guest) -> None:
    ran = await sh(guest, "yes & echo $!; head -c 200000 /dev/zero | tr '\\0' z >&2", job=new_job_id())
    try:
        assert ran.stderr == b"z" * 200_000
    finally:
        os.kill(int(ran.stdout.split()[0]), 9)


async def test_a_job_that_ends_while_its_spool_is_full_has_ended_and_keeps_its_last_words(guest: Guest) -> None:
    size = EXEC_KEEPS + 50_000
    wanted = ExecOrder(job=new_job_id(), argv=["head", "-c", str(size), "/dev/zero"])
    async with guest.exec(wanted):
        pass
    await ended(guest, id_of(wanted))
    stdout, _ = await listen(guest, id_of(wanted))
    assert len(stdout) == size


async def test_killing_a_job_kills_its_whole_tree(guest: Guest, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    # The reader of the FIFO finds its end once nobody holds it open for writing any more.
    order = JobOrder(job=new_job_id(), argv=["sh", "-c", f"(setsid sleep 1000 > {tmp_path}/fifo) & sleep 1000"])
    await guest.start(order)
    reading = asyncio.create_task(run(guest, "cat", str(tmp_path / "fifo")))
    await guest.ping()
    await asyncio.to_thread(_wait_opened, tmp_path / "fifo")
    await guest.signal(id_of(order), "SIGKILL")
    assert (await reading).stdout == b""


def _wait_opened(fifo: Path) -> None:
    with fifo.open("wb"):  # returns once somebody has it open for reading
        pass


async def test_of_the_jobs_that_have_ended_the_newest_are_remembered_and_none_is_run_again(guest: Guest) -> None:
    orders = [ExecOrder(job=new_job_id(), argv=["echo", str(number)]) for number in range(70)]
    for order in orders:
        await run(guest, *order.argv, job=order.job)
    assert [one.id for one in await guest.jobs()] == [order.job for order in orders[-64:]]
    with pytest.raises(errors.NotFound, match="not remembered any more"):
        await run(guest, *orders[0].argv, job=orders[0].job)
    with pytest.raises(errors.NotFound, match="not remembered any more"):
        await guest.job(id_of(orders[0]))
    assert (await run(guest, *orders[-1].argv, job=orders[-1].job)).stdout == b"69\n"


async def test_a_job_that_somebody_listens_to_is_not_forgotten(guest: Guest) -> None:
    wanted = ExecOrder(job=new_job_id(), argv=["head", "-c", "1000000", "/dev/zero"])
    async with guest.exec(wanted) as frames:
        first = await anext(frames)
        for _ in range(70):
            await run(guest, "true", job=new_job_id())
        assert wanted.job in [one.id for one in await guest.jobs()]
        rest, outcome = await heard(frames)
    assert (len(first.payload) + len(rest), outcome.exit_code) == (1_000_000, 0)


async def test_output_of_ended_jobs_is_forgotten_when_it_is_much(agent: Agent, guest: Guest) -> None:
    before = len(_open_files(agent.pid))
    orders = [JobOrder(job=new_job_id(), argv=["head", "-c", "200000000", "/dev/zero"]) for _ in range(3)]
    for order in orders:
        await guest.start(order)
        assert (await ended(guest, id_of(order))).stdout_bytes == 200_000_000
    await guest.ping()
    assert [one.id for one in await guest.jobs()] == [order.job for order in orders[1:]]
    assert len(_open_files(agent.pid)) == before + 2


def _open_files(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


async def test_commands_without_an_id_are_listed_while_they_run(guest: Guest) -> None:
    async with guest.exec(ExecOrder(argv=["/bin/sh", "-c", "echo on; sleep 1000"])) as frames:
        await anext(frames)
        (told,) = await guest.jobs()
        assert (told.command, told.waited_for, told.outcome) == ("echo on; sleep 1000", True, None)
        assert told.id.startswith("exec-")
    assert await guest.jobs() == []


async def test_a_command_without_an_id_that_outlives_its_line_is_still_listed(agent: Agent) -> None:
    async with await agent.connect() as first:
        async with first.exec(ExecOrder(argv=["sleep", "1000"])):
            await first.ping()
            await first.aclose()
        async with await agent.connect() as second:
            (told,) = await second.jobs()
            assert told.command == "sleep 1000"
            assert told.pid is not None
            os.kill(told.pid, 9)
            while await second.jobs():
                pass


async def test_input_is_taken_as_it_is_read_and_the_rest_is_told_when_the_job_ends(guest: Guest) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 100_000

    wanted = JobOrder(job=new_job_id(), argv=["head", "-c", "1000000"], open_stdin=True)
    await guest.start(wanted)
    taken = await guest.feed(id_of(wanted), chunks())
    assert 1_000_000 <= taken < 4_000_000
    stdout, outcome = await listen(guest, id_of(wanted))
    assert (stdout, outcome.exit_code) == (b"x" * 1_000_000, 0)


async def test_a_hundred_jobs_at_once_have_the_right_ends(guest: Guest) -> None:
    async def one(code: int) -> int:
        ran = await sh(guest, f"echo {code}; exit {code}", job=new_job_id())
        assert ran.stdout == b"%d\n" % code
        return ran.code

    assert await asyncio.gather(*(one(code) for code in range(100))) == list(range(100))


@pytest.mark.parametrize(
    "wrong", [{"argv": []}, {"argv": ["a\0b"]}, {"env": {"A=B": "x"}}, {"user": "no-such-user"}, {"timeout_s": -1}]
)
async def test_a_job_whose_order_makes_no_sense_is_refused_and_there_is_none(
    guest: Guest, wrong: dict[str, object]
) -> None:
    with pytest.raises(errors.InvalidRequest):
        await guest.start(JobOrder.model_validate({"job": new_job_id(), "argv": ["true"]} | wrong))
    assert await guest.jobs() == []
