"""A guest that leaves its machine and goes on elsewhere, over another line."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator

import pytest

from lying_guest import Line, a_line
from torpor import errors
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor_guest import protocol
from torpor_guest.protocol import CANCEL, DATA, OPEN, OUTPUT, RESULT, Frame


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    async with a_line() as line:
        yield line


async def test_a_guest_goes_on_over_another_line_with_its_calls(line: Line) -> None:
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    await line.end.send(protocol.frame(call.number, DATA, OUTPUT, b"before"))
    await line.leave()
    assert line.guest.suspended
    assert not line.guest.closed.is_set()
    assert await call.receive() == (OUTPUT, b"before")  # it had been sent, so it has arrived
    with pytest.raises(errors.Busy):
        await line.guest.ping()
    line.guest.release()  # there is nobody to send anything to
    assert line.channel.held
    await line.come_back()
    assert not line.guest.suspended
    adopting = asyncio.create_task(line.guest.adopt(Identity(new_sandbox_id()), thaw=False, event="wake"))
    opening = await line.end.receive(OPEN)
    assert opening is not None
    order = json.loads(bytes(opening.payload))
    assert (order["thaw"], order["event"], order["env"]) == (False, "wake", None)
    await line.answer(opening.stream, order | {"hooks": 3})
    assert await adopting == 3
    line.guest.release()
    await line.end.send(protocol.frame(call.number, DATA, OUTPUT, b"after"))
    await line.answer(call.number, {"exit_code": 0})
    assert await call.receive() == (OUTPUT, b"after")
    assert await call.result() == {"exit_code": 0}


def _speech(number: int) -> bytes:
    outcome = {"text": "x" * 40}
    return (
        protocol.frame(number, DATA, OUTPUT, b"one")
        + protocol.frame(number, DATA, protocol.ERRORS, b"two")
        + protocol.frame(number, RESULT, protocol.MORE, protocol.dump(outcome)[:7])
        + protocol.frame(number, RESULT, protocol.LAST, protocol.dump(outcome)[7:])
    )


@pytest.mark.parametrize("offset", range(len(_speech(1)) + 1))
async def test_a_frame_that_is_cut_off_anywhere_goes_on_over_the_next_line(line: Line, offset: int) -> None:
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    await line.freeze(leaving=True)
    speech = _speech(call.number)
    await line.end.send(speech[:offset])
    line.end.hang_up()
    await line.guest.wait_suspended()
    await line.come_back()
    await line.end.send(speech[offset:])
    assert await call.receive() == (OUTPUT, b"one")
    assert await call.receive() == (protocol.ERRORS, b"two")
    assert await call.result() == {"text": "x" * 40}
    line.guest.release()
    ping = asyncio.create_task(line.guest.ping())
    await line.answer(await line.opened("ping"), {})
    await ping


async def test_a_guest_may_leave_again_and_again(line: Line) -> None:
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    for turn in range(3):
        await line.leave()
        await line.come_back()
        thawing = asyncio.create_task(line.guest.thaw())
        await line.answer(await line.opened("unquiesce"), {"wall_ns": time.time_ns()})
        await thawing
        line.guest.release()
        await line.end.send(protocol.frame(call.number, DATA, OUTPUT, b"%d" % turn))
        assert await call.receive() == (OUTPUT, b"%d" % turn)
    await line.answer(call.number, {})
    await call.result()


async def test_a_line_that_closes_without_a_confirmed_quiesce_is_lost(line: Line) -> None:
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    quiescing = asyncio.create_task(line.guest.quiesce(timeout_s=10, leaving=True))
    await line.opened("quiesce")
    line.end.hang_up()
    for ended in (quiescing, call.result(), line.guest.wait_suspended()):
        with pytest.raises(errors.OutcomeUnknown):
            await ended
    assert line.guest.closed.is_set()
    assert not line.guest.suspended


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_machine_that_dies_where_it_was_to_go_on_is_a_lost_line(line: Line, leaving: bool) -> None:
    """Paused, it was to stay; or it was woken already."""
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    waiting = None
    if leaving:
        await line.leave()
        await line.come_back()
    else:
        await line.freeze()
        waiting = asyncio.create_task(line.guest.ping())
        await asyncio.sleep(0)
    line.end.hang_up()
    with pytest.raises(errors.OutcomeUnknown):
        await call.result()
    await line.guest.closed.wait()
    if waiting is not None:
        with pytest.raises(errors.Unavailable):
            await waiting


async def test_a_freeze_that_did_not_come_about_leaves_an_ordinary_line(line: Line) -> None:
    await line.freeze(leaving=True)
    thawing = asyncio.create_task(line.guest.thaw())
    number = await line.opened("unquiesce")
    line.end.hang_up()  # a crash now is one
    with pytest.raises(errors.OutcomeUnknown):
        await thawing
    assert number
    assert line.guest.closed.is_set()


@pytest.mark.parametrize("gone", [False, True])
async def test_closing_a_held_line_ends_every_call(line: Line, gone: bool) -> None:
    call, sender = await line.channel.call({"op": "exec"}), await line.channel.call({"op": "write"})
    await line.opened("exec")
    await line.opened("write")
    await line.freeze(leaving=True)
    if gone:
        line.end.hang_up()
        await line.guest.wait_suspended()
    sending = asyncio.create_task(sender.send(b"x"))
    result = asyncio.create_task(call.result())
    await asyncio.sleep(0)
    await line.guest.aclose()
    with pytest.raises(errors.OutcomeUnknown):
        await result
    assert await sending is False
    assert line.guest.closed.is_set()
    with pytest.raises(errors.Unavailable):
        await line.guest.ping()
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(errors.Unavailable):
        await line.guest.continue_on(ours)
    assert ours.fileno() == -1


async def test_a_guest_that_breaks_the_protocol_as_it_leaves_does_not_come_back(line: Line) -> None:
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    await line.freeze(leaving=True)
    await line.end.send(b"nonsense that is no frame at all")
    line.end.hang_up()
    with pytest.raises(errors.OutcomeUnknown, match="broke the protocol"):
        await line.guest.wait_suspended()
    with pytest.raises(errors.OutcomeUnknown):
        await call.result()


async def test_a_call_given_up_while_its_guest_is_away_is_cancelled_as_it_comes_back(line: Line) -> None:
    call = await line.channel.call({"op": "exec"})
    await line.opened("exec")
    await line.leave()
    await call.aclose()
    await line.come_back()
    assert await line.end.has_nothing()
    line.guest.release()
    frame = await line.end.receive()
    assert isinstance(frame, Frame)
    assert (frame.stream, frame.type) == (call.number, CANCEL)
