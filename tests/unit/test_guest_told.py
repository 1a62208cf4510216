"""What a guest tells of its commands is believed only where it makes sense."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from lying_guest import LyingGuest, answering, lied_to
from torpor import errors
from torpor.guest.client import Guest
from torpor.model.ids import new_job_id
from torpor.wire.host import ExecOrder, JobOrder
from torpor_guest import protocol

JOB = new_job_id()
ENDED = {"exit_code": 0, "duration_ms": 1, "oom_killed": False, "timed_out": False, "signal": None}
TOLD: dict[str, object] = {
    "id": JOB,
    "command": "true",
    "started_at": 1700000000.5,
    "stdout_bytes": 5,
    "stderr_bytes": 0,
    "stdout_start": 2,
    "stderr_start": 0,
    "outcome": ENDED,
}
LIES: list[dict[str, object]] = [
    {"id": new_job_id()},
    {"id": "../../etc"},
    {"id": 7},
    {"stdout_bytes": -1},
    {"stdout_start": 6},
    {"stderr_start": -1},
    {"stdout_bytes": 2**60},
    {"started_at": -1.0},
    {"started_at": 1e18},
    {"started_at": "now"},
    {"pid": 0},
    {"pid": 2**40},
    {"outcome": ENDED | {"exit_code": 256}},
    {"outcome": ENDED | {"signal": "\x1b[2J"}},
    {"outcome": ENDED | {"duration_ms": -1}},
]


def result(value: object) -> bytes:
    return protocol.frame(1, protocol.RESULT, 0, json.dumps(value).encode())


@pytest.mark.parametrize("lie", LIES)
async def test_a_job_that_cannot_be_is_an_unknown_outcome(lie: dict[str, object]) -> None:
    asks: list[Callable[[Guest], Awaitable[object]]] = [
        lambda guest: guest.job(JOB),
        lambda guest: guest.start(JobOrder(job=JOB, argv=["true"])),
    ]
    for ask in asks:
        async with lied_to(answering(result(TOLD | lie))) as guest:
            with pytest.raises(errors.OutcomeUnknown):
                await ask(guest)


async def test_a_truth_is_believed_and_its_text_is_made_harmless() -> None:
    truth = TOLD | {"command": "echo\n\x1b[2J" + "x" * 5000, "user": "\x07me"}
    async with lied_to(answering(result(truth))) as guest:
        told = await guest.job(JOB)
    assert told.command.startswith("echo \N{REPLACEMENT CHARACTER}[2Jxxx")
    assert len(told.command) <= 500
    assert told.user == "\N{REPLACEMENT CHARACTER}me"
    assert (told.stdout_start, told.stdout_bytes) == (2, 5)


async def test_a_list_without_end_is_an_unknown_outcome() -> None:
    line = json.dumps(TOLD).encode() + b"\n"
    piece = protocol.frame(1, protocol.DATA, protocol.OUTPUT, line * 100)

    async def lie(guest: LyingGuest) -> None:
        await guest.receive(protocol.OPEN)
        while True:
            for _ in range(8):
                await guest.send(piece)
            if await guest.receive(protocol.CREDIT) is None:
                return

    async with lied_to(lie) as guest:
        with pytest.raises(errors.OutcomeUnknown, match="more than"):
            await guest.jobs()


async def test_a_command_that_was_nobody_s_is_listed_under_the_guest_s_own_id() -> None:
    line = json.dumps(TOLD | {"id": "exec-12", "outcome": None}).encode() + b"\n"
    data = protocol.frame(1, protocol.DATA, protocol.OUTPUT, line)
    async with lied_to(answering(data, result({"jobs": 1}))) as guest:
        (told,) = await guest.jobs()
    assert (told.id, told.outcome) == ("exec-12", None)


@pytest.mark.parametrize("totals", [(4, 0), (6, 0), (5, 1), (0, 0)])
async def test_output_that_is_not_as_long_as_the_guest_says_is_an_unknown_outcome(totals: tuple[int, int]) -> None:
    """From the offset 2 on three bytes come: so five is the one truth."""
    data = protocol.frame(1, protocol.DATA, protocol.OUTPUT, b"abc")
    end = result(ENDED | {"stdout_bytes": totals[0], "stderr_bytes": totals[1]})

    async def attach(guest: Guest) -> None:
        async with guest.attach(JOB, 2) as frames:
            async for _ in frames:
                pass

    async def execute(guest: Guest) -> None:
        async with guest.exec(ExecOrder(job=JOB, argv=["true"], stdout_from=2)) as frames:
            async for _ in frames:
                pass

    for ask in (attach, execute):
        async with lied_to(answering(data, end)) as guest:
            with pytest.raises(errors.OutcomeUnknown, match="another count of bytes"):
                await ask(guest)


async def test_input_that_took_more_than_was_sent_is_an_unknown_outcome() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"12345678"

    async with lied_to(answering(result({"bytes": 9}))) as guest:
        with pytest.raises(errors.OutcomeUnknown, match="more input"):
            await guest.feed(JOB, chunks())
