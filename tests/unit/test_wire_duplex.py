"""A connection as one HTTP exchange: both bodies run at the same time, and each end finds out about the other's."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from torpor.errors import Failed, OutcomeUnknown
from torpor.wire import duplex
from torpor.wire.memory import MemoryTransport, Message


class Peer:
    """A connection that is given what it receives, and keeps what it is sent."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.sent = bytearray()
        self.got = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self.ended = asyncio.Event()

    async def receive(self) -> bytes:
        item = await self.incoming.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def send(self, data: bytes) -> bool:
        await self.takes.wait()
        self.sent += data
        self.got.set()
        return True

    def end(self) -> None:
        self.ended.set()


class Rig:
    """A client's end of an exchange with a peer."""

    def __init__(self, peer: Peer) -> None:
        self.over = asyncio.Event()

        async def app(scope: Message, receive: Any, send: Any) -> None:
            try:
                await duplex.answer(peer, receive, send)
            except Failed:
                return
            finally:
                self.over.set()

        self.client = httpx2.AsyncClient(transport=MemoryTransport(app), base_url="http://memory", timeout=None)
        self.outgoing = duplex.Outgoing()

    async def open(self) -> tuple[httpx2.Response, duplex.Exchange]:
        request = self.client.build_request("POST", "/", content=self.outgoing.pieces())
        response = await self.client.send(request, stream=True)
        return response, duplex.Exchange(self.outgoing, response.aiter_raw())


async def test_bytes_pass_both_ways_while_neither_has_ended() -> None:
    peer = Peer()
    rig = Rig(peer)
    response, exchange = await rig.open()
    for word in (b"one", b"two"):
        assert await exchange.send(word)
        peer.incoming.put_nowait(word.upper())
        assert await exchange.receive() == word.upper()
    exchange.end()
    await peer.ended.wait()
    peer.incoming.put_nowait(b"last")
    peer.incoming.put_nowait(b"")
    assert await exchange.receive() == b"last"
    assert await exchange.receive() == b""
    assert bytes(peer.sent) == b"onetwo"
    await response.aclose()
    assert rig.over.is_set()


async def test_a_send_returns_when_the_other_end_has_taken_it() -> None:
    peer = Peer()
    rig = Rig(peer)
    response, exchange = await rig.open()
    peer.takes.clear()
    sending = asyncio.create_task(exchange.send(b"one"))
    await asyncio.wait({sending}, timeout=0.05)
    assert not sending.done()
    peer.takes.set()
    assert await sending
    await response.aclose()


async def test_hanging_up_ends_the_connection_and_what_waits_to_be_sent() -> None:
    peer = Peer()
    rig = Rig(peer)
    response, exchange = await rig.open()
    peer.takes.clear()
    sending = asyncio.create_task(exchange.send(b"one"))
    await asyncio.sleep(0)
    await response.aclose()
    rig.outgoing.close()
    assert not await sending
    assert not await exchange.send(b"two")
    assert rig.over.is_set()


async def test_a_connection_that_breaks_off_is_no_end() -> None:
    peer = Peer()
    rig = Rig(peer)
    response, exchange = await rig.open()
    peer.incoming.put_nowait(b"half")
    peer.incoming.put_nowait(Failed("it broke off"))
    assert await exchange.receive() == b"half"
    with pytest.raises((httpx2.TransportError, OutcomeUnknown)):
        await exchange.receive()
    assert not await exchange.send(b"more"), "nothing is sent on what is over"
    await response.aclose()
