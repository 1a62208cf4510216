"""The host's side of the line against a guest that lies."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from lying_guest import Lie, LyingGuest, answering, lied_to
from torpor import errors
from torpor.guest.channel import Channel
from torpor.guest.client import Guest, connect
from torpor.kit.shielded import wait_ended
from torpor.model.identity import Identity
from torpor.model.ids import new_sandbox_id
from torpor.testing.fake_guest import FakeGuest
from torpor.wire.host import ExecOrder
from torpor_guest import protocol
from torpor_guest.protocol import DATA, ERROR, OUTPUT, RESULT, Hello

BREACHES = {
    "no frame at all": b"HTTP/1.1 200 OK\r\n\r\n",
    "a frame that is too long": protocol.header(1, DATA, OUTPUT, protocol.MAX_PAYLOAD + 1),
    "a wrong trailer": protocol.frame(1, DATA, OUTPUT, b"x")[:-1] + b"\0",
    "a stream that is not open": protocol.frame(3, DATA, OUTPUT, b"x"),
    "a second result": protocol.frame(1, RESULT, 0, b"{}") + protocol.frame(1, RESULT, 0, b"{}"),
    "data without credit": protocol.frame(1, DATA, OUTPUT, b"x" * protocol.MAX_PAYLOAD) * 9,
    "empty data": protocol.frame(1, DATA, OUTPUT, b""),
    "data on the host's sub-channel": protocol.frame(1, DATA, protocol.INPUT, b"x"),
    "data on a sub-channel that there is not": protocol.frame(1, DATA, 7, b"x"),
    "a request": protocol.message(1, protocol.OPEN, {"op": "ping"}),
    "a cancellation": protocol.frame(1, protocol.CANCEL),
    "credit beyond the window": protocol.credit(1, protocol.INPUT, 1),
    "credit of the wrong size": protocol.frame(1, protocol.CREDIT, protocol.INPUT, b"\0"),
    "credit for its own data": protocol.credit(1, OUTPUT, 1),
    "a result that is no JSON": protocol.frame(1, RESULT, 0, b"{"),
    "a result that nests too deep": protocol.frame(1, RESULT, 0, b"[" * 30_000),
    "a result that never ends": protocol.frame(1, RESULT, protocol.MORE, b" " * 32_000) * 9,
    "an error that is no object": protocol.frame(1, ERROR, 0, b"[]"),
    "an accusation": protocol.message(0, ERROR, {"code": "failed", "message": "you did", "hint": None}),
}


@pytest.mark.parametrize("breach", BREACHES.values(), ids=list(BREACHES))
async def test_a_breach_of_the_protocol_closes_the_line_and_ends_every_call(breach: bytes) -> None:
    async with lied_to(answering(breach)) as guest:
        calls = [asyncio.create_task(guest.stat("/x")), asyncio.create_task(guest.ping())]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[1], errors.OutcomeUnknown)
        assert isinstance(results[0], errors.OutcomeUnknown)
        await guest.closed.wait()
        with pytest.raises(errors.Unavailable):
            await guest.ping()


SENSELESS = [
    b"{}",
    b'{"exit_code":"0","duration_ms":1,"stdout_bytes":0,"stderr_bytes":0}',
    b'{"exit_code":256,"duration_ms":1,"stdout_bytes":0,"stderr_bytes":0}',
    b'{"exit_code":-1,"duration_ms":1,"stdout_bytes":0,"stderr_bytes":0}',
    b'{"exit_code":0,"duration_ms":1e300,"stdout_bytes":0,"stderr_bytes":0}',
    b'{"exit_code":0,"duration_ms":1}',
    b'{"exit_code":0,"duration_ms":1,"stdout_bytes":1,"stderr_bytes":0}',
    b'{"exit_code":0,"duration_ms":1,"stdout_bytes":0,"stderr_bytes":-1}',
    b'{"name":"x","path":"/x","is_dir":"perhaps"}',
    b'{"bytes":-1}',
    b'{"bytes":5}',
]


@pytest.mark.parametrize("answer", SENSELESS)
async def test_an_answer_that_makes_no_sense_is_an_unknown_outcome(answer: bytes) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        for chunk in list[bytes]():
            yield chunk

    async def read(guest: Guest) -> None:
        async with guest.read("/x") as chunks:
            async for _ in chunks:
                pass

    async def execute(guest: Guest) -> None:
        async with guest.exec(ExecOrder(argv=["true"])) as frames:
            async for _ in frames:
                pass

    asks: list[Callable[[Guest], Awaitable[object]]] = [
        lambda guest: guest.stat("/x"),
        lambda guest: guest.write("/x", nothing()),
        read,
        execute,
    ]
    for ask in asks:
        async with lied_to(answering(protocol.frame(1, RESULT, 0, answer))) as guest:
            with pytest.raises(errors.OutcomeUnknown):
                await ask(guest)


@pytest.mark.parametrize("lines", [b"{}\n", b"nonsense\n", b'{"name":"half', b"x" * 300_000])
async def test_a_listing_that_makes_no_sense_is_an_unknown_outcome(lines: bytes) -> None:
    pieces = [lines[start : start + 30_000] for start in range(0, len(lines), 30_000)]
    data = b"".join(protocol.frame(1, DATA, OUTPUT, piece) for piece in pieces[:8])

    async def lie(guest: LyingGuest) -> None:
        await guest.receive(protocol.OPEN)
        await guest.send(data)
        for piece in pieces[8:]:
            await guest.receive(protocol.CREDIT)
            await guest.send(protocol.frame(1, DATA, OUTPUT, piece))
        await guest.send(protocol.message(1, RESULT, {"entries": 1}))
        await guest.receive(255)

    async with lied_to(lie) as guest:
        with pytest.raises(errors.OutcomeUnknown):
            await guest.list("/x")


@pytest.mark.parametrize("code", ["sandbox_lost", "unauthenticated", "outcome_unknown", "no_capacity", "", None, 7])
async def test_a_guest_cannot_claim_what_only_a_host_can_know(code: object) -> None:
    body = {"code": code, "message": "x\x1b[2Jy" + "z" * 9000, "hint": ["no text"]}
    async with lied_to(answering(protocol.message(1, ERROR, body))) as guest:
        with pytest.raises(errors.Failed) as raised:
            await guest.ping()
    assert type(raised.value) is errors.Failed
    assert raised.value.message.startswith("x\N{REPLACEMENT CHARACTER}[2Jy")
    assert len(raised.value.message) <= 2000


async def test_single_bytes_cost_no_more_than_their_sum() -> None:
    """A guest that sends one byte a frame, and stdout and stderr in turn, is put together."""
    count = 4000
    pairs = b"".join(
        protocol.frame(1, DATA, OUTPUT, b"o") + protocol.frame(1, DATA, protocol.ERRORS, b"e") for _ in range(count)
    )
    outcome = {"exit_code": 0, "duration_ms": 1, "stdout_bytes": count, "stderr_bytes": count}
    lie = answering(pairs, protocol.message(1, RESULT, outcome))
    async with lied_to(lie) as guest, guest.exec(ExecOrder(argv=["x"])) as frames:
        received = [frame async for frame in frames]
    assert sum(len(frame.payload) for frame in received[:-1]) == 2 * count
    assert len(received) <= 200


async def silent(guest: LyingGuest) -> None:
    """Say nothing at all."""
    await asyncio.get_running_loop().create_future()


def welcoming(make: Callable[[bytes], bytes]) -> Lie:
    """Answer the greeting with something else than the right welcome."""

    async def lie(guest: LyingGuest) -> None:
        loop, sock = asyncio.get_running_loop(), guest._sock
        while size := await loop.sock_recv_into(sock, guest._parser.room()):
            for item in guest._parser.take(size):
                if isinstance(item, Hello):
                    await guest.send(make(item.nonce))

    return lie


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (silent, "did not answer within"),
        (welcoming(lambda nonce: b"\0" * 100_000), "did not answer within"),
        (welcoming(lambda nonce: protocol.welcome(bytes(16), {})), "did not answer within"),
        (welcoming(lambda nonce: protocol.welcome(nonce, {})[:-1] + b"\0"), "did not answer within"),
        (welcoming(lambda nonce: protocol.welcome(nonce, {"refused": "x"}, version=99)), "speaks protocol version 99"),
    ],
    ids=["silence", "garbage", "another nonce", "a wrong sum", "another version"],
)
async def test_a_guest_that_does_not_greet_properly_is_a_failed_restore(lie: Lie, sentence: str) -> None:
    with pytest.raises(errors.RestoreFailed, match=sentence):
        async with _quickly(lie):
            pytest.fail("connected")


@asynccontextmanager
async def _quickly(lie: Lie) -> AsyncIterator[Guest]:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        lying = asyncio.create_task(lie(LyingGuest(theirs)))
        try:
            async with await connect(ours, timeout_s=0.2) as guest:
                yield guest
        finally:
            lying.cancel()
            await wait_ended(lying)
            assert ours.fileno() == -1


async def test_a_guest_that_hangs_up_at_once_is_a_failed_restore() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(errors.RestoreFailed):
        await connect(ours, timeout_s=10)
    assert ours.fileno() == -1


async def test_garbage_after_the_welcome_closes_the_line() -> None:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(FakeGuest(garbage=b"\xff" * 100).serve(theirs))
    guest = await connect(ours, timeout_s=10)
    await guest.closed.wait()
    await guest.aclose()
    await serving


@pytest.mark.parametrize(
    "change",
    [
        *({"sandbox_id": "sbx-other"}, {"hostname": "other"}, {"generation": 1}, {"hooks": -1}, {"hooks": 65}),
        *({"wall_ns": 1}, {"wall_ns": "now"}, {"wall_ns": 2**62}),
    ],
)
async def test_an_adoption_that_is_not_confirmed_in_full_is_a_failed_restore(change: dict[str, object]) -> None:
    identity = Identity(new_sandbox_id())

    async def lie(guest: LyingGuest) -> None:
        frame = await guest.receive(protocol.OPEN)
        assert frame is not None
        request = json.loads(bytes(frame.payload))
        await guest.send(protocol.message(frame.stream, RESULT, request | {"hooks": 0} | change))
        await guest.receive(255)

    async with lied_to(lie) as guest:
        with pytest.raises(errors.RestoreFailed):
            await guest.adopt(identity)


async def test_a_refused_adoption_is_a_failed_restore_that_says_why() -> None:
    ours, theirs = socket.socketpair()
    fake = FakeGuest(refuse_adopt="the clock cannot be set")
    serving = asyncio.create_task(fake.serve(theirs))
    async with await connect(ours, timeout_s=10) as guest:
        with pytest.raises(errors.RestoreFailed, match="the clock cannot be set"):
            await guest.adopt(Identity(new_sandbox_id()))
    await serving
    assert fake.identities == []


async def test_a_request_that_is_too_long_is_refused_before_it_is_sent() -> None:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(FakeGuest().serve(theirs))
    async with await connect(ours, timeout_s=10) as guest:
        with pytest.raises(errors.InvalidRequest, match="4 MiB"):
            async with guest.exec(ExecOrder(argv=["true"], env={"A": "x" * (4 * 1024 * 1024)})):
                pytest.fail("the block was entered")
        await guest.ping()
    await serving


@asynccontextmanager
async def silence_after_the_greeting(limit_s: float) -> AsyncIterator[tuple[Channel, LyingGuest]]:
    """A channel to a guest that has greeted and is to be read by the test, who plays it from there on."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        guest = LyingGuest(theirs)
        greeting = asyncio.create_task(guest.receive(protocol.OPEN))
        channel = await Channel.open(ours, timeout_s=10, silence_s=limit_s)
        try:
            greeted = await channel.call({"op": "ping"})  # its request is what the guest's first `receive` returns
            await greeting
            await guest.send(protocol.message(1, RESULT, {}))
            await greeted.result()
            yield channel, guest
        finally:
            await channel.aclose()


