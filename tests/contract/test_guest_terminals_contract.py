"""What every guest's agent does with commands that have a terminal, the real one and the fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from guest_subject import KINDS, Subject, subject_of
from torpor import errors
from torpor.guest.client import Guest
from torpor.kit.shielded import end_tasks
from torpor.model.ids import JobId, new_job_id
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOrder, ExecOutcome, JobOrder, TerminalSize

PATIENCE_S = 20
SHELL = ["/bin/sh"]


@pytest.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with subject_of(request.param, tmp_path) as subject:
        yield subject


@pytest.fixture
def guest(subject: Subject) -> Guest:
    return subject.guest


def is_fake(guest: Guest) -> bool:
    return bool(guest.features["agent"] == "fake")


def order(guest: Guest, *words: str, rows: int = 24, cols: int = 80, **more: object) -> JobOrder:
    """Return the order of a command on a terminal; without words, of a shell."""
    argv = list(words) or ([] if is_fake(guest) else SHELL)
    given = {"job": new_job_id(), "argv": argv, "terminal": {"rows": rows, "cols": cols}, "env": {"PS1": "$ "}}
    return JobOrder.model_validate(given | more)


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


class Screen:
    """What a terminal shows to one who listens, and his keys."""

    def __init__(self, guest: Guest, job: JobId, frames: AsyncIterator[Frame]) -> None:
        self._guest, self._job, self._frames = guest, job, frames
        self.shown = b""
        self.outcome: ExecOutcome | None = None

    async def type(self, text: bytes) -> None:
        await self._guest.feed(self._job, pieces(text))

    async def until(self, text: bytes) -> None:
        """Return when the screen shows a text after what was waited for before."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.shown:
                await self._more()
        self.shown = self.shown.partition(text)[2]

    async def end(self) -> ExecOutcome:
        async with asyncio.timeout(PATIENCE_S):
            while self.outcome is None:
                await self._more()
        return self.outcome

    async def _more(self) -> None:
        frame = await anext(self._frames)
        if frame.kind is Kind.EXIT:
            self.outcome = ExecOutcome.model_validate_json(frame.payload)
        else:
            assert frame.kind is Kind.STDOUT
            self.shown += frame.payload


@asynccontextmanager
async def screen_of(guest: Guest, job: str | None, at: int = 0) -> AsyncIterator[Screen]:
    assert job is not None
    async with guest.attach(JobId(job), at) as frames:
        yield Screen(guest, JobId(job), frames)


