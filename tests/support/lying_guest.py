"""The other end of a line, which greets properly and then does whatever a test says."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from torpor.guest.channel import Channel
from torpor.guest.client import Guest, connect
from torpor.kit.shielded import wait_ended
from torpor_guest import protocol
from torpor_guest.protocol import Frame, Hello


class LyingGuest:
    """Greets properly, and then sends whatever the test says."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parser = protocol.Parser(protocol.seek_hello)
        self._received: deque[Frame] = deque()

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # the host may have hung up on an earlier lie
            await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def receive(self, kind: int | None = None) -> Frame | None:
        """Return the next frame of a kind, or any, dropping others; None when the host has closed the line."""
        while True:
            while self._received:
                frame = self._received.popleft()
                if kind in (None, frame.type):
                    return frame
            size = await asyncio.get_running_loop().sock_recv_into(self._sock, self._parser.room())
            if size == 0:
                return None
            for item in self._parser.take(size):
                if isinstance(item, Hello):
                    await self.send(protocol.welcome(item.nonce, {"agent": "liar"}))
                elif isinstance(item, Frame):
                    self._received.append(Frame(item.stream, item.type, item.sub, memoryview(bytes(item.payload))))

    async def has_nothing(self) -> bool:
        """Tell whether the host has sent nothing more, after some turns of the loop in which it could."""
        for _ in range(20):
            await asyncio.sleep(0)
        with suppress(BlockingIOError):
            self._sock.recv(1, socket.MSG_PEEK)
            return False
        return not self._received

    def hang_up(self) -> None:
        """Close the line."""
        self._sock.close()

    def move(self, sock: socket.socket) -> None:
        """Be at the end of another line from now on, as the same guest."""
        sock.setblocking(False)
        self._sock.close()
        self._sock = sock


Lie = Callable[[LyingGuest], Coroutine[object, object, None]]


@asynccontextmanager
async def lied_to(lie: Lie) -> AsyncIterator[Guest]:
    """A connected guest that runs `lie`."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        lying = asyncio.create_task(lie(LyingGuest(theirs)))
        try:
            async with await connect(ours, timeout_s=10) as guest:
                yield guest
        finally:
            lying.cancel()
            await wait_ended(lying)


def answering(*replies: bytes) -> Lie:
    """Answer the first call with these bytes and keep the line open."""

    async def lie(guest: LyingGuest) -> None:
        await guest.receive(protocol.OPEN)
        for reply in replies:
            await guest.send(reply)
        await guest.receive(255)

    return lie


class Line:
    """A host's guest and channel, and the other end, which the test plays."""

    def __init__(self, channel: Channel, end: LyingGuest) -> None:
        self.channel, self.guest, self.end = channel, Guest(channel), end

    async def opened(self, op: str) -> int:
        """Return the number of the next stream, which must be for this operation."""
        frame = await self.end.receive(protocol.OPEN)
        assert frame is not None
        assert json.loads(bytes(frame.payload))["op"] == op
        return frame.stream

    async def answer(self, number: int, value: dict[str, Any]) -> None:
        await self.end.send(protocol.message(number, protocol.RESULT, value))

    async def freeze(self, *, leaving: bool = False) -> None:
        """Quiesce the guest, which confirms."""
        quiescing = asyncio.create_task(self.guest.quiesce(timeout_s=10, leaving=leaving))
        await self.answer(await self.opened("quiesce"), {"frozen": True})
        await quiescing

    async def leave(self) -> None:
        """Freeze the guest and end its machine."""
        await self.freeze(leaving=True)
        self.end.hang_up()
        await self.guest.wait_suspended()

    async def come_back(self) -> None:
        """Let the guest go on over another socket."""
        ours, theirs = socket.socketpair()
        self.end.move(theirs)
        await self.guest.continue_on(ours)


@asynccontextmanager
async def a_line(silence_s: float = 30) -> AsyncIterator[Line]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    end = LyingGuest(theirs)
    greeting = asyncio.create_task(end.receive())
    channel = await Channel.open(ours, timeout_s=10, silence_s=silence_s)
    greeting.cancel()
    await wait_ended(greeting)
    try:
        yield Line(channel, end)
    finally:
        await channel.aclose()
        end.hang_up()
