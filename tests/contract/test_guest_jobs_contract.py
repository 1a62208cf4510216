"""What every guest's agent does with commands that have an id, the real one and the fake one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guest_agent import get, run
from guest_subject import KINDS, Subject, subject_of
from torpor import errors
from torpor.guest.client import Guest
from torpor.kit.shielded import wait_ended
from torpor.model.ids import JobId, new_job_id
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOrder, ExecOutcome, Job, JobOrder

Heard = tuple[bytes, bytes, ExecOutcome]


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with subject_of(request.param, tmp_path) as subject:
        yield subject


@pytest.fixture
def guest(subject: Subject) -> Guest:
    return subject.guest


def order(script: str, **more: object) -> JobOrder:
    return JobOrder.model_validate({"job": new_job_id(), "argv": ["/bin/sh", "-c", script], **more})


def waited(script: str, **more: object) -> ExecOrder:
    return ExecOrder.model_validate({"job": new_job_id(), "argv": ["/bin/sh", "-c", script], **more})


def id_of(order: ExecOrder) -> JobId:
    assert order.job is not None
    return JobId(order.job)


async def heard(frames: AsyncIterator[Frame]) -> Heard:
    """Return what a listener heard, to the end."""
    written = {Kind.STDOUT: b"", Kind.STDERR: b""}
    async for frame in frames:
        if frame.kind is Kind.EXIT:
            return written[Kind.STDOUT], written[Kind.STDERR], ExecOutcome.model_validate_json(frame.payload)
        written[frame.kind] += frame.payload
    raise AssertionError("it did not end")


async def listen(guest: Guest, job: JobId, stdout_from: int = 0, stderr_from: int = 0) -> Heard:
    async with guest.attach(job, stdout_from, stderr_from) as frames:
        return await heard(frames)


async def execute(guest: Guest, order: ExecOrder) -> Heard:
    async with guest.exec(order) as frames:
        return await heard(frames)


async def ended(guest: Guest, job: JobId) -> Job:
    """Return a job once it has ended, without listening to it."""
    while (told := await guest.job(job)).outcome is None:
        pass
    return told


async def runs(guest: Guest, subject: Subject) -> int:
    """Return how often `counting` has run."""
    if guest.features["agent"] == "fake":
        return int((await run(guest, "count", "runs")).stdout) - 1
    return (await get(guest, f"{subject.place}/runs")).count(b"ran")


def counting(guest: Guest, subject: Subject) -> str:
    """Return a script that can be asked how often it has run."""
    return "count runs" if guest.features["agent"] == "fake" else f"echo ran >> {subject.place}/runs"


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_a_job_runs_without_anybody_who_listens_and_is_described(guest: Guest) -> None:
    wanted = order("echo out; echo error >&2; exit 7", user="root")
    began = await guest.start(wanted)
    assert (began.id, began.waited_for, began.user) == (wanted.job, False, "root")
    assert began.command == "echo out; echo error >&2; exit 7"
    told = await ended(guest, id_of(wanted))
    assert told.outcome is not None
    assert (told.outcome.exit_code, told.outcome.signal, told.outcome.timed_out) == (7, None, False)
    assert (told.stdout_bytes, told.stderr_bytes, told.stdout_start, told.stderr_start) == (4, 6, 0, 0)
    assert told.pid is None
    assert await guest.jobs() == [told]


@pytest.mark.parametrize("at", [0, 3, 6])
async def test_output_is_told_from_any_offset_however_often_one_asks(guest: Guest, at: int) -> None:
    wanted = order("echo hello; echo oh >&2; exit 3")
    await guest.start(wanted)
    await ended(guest, id_of(wanted))
    for _ in range(2):
        stdout, stderr, outcome = await listen(guest, id_of(wanted), at, 3)
        assert (stdout, stderr, outcome.exit_code) == (b"hello\n"[at:], b"", 3)


async def test_offsets_beyond_what_was_written_are_refused(guest: Guest) -> None:
    wanted = order("echo hello")
    await guest.start(wanted)
    await ended(guest, id_of(wanted))
    for offsets in ((7, 0), (0, 1)):
        with pytest.raises(errors.InvalidRequest, match="_from is"):
            await listen(guest, id_of(wanted), *offsets)


async def test_what_there_is_not_is_not_found_by_name(guest: Guest) -> None:
    job = new_job_id()
    for ask in (listen(guest, job), guest.signal(job, "SIGTERM"), guest.feed(job, pieces(b"x"))):
        with pytest.raises(errors.NotFound, match=job):
            await ask
    with pytest.raises(errors.NotFound, match=job):
        await guest.job(job)
    assert await guest.jobs() == []


async def test_two_listeners_hear_the_same(guest: Guest) -> None:
    wanted = order("sleep 0.05; echo one; sleep 0.05; echo two; exit 5")
    await guest.start(wanted)
    both = await asyncio.gather(*(listen(guest, id_of(wanted)) for _ in range(2)))
    assert both[0] == both[1]
    assert (both[0][0], both[0][2].exit_code) == (b"one\ntwo\n", 5)


async def test_an_exec_that_comes_again_finds_the_command_and_does_not_run_it_twice(
    guest: Guest, subject: Subject
) -> None:
    wanted = waited(counting(guest, subject) + "; exit 4")
    for _ in range(3):
        assert (await execute(guest, wanted))[2].exit_code == 4
    assert await runs(guest, subject) == 1


async def test_a_start_that_comes_again_finds_the_command_and_does_not_run_it_twice(
    guest: Guest, subject: Subject
) -> None:
    wanted = order(counting(guest, subject) + "; exit 4")
    for _ in range(3):
        assert (await guest.start(wanted)).id == wanted.job
    assert (await listen(guest, id_of(wanted)))[2].exit_code == 4
    assert await runs(guest, subject) == 1


async def test_an_exec_that_comes_again_goes_on_at_its_offsets(guest: Guest) -> None:
    wanted = waited("echo hello; echo oh >&2; sleep 0.05; echo world")
    async with guest.exec(wanted) as frames:
        for _ in range(2):
            await anext(frames)
    again = wanted.model_copy(update={"stdout_from": 6, "stderr_from": 1})
    assert (await execute(guest, again))[:2] == (b"world\n", b"h\n")


async def test_an_exec_that_was_begun_elsewhere_is_not_begun_here(guest: Guest) -> None:
    """Who has heard some of it already wants the rest of that run, not another run."""
    with pytest.raises(errors.NotFound):
        await execute(guest, waited("echo hello", stdout_from=3))
    assert await guest.jobs() == []


@pytest.mark.parametrize(
    "other", [{"argv": ["true"]}, {"env": {"A": "1"}}, {"cwd": "/"}, {"timeout_s": 9.0}, {"stdin": "eA=="}]
)
async def test_another_order_under_the_same_id_is_a_conflict(guest: Guest, other: dict[str, object]) -> None:
    first = waited("sleep 1000")
    async with guest.exec(first):
        with pytest.raises(errors.Conflict, match=id_of(first)):
            await execute(guest, first.model_copy(update=other))
        with pytest.raises(errors.Conflict, match=id_of(first)):
            await guest.start(JobOrder(job=first.job, argv=first.argv))
        await guest.signal(id_of(first), "SIGKILL")


async def test_an_order_with_another_input_is_another_order(guest: Guest) -> None:
    first = waited("cat", stdin=base64.b64encode(b"one").decode())
    other = first.model_copy(update={"stdin": base64.b64encode(b"two").decode()})
    assert (await execute(guest, first))[0] == b"one"
    with pytest.raises(errors.Conflict, match=id_of(first)):
        await execute(guest, other)
    assert (await execute(guest, first))[0] == b"one"


async def test_hanging_up_leaves_a_job_alone(guest: Guest) -> None:
    wanted = waited("sleep 0.1; echo on; exit 6")
    async with guest.exec(wanted):
        pass
    listening = asyncio.create_task(listen(guest, id_of(wanted)))
    await guest.ping()
    listening.cancel()
    await wait_ended(listening)
    stdout, _, outcome = await execute(guest, wanted)
    assert (stdout, outcome.exit_code) == (b"on\n", 6)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
async def test_a_signal_ends_a_job_and_is_told(guest: Guest, name: str) -> None:
    wanted = JobOrder(job=new_job_id(), argv=["sleep", "1000"])  # a shell that has just begun may miss a SIGINT
    await guest.start(wanted)
    listening = asyncio.create_task(listen(guest, id_of(wanted)))
    await guest.signal(id_of(wanted), name)
    outcome = (await listening)[2]
    assert (outcome.signal, outcome.exit_code > 128, outcome.timed_out) == (name, True, False)
    with pytest.raises(errors.Conflict, match="has ended"):
        await guest.signal(id_of(wanted), name)


async def test_a_signal_that_there_is_not_is_refused(guest: Guest) -> None:
    wanted = order("sleep 1000")
    await guest.start(wanted)
    with pytest.raises(errors.InvalidRequest, match="SIGNONE"):
        await guest.signal(id_of(wanted), "SIGNONE")
    await guest.signal(id_of(wanted), "SIGKILL")


async def test_a_timeout_needs_nobody_who_listens(guest: Guest) -> None:
    wanted = order("echo before; sleep 1000", timeout_s=0.1)
    await guest.start(wanted)
    told = await ended(guest, id_of(wanted))
    assert told.outcome is not None
    assert (told.outcome.timed_out, told.outcome.signal) == (True, "SIGKILL")
    assert (await listen(guest, id_of(wanted)))[0] == b"before\n"


async def test_a_program_that_is_not_there_is_a_job_that_has_ended(guest: Guest) -> None:
    wanted = ExecOrder(job=new_job_id(), argv=["no-such-command"])
    for _ in range(2):
        _, stderr, outcome = await execute(guest, wanted)
        assert outcome.exit_code == 127
        assert b"not found" in stderr


async def test_an_order_that_is_refused_leaves_no_job(guest: Guest, subject: Subject) -> None:
    wanted = order("true", cwd=f"{subject.place}/nowhere")
    with pytest.raises(errors.InvalidRequest, match="nowhere"):
        await guest.start(wanted)
    assert await guest.jobs() == []
    await guest.mkdir(f"{subject.place}/nowhere")
    await guest.start(wanted)
    assert (await listen(guest, id_of(wanted)))[2].exit_code == 0


@pytest.mark.parametrize("size", [1, 65_537, 1_000_003])
async def test_an_exec_s_input_is_exact_however_often_it_is_sent(guest: Guest, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    wanted = ExecOrder(job=new_job_id(), argv=["cat"], stdin=base64.b64encode(data).decode())
    for _ in range(2):
        stdout, _, outcome = await execute(guest, wanted)
        assert stdout == data
        assert outcome.exit_code == 0


async def test_input_is_given_in_parts_until_it_is_closed(guest: Guest) -> None:
    wanted = JobOrder(job=new_job_id(), argv=["cat"], open_stdin=True, stdin=base64.b64encode(b"first ").decode())
    await guest.start(wanted)
    await guest.start(wanted)
    job = id_of(wanted)
    assert await guest.feed(job, pieces(b"second ", b"third ")) == 13
    assert await guest.feed(job, pieces()) == 0
    assert await guest.feed(job, pieces(b"last"), close=True) == 4
    assert (await listen(guest, job))[0] == b"first second third last"
    with pytest.raises(errors.Conflict, match=job):
        await guest.feed(job, pieces(b"more"))


async def test_input_for_a_job_that_takes_none_is_a_conflict(guest: Guest) -> None:
    for wanted in (order("sleep 1000"), order("sleep 1000", stdin="eA==")):
        await guest.start(wanted)
        with pytest.raises(errors.Conflict, match=id_of(wanted)):
            await guest.feed(id_of(wanted), pieces(b"x"))
        await guest.signal(id_of(wanted), "SIGKILL")


async def test_input_that_somebody_else_is_giving_is_a_conflict(guest: Guest) -> None:
    given, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"one "
        given.set()
        await goes_on.wait()
        yield b"two"

    wanted = JobOrder(job=new_job_id(), argv=["cat"], open_stdin=True)
    await guest.start(wanted)
    first = asyncio.create_task(guest.feed(id_of(wanted), slow(), close=True))
    await given.wait()
    await guest.ping()
    with pytest.raises(errors.Conflict, match="somebody else"):
        await guest.feed(id_of(wanted), pieces(b"x"))
    goes_on.set()
    assert await first == 7
    assert (await listen(guest, id_of(wanted)))[0] == b"one two"


async def test_jobs_are_listed_oldest_first(guest: Guest) -> None:
    wanted = [order(f"exit {code}") for code in range(5)]
    for one in wanted:
        await guest.start(one)
        await ended(guest, id_of(one))
    listed = await guest.jobs()
    assert [one.id for one in listed] == [one.job for one in wanted]
    assert [one.outcome.exit_code for one in listed if one.outcome] == list(range(5))


async def test_a_job_outlives_the_line_and_its_true_end_is_told_over_the_next_one(subject: Subject) -> None:
    wanted = waited("echo before; sleep 0.2; echo after; exit 9")
    async with subject.guest.exec(wanted) as frames:
        assert (await anext(frames)).payload == b"before\n"
        guest = await subject.come_anew()
        with pytest.raises(errors.OutcomeUnknown):
            await anext(frames)
    stdout, _, outcome = await listen(guest, id_of(wanted), 7)
    assert (stdout, outcome.exit_code) == (b"after\n", 9)
    assert (await execute(guest, wanted))[0] == b"before\nafter\n"


async def test_input_that_was_under_way_when_the_line_was_lost_is_sent_again_and_taken_once(subject: Subject) -> None:
    data = bytes(range(256)) * 8000
    script = "sleep 0.1; cat"
    wanted = waited(script, stdin=base64.b64encode(data).decode())
    executing = asyncio.create_task(execute(subject.guest, wanted))
    await subject.guest.ping()
    guest = await subject.come_anew()
    with pytest.raises(errors.OutcomeUnknown):
        await executing
    assert (await execute(guest, wanted))[0] == data


async def test_jobs_go_on_over_a_hibernation_with_who_listens(subject: Subject) -> None:
    guest = subject.guest
    heard_of, unheard = order("sleep 0.2; echo on; exit 7"), order("sleep 0.2; echo on; exit 8")
    await guest.start(heard_of)
    await guest.start(unheard)
    listening = asyncio.create_task(listen(guest, id_of(heard_of)))
    await guest.ping()
    for _ in range(2):
        await subject.leave()
        await subject.wake()
    stdout, _, outcome = await listening
    assert (stdout, outcome.exit_code) == (b"on\n", 7)
    assert (await listen(guest, id_of(unheard)))[2].exit_code == 8


async def test_jobs_go_on_over_a_freeze_whose_line_was_not_kept(subject: Subject) -> None:
    wanted = order("echo before; sleep 0.2; echo after; exit 7")
    await subject.guest.start(wanted)
    await subject.guest.quiesce(timeout_s=10)
    guest = await subject.come_anew()
    await guest.thaw()
    stdout, _, outcome = await listen(guest, id_of(wanted))
    assert (stdout, outcome.exit_code) == (b"before\nafter\n", 7)


async def test_what_is_known_is_found_while_everything_stands_still_and_nothing_is_started(subject: Subject) -> None:
    guest = subject.guest
    if guest.features["containment"] == "sessions":
        pytest.skip("no control groups: nothing stands still")
    wanted = order("sleep 1000")
    await guest.start(wanted)
    await guest.quiesce(timeout_s=10)
    guest.release()
    assert (await guest.start(wanted)).outcome is None
    with pytest.raises(errors.Busy):
        await guest.start(order("true"))
    await guest.thaw()
    await guest.signal(id_of(wanted), "SIGKILL")