@asynccontextmanager
async def typing(guest: Guest, job: str) -> AsyncIterator[asyncio.Queue[bytes]]:
    """Yield a queue whose keys are typed in one long call."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def keys() -> AsyncIterator[bytes]:
        while key := await queue.get():
            yield key

    task = asyncio.create_task(guest.feed(JobId(job), keys()))
    try:
        yield queue
    finally:
        await end_tasks(task)


async def test_a_terminal_has_the_size_it_was_ordered_with_and_each_one_given_later(guest: Guest) -> None:
    began = await guest.start(order(guest))
    assert began.terminal == TerminalSize(rows=24, cols=80)
    async with screen_of(guest, began.id) as screen:
        await screen.until(b"$ ")
        await screen.type(b"stty size\r")
        await screen.until(b"24 80\r\n")
        for rows, cols in ((43, 132), (50, 20)):
            await guest.resize(JobId(began.id), TerminalSize(rows=rows, cols=cols))
            await screen.type(b"stty size\r")
            await screen.until(b"%d %d\r\n" % (rows, cols))
        assert (await guest.job(JobId(began.id))).terminal == TerminalSize(rows=50, cols=20)
        await screen.type(b"exit 7\r")
        assert (await screen.end()).exit_code == 7


async def test_ctrl_c_ends_what_is_in_the_foreground_and_the_shell_goes_on(guest: Guest) -> None:
    began = await guest.start(order(guest))
    async with screen_of(guest, began.id) as screen:
        await screen.until(b"$ ")
        # From its first word on it is in the foreground, and at no moment forks, which a shell might miss a signal in.
        await screen.type(b"sh -c 'echo now; %ssleep 600'\r" % (b"" if is_fake(guest) else b"exec "))
        await screen.until(b"now\r\n")
        await screen.type(b"\x03")
        await screen.until(b"^C")
        await screen.until(b"$ ")  # what is typed before is thrown away with the line
        await screen.type(b"echo $?\r")
        await screen.until(b"130\r\n")
        await screen.type(b"\x04")
        assert (await screen.end()).exit_code == 0 or is_fake(guest)


async def test_the_end_of_the_input_is_typed_and_the_terminal_takes_more(guest: Guest) -> None:
    began = await guest.start(order(guest))
    async with screen_of(guest, began.id) as screen:
        await screen.until(b"$ ")
        await screen.type(b"exi")
        assert await guest.feed(JobId(began.id), pieces(b"t 3\r"), close=True) == 4
        assert (await screen.end()).exit_code == 3


async def test_several_may_type_and_listen_and_one_who_comes_later_sees_what_was_there(guest: Guest) -> None:
    began = await guest.start(order(guest))
    async with screen_of(guest, began.id) as first, typing(guest, began.id) as keys:
        await first.until(b"$ ")
        keys.put_nowait(b"echo one")
        await first.until(b"echo one")
        await first.type(b" two\r")
        await first.until(b"one two\r\n")
        async with screen_of(guest, began.id) as second, screen_of(guest, began.id, 3) as third:
            await second.until(b"one two\r\n")
            await third.until(b"one two\r\n")
            await second.type(b"exit 9\r")
            assert [(await one.end()).exit_code for one in (first, second, third)] == [9, 9, 9]


async def test_a_terminal_outlives_who_listens_and_the_host(guest: Guest, subject: Subject) -> None:
    began = await guest.start(order(guest))
    async with screen_of(guest, began.id) as screen:
        await screen.until(b"$ ")
        await screen.type(b"echo before\r")
        await screen.until(b"before\r\n")
    guest = await subject.come_anew()
    async with screen_of(guest, began.id) as screen:
        await screen.until(b"before\r\n")
        await screen.type(b"exit 4\r")
        assert (await screen.end()).exit_code == 4


@pytest.mark.parametrize("words", [(), ("sleep", "600")])
async def test_one_that_is_to_be_hung_up_ends_once_nobody_listens(guest: Guest, words: tuple[str, ...]) -> None:
    began = await guest.start(order(guest, *words, hangup_s=0.2))
    async with screen_of(guest, began.id) as screen:
        if not words:
            await screen.until(b"$ ")
        with pytest.raises(TimeoutError):  # somebody listens, for longer than that
            await asyncio.wait_for(screen.end(), 0.5)
    async with asyncio.timeout(PATIENCE_S):
        while (told := await guest.job(JobId(began.id))).outcome is None:
            pass
    assert told.outcome.signal == "SIGHUP"
    async with screen_of(guest, began.id) as screen:
        assert (await screen.end()).exit_code == 129


async def test_a_command_without_a_terminal_that_is_to_be_hung_up_is_killed(guest: Guest) -> None:
    wanted = JobOrder(job=new_job_id(), argv=["sleep", "600"], hangup_s=0.1)
    await guest.start(wanted)
    async with asyncio.timeout(PATIENCE_S):
        while (told := await guest.job(JobId(wanted.job or ""))).outcome is None:
            pass
    assert told.outcome.signal == "SIGKILL"


async def test_without_words_it_is_a_login_shell_of_the_users(guest: Guest) -> None:
    began = await guest.start(order(guest, argv=[]))
    assert began.command == "(login shell)"
    async with screen_of(guest, began.id) as screen:
        await screen.type(b"echo in$((1+1))it; exit 5\r" if not is_fake(guest) else b"echo in2it\r")
        await screen.until(b"in2it\r\n")
        if is_fake(guest):
            await screen.type(b"exit 5\r")
        assert (await screen.end()).exit_code == 5


async def test_a_program_that_is_not_there_says_so_on_the_terminal(guest: Guest) -> None:
    began = await guest.start(order(guest, "no-such-program"))
    async with screen_of(guest, began.id) as screen:
        await screen.until(b"not found\r\n")
        assert (await screen.end()).exit_code == 127


async def test_what_makes_no_sense_is_refused_and_leaves_nothing(guest: Guest) -> None:
    plain = JobOrder(job=new_job_id(), argv=["sleep", "600"])
    await guest.start(plain)
    with pytest.raises(errors.InvalidRequest, match="has no terminal"):
        await guest.resize(JobId(plain.job or ""), TerminalSize())
    with pytest.raises(errors.NotFound):
        await guest.resize(new_job_id(), TerminalSize())
    await guest.signal(JobId(plain.job or ""), "SIGKILL")
    ended = await guest.start(order(guest, "true"))
    async with screen_of(guest, ended.id) as screen:
        await screen.end()
    with pytest.raises(errors.Conflict):
        await guest.resize(JobId(ended.id), TerminalSize())
    with pytest.raises(errors.Conflict):
        await guest.feed(JobId(ended.id), pieces(b"x"))


async def test_the_same_order_finds_it_again_and_another_size_is_another_order(guest: Guest) -> None:
    wanted = order(guest)
    assert (await guest.start(wanted)).id == (await guest.start(wanted)).id
    with pytest.raises(errors.Conflict):
        await guest.start(wanted.model_copy(update={"terminal": TerminalSize(rows=1, cols=1)}))
    await guest.signal(JobId(wanted.job or ""), "SIGKILL")


async def test_a_terminal_and_who_types_on_it_sleep_with_their_guest_and_go_on(guest: Guest, subject: Subject) -> None:
    began = await guest.start(order(guest, hangup_s=30))
    async with screen_of(guest, began.id) as screen, typing(guest, began.id) as keys:
        await screen.until(b"$ ")
        await subject.leave()
        keys.put_nowait(b"echo $?\r")
        await subject.wake()
        await screen.until(b"0\r\n")
        keys.put_nowait(b"exit\r")
        await screen.end()


async def test_an_exec_that_is_a_job_can_have_one(guest: Guest) -> None:
    fields = order(guest, "/bin/sh", "-c", "stty size").model_dump(include={"job", "argv", "terminal", "env"})
    async with guest.exec(ExecOrder.model_validate(fields)) as frames:
        heard = [frame async for frame in frames]
    assert b"".join(frame.payload for frame in heard if frame.kind is Kind.STDOUT) == b"24 80\r\n"
