"""A line that is held: what waits, and what passes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from lying_guest import Line, a_line
from torpor import errors
from torpor.guest.channel import Channel
from torpor.guest.turns import Turns
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor_guest import protocol
from torpor_guest.protocol import CANCEL, CREDIT, DATA, END, ERROR, OPEN, OUTPUT


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    async with a_line() as line:
        yield line


async def test_after_the_quiesce_nothing_is_sent_and_then_all_of_it_in_order(line: Line) -> None:
    reading, writing = await line.channel.call({"op": "read"}), await line.channel.call({"op": "write"})
    await line.opened("read")
    await line.opened("write")
    await line.end.send(protocol.frame(reading.number, DATA, OUTPUT, b"x" * 30_000) * 3)
    await line.freeze()
    for _ in range(3):
        assert await reading.receive() == (OUTPUT, b"x" * 30_000)
    sending = asyncio.create_task(writing.send(b"late"))
    done, _ = await asyncio.wait([asyncio.create_task(reading.aclose())], timeout=5)
    assert done
    assert await line.end.has_nothing()
    line.guest.release()
    assert await sending
    writing.end_input()
    frames = [await line.end.receive() for _ in range(4)]
    assert [(frame.stream, frame.type) for frame in frames if frame is not None] == [
        (reading.number, CREDIT),
        (reading.number, CANCEL),
        (writing.number, DATA),
        (writing.number, END),
    ]


async def test_what_was_about_to_be_written_when_the_line_came_to_be_held_waits(line: Line) -> None:
    calls = [await line.channel.call({"op": "write"}) for _ in range(3)]
    sending = [asyncio.create_task(call.send(bytes(200_000))) for call in calls]
    for _ in range(50):  # until the socket takes no more, and all three wait for their turns
        await asyncio.sleep(0)
    quiescing = asyncio.create_task(line.guest.quiesce(timeout_s=10))
    sent = 0
    while (frame := await line.end.receive()) is not None and frame.stream < 7:
        sent += len(frame.payload) if frame.type == DATA else 0
    assert frame is not None
    assert json.loads(bytes(frame.payload))["op"] == "quiesce"
    assert sent < 600_000
    await line.answer(frame.stream, {"frozen": True})
    await quiescing
    assert await line.end.has_nothing()
    line.guest.release()
    while sent < 600_000:
        frame = await line.end.receive(DATA)
        assert frame is not None
        sent += len(frame.payload)
    assert await asyncio.gather(*sending) == [True, True, True]
    assert sent == 600_000


async def test_new_calls_wait_for_the_release_and_are_numbered_as_they_are_sent(line: Line) -> None:
    await line.freeze()
    pings = [asyncio.create_task(line.guest.ping()) for _ in range(3)]
    thawing = asyncio.create_task(line.guest.thaw())
    first = await line.opened("unquiesce")
    await line.answer(first, {"wall_ns": time.time_ns()})
    await thawing
    assert await line.end.has_nothing()
    line.guest.release()
    for number in (first + 2, first + 4, first + 6):
        assert await line.opened("ping") == number
        await line.answer(number, {})
    await asyncio.gather(*pings)


async def test_a_guest_that_leaves_refuses_new_calls_at_once_until_the_release(line: Line) -> None:
    await line.freeze(leaving=True)
    with pytest.raises(errors.Busy, match="being frozen"):
        await line.guest.ping()
    assert await line.end.has_nothing()
    line.guest.release()
    ping = asyncio.create_task(line.guest.ping())
    await line.answer(await line.opened("ping"), {})
    await ping


async def test_a_guest_that_stands_still_can_leave_without_being_asked_again(line: Line) -> None:
    await line.freeze()
    ping = asyncio.create_task(line.guest.ping())
    await asyncio.sleep(0)
    await line.guest.quiesce(timeout_s=10, leaving=True)
    with pytest.raises(errors.Busy):
        await ping
    assert await line.end.has_nothing()
    line.end.hang_up()
    await line.guest.wait_suspended()


async def test_releasing_twice_sends_nothing_twice(line: Line) -> None:
    call = await line.channel.call({"op": "write"})
    await line.opened("write")
    await line.freeze()
    call.end_input()
    for _ in range(3):
        line.guest.release()
    frame = await line.end.receive()
    assert frame is not None
    assert frame.type == END
    assert await line.end.has_nothing()


@pytest.mark.parametrize("code", ["failed", "busy", "invalid_request"])
async def test_a_refused_quiesce_is_a_failure_and_the_line_is_held(line: Line, code: str) -> None:
    quiescing = asyncio.create_task(line.guest.quiesce(timeout_s=10))
    body = {"code": code, "message": "a fork bomb", "hint": None}
    await line.end.send(protocol.message(await line.opened("quiesce"), ERROR, body))
    with pytest.raises(errors.Failed, match="a fork bomb"):
        await quiescing
    assert not line.guest.confirmed
    assert line.channel.held


async def test_a_quiesce_that_is_not_answered_is_an_unknown_outcome_and_the_line_is_held(line: Line) -> None:
    with pytest.raises(errors.OutcomeUnknown, match="did not answer"):
        await line.guest.quiesce(timeout_s=0.05)
    assert not line.guest.confirmed
    assert line.channel.held
    number = await line.opened("quiesce")
    assert await line.end.has_nothing()
    line.guest.release()
    frame = await line.end.receive()
    assert frame is not None
    assert (frame.type, frame.stream) == (CANCEL, number)


async def test_silence_does_not_count_while_the_line_is_held_and_counts_again_after() -> None:
    async with a_line(silence_s=0.1) as line:
        call = await line.channel.call({"op": "exec"})
        await line.opened("exec")
        await line.freeze()
        result = asyncio.create_task(call.result())
        done, _ = await asyncio.wait([result], timeout=0.4)
        assert not done
        assert await line.end.has_nothing()
        line.guest.release()
        with pytest.raises(errors.OutcomeUnknown, match="hangs"):
            await result


async def test_who_waits_for_the_end_of_a_call_he_gave_up_does_not_wait_for_a_held_line(line: Line) -> None:
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    giving_up = asyncio.create_task(call.aclose())
    assert await line.end.receive(CANCEL) is not None
    await line.freeze()
    done, _ = await asyncio.wait([giving_up], timeout=5)  # half of what he would wait for the guest
    assert done
    assert not call.over


@pytest.mark.parametrize("wall_ns", [1, 2**62])
async def test_a_clock_that_is_wrong_after_the_thaw_is_a_failure(line: Line, wall_ns: int) -> None:
    await line.freeze()
    thawing = asyncio.create_task(line.guest.thaw())
    await line.answer(await line.opened("unquiesce"), {"wall_ns": wall_ns})
    with pytest.raises(errors.Failed, match="clock"):
        await thawing
    assert not line.guest.confirmed


async def test_a_guest_that_cannot_be_reached_any_more_is_an_unknown_outcome(line: Line) -> None:
    await line.guest.aclose()
    for ask in (line.guest.quiesce(timeout_s=1), line.guest.thaw(), line.guest.run_hooks("wake")):
        with pytest.raises(errors.OutcomeUnknown):
            await ask
    with pytest.raises(errors.RestoreFailed):
        await line.guest.adopt(Identity(new_sandbox_id()))
    with pytest.raises(errors.OutcomeUnknown):
        await line.guest.wait_suspended()


async def test_an_environment_that_is_too_long_is_refused_before_it_is_sent(line: Line) -> None:
    with pytest.raises(errors.InvalidRequest, match="4 MiB"):
        await line.guest.adopt(Identity(new_sandbox_id()), env={"A": "x" * 4 * 1024 * 1024})
    assert await line.end.has_nothing()


async def test_the_names_of_failed_hooks_are_fit_to_be_shown_and_bounded(line: Line) -> None:
    asking = asyncio.create_task(line.guest.run_hooks("wake"))
    await line.answer(await line.opened("hooks"), {"ran": 2, "failed": ["10-\x1b[2J", "x" * 5000]})
    cleaned = await asking
    assert cleaned[0] == "10-\N{REPLACEMENT CHARACTER}[2J"
    assert len(cleaned[1]) <= 2000
    asking = asyncio.create_task(line.guest.run_hooks("wake"))
    await line.answer(await line.opened("hooks"), {"ran": 2, "failed": ["x"] * 65})
    with pytest.raises(errors.OutcomeUnknown):
        await asking


async def test_so_many_calls_that_no_other_has_room_do_not_keep_a_guest_from_being_frozen(line: Line) -> None:
    with pytest.raises(errors.Busy, match="under way"):
        await _call_for_ever(line.channel)
    quiescing = asyncio.create_task(line.guest.quiesce(timeout_s=10))
    while (frame := await line.end.receive(OPEN)) is not None and json.loads(bytes(frame.payload))["op"] == "exec":
        pass
    assert frame is not None
    assert frame.stream < 2 * protocol.MAX_STREAMS
    await line.answer(frame.stream, {"frozen": True})
    await quiescing


async def _call_for_ever(channel: Channel) -> None:
    while True:
        await channel.call({"op": "exec"})


async def test_a_turn_that_was_given_just_before_the_hold_is_the_first_after_it() -> None:
    turns, order = Turns(), []

    async def take_turn(name: str) -> None:
        await turns.wait()
        order.append(name)
        turns.next()

    turns.pause()
    takers = [asyncio.create_task(take_turn(name)) for name in "ab"]
    await asyncio.sleep(0)
    turns.resume()  # gives the first one its turn
    turns.hold()
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == []
    turns.release()
    await asyncio.gather(*takers)
    assert order == ["a", "b"]