async def test_a_guest_that_hangs_ends_every_call_and_may_come_back() -> None:
    async with silence_after_the_greeting(0.2) as (channel, guest):
        stat, upload = await channel.call({"op": "stat"}), await channel.call({"op": "write"})
        sending = asyncio.create_task(upload.send(bytes(4_000_000)))  # more than fits: it waits for credit or the line
        with pytest.raises(errors.OutcomeUnknown, match="hangs"):
            await stat.result()
        assert await sending is False
        await stat.aclose()
        await upload.aclose()
        # Now it wakes: what it still says about the calls that were given up is no breach, and the next call works.
        assert await guest.receive(protocol.CANCEL) is not None
        await guest.send(protocol.frame(3, DATA, OUTPUT, b"late") + protocol.message(3, RESULT, {}))
        again = await channel.call({"op": "ping"})
        while (frame := await guest.receive(protocol.OPEN)) is not None and frame.stream < again.number:
            pass
        await guest.send(protocol.message(again.number, RESULT, {"again": True}))
        assert await again.result() == {"again": True}


async def test_a_guest_that_answers_the_call_for_a_sign_of_life_may_take_its_time() -> None:
    async with silence_after_the_greeting(0.2) as (channel, guest):
        slow = await channel.call({"op": "exec"})
        for _ in range(4):  # twice as long as a silent guest is waited for
            ping = await guest.receive(protocol.OPEN)
            while ping is not None and ping.stream == slow.number:
                ping = await guest.receive(protocol.OPEN)
            assert ping is not None
            await guest.send(protocol.message(ping.stream, RESULT, {}))
        await guest.send(protocol.message(slow.number, RESULT, {"code": 0}))
        assert await slow.result() == {"code": 0}


async def test_a_folder_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    entry = {"name": "n" * 200_000, "path": "/x/" + "n" * 200, "is_dir": False, "is_symlink": False, "size": 0}
    line = json.dumps({**entry, "mode": 420, "mtime": 0.0, "user": "root", "group": "root"}).encode() + b"\n"

    async def lie(guest: LyingGuest) -> None:
        await guest.receive(protocol.OPEN)
        credit = protocol.WINDOW
        while True:
            for at in range(0, len(line), protocol.MAX_PAYLOAD):
                piece = line[at : at + protocol.MAX_PAYLOAD]
                while credit < len(piece):
                    given = await guest.receive()
                    if given is None or given.type == protocol.CANCEL:
                        await guest.send(protocol.message(1, ERROR, {"code": "cancelled", "message": "", "hint": None}))
                        return
                    credit += protocol.credit_count(given.payload)
                credit -= len(piece)
                await guest.send(protocol.frame(1, DATA, OUTPUT, piece))

    async with lied_to(lie) as guest:
        with pytest.raises(errors.InvalidRequest, match="too much to be listed"):
            await guest.list("/x")
