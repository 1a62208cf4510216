"""One HTTP request to a server in a sandbox, over a connection of its own, streamed both ways."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import h11
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from torpor.control.proxy import headers
from torpor.control.proxy.headers import Headers
from torpor.errors import BadAnswer, Failed, InvalidRequest
from torpor.kit.shielded import end_tasks
from torpor.wire import duplex

# The head of an answer may be so long, and so many interim answers may come before it.
_MAX_HEAD = 64 * 1024
_MOST_INTERIM = 16


@dataclass(frozen=True, slots=True)
class Order:
    """A request as a server in a sandbox is to get it. `headers` are complete but for the framing of the body."""

    method: str
    target: bytes
    headers: Headers
    framing: Headers
    by_host: bool
    had_token: bool


async def exchange(connection: duplex.Connection, order: Order, receive: Receive, send: Send) -> None:
    """Send a request and its body, and give the client the answer as it comes.

    Raises BadAnswer for what is no answer, Failed if it breaks off after its beginning, so that the client's breaks off
    too, and ClientDisconnect if the client has gone.
    """
    both = _Exchange(connection, order)
    await both.begin()
    answering = asyncio.create_task(both.answer(send))
    feeding = asyncio.create_task(both.feed(receive))
    try:
        await asyncio.wait({answering, feeding}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            feeding.result()
            raise ClientDisconnect
        answering.result()
    finally:
        await end_tasks(answering, feeding)


class _Exchange:
    def __init__(self, connection: duplex.Connection, order: Order) -> None:
        self._connection, self._order = connection, order
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)

    async def begin(self) -> None:
        """Send the head. Raises InvalidRequest for one that HTTP does not have."""
        order = self._order
        # One connection for each request: none is left over that a rollback or restore would have made stale.
        head = [*order.headers, *order.framing, (b"connection", b"close")]
        try:
            request = h11.Request(method=order.method, target=order.target, headers=head)
            data = self._http.send(request)
        except h11.LocalProtocolError as error:
            raise InvalidRequest(f"this request cannot be passed on: {error}") from error
        await self._connection.send(data or b"")

    async def feed(self, receive: Receive) -> None:
        """Send the body as it comes; then return when the client has gone."""
        takes_more, ended = True, False
        while (message := await receive())["type"] != "http.disconnect":
            if ended:
                continue
            body, ended = message.get("body", b""), not message.get("more_body", False)
            if takes_more and body:
                takes_more = await self._connection.send(self._http.send(h11.Data(data=body)) or b"")
            if takes_more and ended:
                takes_more = await self._connection.send(self._http.send(h11.EndOfMessage()) or b"")
            if not takes_more:  # the server has gone; what it has answered comes yet
                await asyncio.Event().wait()

    async def answer(self, send: Send) -> None:
        """Give the client the answer."""
        try:
            response = await self._response()
        except Failed as error:
            if isinstance(error, BadAnswer):
                raise
            raise BadAnswer("the server in the sandbox broke off before it had answered") from error
        order, given = self._order, response.headers.raw_items()
        passed = headers.to_client(response.status_code, given, by_host=order.by_host, had_token=order.had_token)
        await send({"type": "http.response.start", "status": response.status_code, "headers": passed})
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _response(self) -> h11.Response:
        for _ in range(_MOST_INTERIM):
            event = await self._next()
            if isinstance(event, h11.Response):
                # As it was sent, h11 having checked its form: what h11 makes of it may hide that it says two things.
                headers.check_answer(event.status_code, event.headers.raw_items())
                return event
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise BadAnswer("the server in the sandbox answered with another protocol than HTTP")
        raise BadAnswer("the server in the sandbox gave one interim answer after another")

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(await self._connection.receive())
                    continue
            except h11.RemoteProtocolError as error:
                raise BadAnswer(f"the server in the sandbox gave no answer in HTTP: {error}") from error
            if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
                raise BadAnswer("the server in the sandbox closed the connection without an answer")
            return event
