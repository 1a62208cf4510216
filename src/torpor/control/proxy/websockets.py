"""A WebSocket between a client and a server in a sandbox, passed on message by message.

Pings are answered on each side by itself, so that each side finds out about its own other end.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from starlette.types import Message, Receive, Send
from websockets.client import ClientProtocol
from websockets.datastructures import Headers as WireHeaders
from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import CLOSED, OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from torpor.control.proxy import headers
from torpor.control.proxy.headers import Headers
from torpor.errors import BadAnswer, Failed
from torpor.kit.shielded import end_tasks
from torpor.wire import duplex

# One message may be so long, in either direction; uvicorn is told the same.
MAX_MESSAGE = 4 * 1024 * 1024
# Of a handshake, these are ours to say on each side. Compression is left out: each side would have to do it anew.
_OURS = frozenset(b"sec-websocket-key sec-websocket-version sec-websocket-extensions sec-websocket-accept".split())
_GONE = CloseCode.GOING_AWAY
_BAD_GATEWAY = CloseCode.BAD_GATEWAY
_MAX_REASON = 123

_quiet = logging.getLogger("torpor.control.websockets")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


@dataclass(frozen=True, slots=True)
class Order:
    """A handshake as a server in a sandbox is to get it."""

    target: bytes
    headers: Headers
    by_host: bool


async def bridge(connection: duplex.Connection, order: Order, receive: Receive, send: Send) -> None:
    """Open the WebSocket at the server, accept the client's as the server does, and pass messages on until one closes.

    The client's `websocket.connect` has been received. A refusal of the server's is passed on. Raises BadAnswer for an
    answer that is no handshake.
    """
    line = _Line(connection, order)
    response = await line.open()
    if response.status_code != 101:
        await _refuse(response, order, send)
        return
    chosen = response.headers.get("Sec-WebSocket-Protocol")
    passed = [pair for pair in _answer_headers(response, order) if pair[0] != b"sec-websocket-protocol"]
    await send({"type": "websocket.accept", "subprotocol": chosen, "headers": passed})
    inwards = asyncio.create_task(line.pass_in(receive))
    outwards = asyncio.create_task(line.pass_out(send))
    try:
        await asyncio.wait({inwards, outwards}, return_when=asyncio.FIRST_COMPLETED)
        for task in (inwards, outwards):
            if task.done():
                task.result()
    finally:
        await end_tasks(inwards, outwards)


async def _refuse(response: Response, order: Order, send: Send) -> None:
    status = response.status_code if 200 <= response.status_code < 600 else 502
    passed = [pair for pair in _answer_headers(response, order) if pair[0] != b"content-length"]
    await send({"type": "websocket.http.response.start", "status": status, "headers": passed})
    await send({"type": "websocket.http.response.body", "body": bytes(response.body or b""), "more_body": False})


def _answer_headers(response: Response, order: Order) -> Headers:
    given = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.raw_items()]
    passed = headers.to_client(response.status_code, given, by_host=order.by_host, had_token=False)
    return [(name, value) for name, value in passed if name not in _OURS]


class _Line:
    """The server's side of the WebSocket."""

    def __init__(self, connection: duplex.Connection, order: Order) -> None:
        self._connection, self._order = connection, order
        self._protocol = ClientProtocol(
            parse_uri("ws://sandbox/"),
            subprotocols=_subprotocols(order.headers),
            max_size=MAX_MESSAGE,
            logger=_quiet,
        )
        self._sending = asyncio.Lock()
        self._events: list[object] = []
        self._held = bytearray()
        self._is_text = False

    async def open(self) -> Response:
        """Send the handshake and return its answer. Raises BadAnswer for one that is none."""
        begun = self._protocol.connect()
        own = {name: begun.headers[name] for name in ("Upgrade", "Connection", "Sec-WebSocket-Key")}
        said = WireHeaders({**own, "Sec-WebSocket-Version": "13"})
        for name, value in self._order.headers:
            if name.lower() not in _OURS:
                said[name.decode("latin-1")] = value.decode("latin-1")
        self._protocol.send_request(Request(self._order.target.decode("ascii"), said))
        await self._flush()
        try:
            response = await self._event()
        except Failed as error:
            raise BadAnswer("the server in the sandbox broke off before it had answered") from error
        if not isinstance(response, Response):
            raise BadAnswer(f"the server in the sandbox gave no answer in HTTP: {self._protocol.handshake_exc}")
        if response.status_code == 101 and self._protocol.handshake_exc is not None:
            raise BadAnswer(f"the server in the sandbox opened no WebSocket: {self._protocol.handshake_exc}")
        return response

    async def _event(self) -> object | None:
        """Return the next thing the server said, None once there is no more to come."""
        while not self._events:
            if self._protocol.state is CLOSED or self._protocol.parser_exc is not None:
                return None
            data = await self._connection.receive()
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._events += self._protocol.events_received()
            await self._flush()  # the answers to pings, and to a close
            if not data and not self._events:
                return None
        return self._events.pop(0)

    async def _flush(self) -> None:
        async with self._sending:
            for data in self._protocol.data_to_send():
                if data:
                    await self._connection.send(data)

    async def pass_out(self, send: Send) -> None:
        """Give the client what the server says, until it closes or breaks off."""
        try:
            while (event := await self._event()) is not None:
                if isinstance(event, Frame) and (message := self._message(event)) is not None:
                    await send(message)
        except Failed:  # told as what it is: a WebSocket has no other way to break off
            await send(closing(_BAD_GATEWAY, "the server in the sandbox broke the connection off"))
            return
        # What the server has said, or what was said to it because of what it had done.
        said = self._protocol.close_rcvd or self._protocol.close_sent
        if said is None:
            await send(closing(_BAD_GATEWAY, "the server in the sandbox did not close the WebSocket as it should"))
        else:
            code = CloseCode.NORMAL_CLOSURE if said.code == CloseCode.NO_STATUS_RCVD else said.code
            await send(closing(code, said.reason))

    def _message(self, frame: Frame) -> Message | None:
        """Return the message that a frame completes."""
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return None
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._held += frame.data  # bounded by the protocol, and empty frames without end take nothing
        if not frame.fin:
            return None
        whole = bytes(self._held)
        self._held.clear()
        if not self._is_text:
            return {"type": "websocket.send", "bytes": whole}
        try:
            return {"type": "websocket.send", "text": whole.decode()}
        except UnicodeDecodeError as error:
            raise Failed("the server in the sandbox sent a text that is not UTF-8") from error

    async def pass_in(self, receive: Receive) -> None:
        """Give the server what the client says, until it closes or has gone."""
        while (message := await receive())["type"] == "websocket.receive":
            if self._protocol.state is OPEN:
                if (text := message.get("text")) is not None:
                    self._protocol.send_text(text.encode())
                else:
                    self._protocol.send_binary(message["bytes"])
            await self._flush()
        if self._protocol.state is OPEN:
            self._close_as(message.get("code"), message.get("reason") or "")
        await self._flush()

    def _close_as(self, code: int | None, reason: str) -> None:
        if code == CloseCode.NO_STATUS_RCVD:
            self._protocol.send_close()
            return
        try:
            self._protocol.send_close(code, _cut(reason))
        except ProtocolError:  # a code that only tells of a lost connection
            self._protocol.send_close(_GONE)


def _subprotocols(given: Headers) -> list[Subprotocol]:
    """Return which subprotocols a client offers: the server may choose one of these, and no other."""
    offered = b",".join(headers.values_of(given, b"sec-websocket-protocol")).decode("latin-1").split(",")
    return [Subprotocol(word.strip()) for word in offered if word.strip()]


def closing(code: int, reason: str) -> Message:
    """Return what closes a client's WebSocket; a reason that is longer than a close can hold is cut."""
    return {"type": "websocket.close", "code": int(code), "reason": _cut(reason)}


def _cut(reason: str) -> str:
    return reason.encode()[:_MAX_REASON].decode(errors="ignore")
