"""The name server of one sandbox: it answers what the policy allows, by asking others.

The guest is hostile, and so is who answers for a name that it chose: a question is taken apart and asked anew, an
answer too, and everything is bounded. In a sandbox with an allow-list, the addresses of an answer are let through the
firewall before the guest hears of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from ipaddress import IPv4Network
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import structlog

from torpor.errors import TorporError
from torpor.kit.shielded import end_tasks
from torpor.model.network import Egress, Mode
from torpor.network.contract import Denied
from torpor.network.names import allowing_entry, pins_of, plain, shorten
from torpor.network.rules import Pin
from torpor.network.upstream import PAYLOAD_BYTES, Upstream

_log = structlog.get_logger(__name__)
_HEADER_BYTES, _MOST_QUESTION_BYTES, _PLAIN_PAYLOAD_BYTES = 12, 1024, 512
# Of one sandbox: questions under way, connections, questions by one of these, and how long one may be idle, in seconds.
_AT_ONCE, _CONNECTIONS, _QUESTIONS_EACH, _IDLE_S = 64, 16, 100, 10.0
# So many refused names are told one by one.
_MOST_TOLD = 64
_ANSWERED_BY_NOBODY = frozenset({dns.rdatatype.AXFR, dns.rdatatype.IXFR, dns.rdatatype.ANY, dns.rdatatype.OPT})

# Lets addresses pass; raises TorporError if they do not.
PinAddresses = Callable[[list[Pin]], Awaitable[None]]


class Forwarder:
    """Answers a guest's questions on the sockets of its slot, by the policy `egress`, until it is closed."""

    def __init__(self, upstream: Upstream, pin: PinAddresses, private: tuple[IPv4Network, ...] = ()) -> None:
        self.egress = Egress()
        self._upstream, self._pin, self._private = upstream, pin, private
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = self._connections = 0
        self._counts = {"name": 0, "question": 0, "unanswered": 0}
        self._refused: dict[str, int] = {}

    def serve(self, udp: socket.socket, tcp: socket.socket) -> None:
        """Begin to answer on two sockets, which stay the caller's; the second listens."""
        self._udp, self._tcp = udp, tcp
        loop = asyncio.get_running_loop()
        loop.add_reader(udp, self._heard)
        loop.add_reader(tcp, self._called)

    def denied(self) -> list[Denied]:
        """Return what was not answered: how many questions by reason, and the names that are not allowed."""
        reasons = {
            "name": "name-not-allowed",
            "question": "question-not-understood",
            "unanswered": "name-server-did-not-answer",
        }
        counted = [Denied(reasons[key], count) for key, count in self._counts.items() if count]
        return counted + [Denied("name", count, name) for name, count in self._refused.items()]

    async def aclose(self) -> None:
        """Answer nothing any more. Idempotent."""
        loop = asyncio.get_running_loop()
        for sock in (self._udp, self._tcp):
            if sock.fileno() >= 0:
                loop.remove_reader(sock)
        await end_tasks(*self._tasks)

    def _own(self, work: Coroutine[Any, Any, None], done: Callable[[], None] = lambda: None) -> None:
        """Have something done, and `done` called at its end, also if it is cancelled before its turn has come."""
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            done()
            if not task.cancelled() and isinstance(error := task.exception(), OSError):
                _log.debug("a guest could not be answered", error=str(error))

        task.add_done_callback(ended)

    def _heard(self) -> None:
        """Take a question that came as a packet; what is too much is dropped, as a network does."""
        try:
            data, sender = self._udp.recvfrom(_MOST_QUESTION_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:  # an earlier answer did not arrive
            _log.debug("a guest could not be heard", error=str(error))
            return
        if self._asking < _AT_ONCE:
            self._own(self._answer_packet(data, sender))

    async def _answer_packet(self, data: bytes, sender: tuple[str, int]) -> None:
        if (answer := await self.answer(data)) is not None:
            self._udp.sendto(answer, sender)

    def _called(self) -> None:
        try:
            connection, _ = self._tcp.accept()
        except OSError:  # it is gone again, or nobody was there
            return
        if self._connections >= _CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        self._connections += 1
        self._own(self._converse(connection), partial(self._hung_up, connection))

    def _hung_up(self, connection: socket.socket) -> None:
        connection.close()
        self._connections -= 1

    async def _converse(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            for _ in range(_QUESTIONS_EACH):
                async with asyncio.timeout(_IDLE_S):
                    size = int.from_bytes(await reader.readexactly(2))
                    if not _HEADER_BYTES <= size <= _MOST_QUESTION_BYTES:
                        return
                    data = await reader.readexactly(size)
                if (answer := await self.answer(data, stream=True)) is None:
                    return
                async with asyncio.timeout(_IDLE_S):
                    writer.write(len(answer).to_bytes(2) + answer)
                    await writer.drain()
        except (EOFError, TimeoutError):  # it hung up, or says nothing
            pass
        finally:
            writer.close()

    async def answer(self, data: bytes, *, stream: bool = False) -> bytes | None:
        """Return the answer to a question, as it goes to the guest; None where none is due.

        One that is too large for a packet is cut, and says so, unless it goes through a `stream`.
        """
        if not _HEADER_BYTES <= len(data) <= _MOST_QUESTION_BYTES or data[2] & 0x80:  # an answer is no question
            return None
        try:
            query = dns.message.from_wire(data)
        except dns.exception.DNSException:
            self._counts["question"] += 1
            return data[:2] + bytes((0x80, dns.rcode.FORMERR)) + bytes(8)
        self._asking += 1
        try:
            reply = await self._reply_to(query)
        finally:
            self._asking -= 1
        room = 65535 if stream else max(_PLAIN_PAYLOAD_BYTES, min(query.payload or 0, PAYLOAD_BYTES))
        return _packed(reply, query, room)

    async def _reply_to(self, query: dns.message.Message) -> dns.message.Message:
        if (refusal := self._unfit(query)) is not None:
            self._counts["question"] += 1
            return _reply(query, refusal)
        question, egress = query.question[0], self.egress
        name = plain(question.name)
        entry = allowing_entry(name, egress.names) if egress.mode is Mode.ALLOW else ""
        if entry is None or egress.mode is Mode.NONE:
            self._refuse(name)
            return _reply(query, dns.rcode.REFUSED)
        try:
            answer = await self._upstream.ask(question.name, question.rdtype)
            if entry and (pins := pins_of(answer, entry, self._private)):
                await self._pin(pins)
        except TorporError as error:
            self._counts["unanswered"] += 1
            _log.debug("a name was not found out", error=error.message)
            return _reply(query, dns.rcode.SERVFAIL)
        return _reply(query, answer.rcode(), answer)

    def _unfit(self, query: dns.message.Message) -> dns.rcode.Rcode | None:
        """Return how a question is refused that nobody has to ask; None for others."""
        if query.opcode() != dns.opcode.QUERY:
            return dns.rcode.NOTIMP
        if len(query.question) != 1:
            return dns.rcode.FORMERR
        question = query.question[0]
        if question.rdclass != dns.rdataclass.IN or question.rdtype in _ANSWERED_BY_NOBODY:
            return dns.rcode.REFUSED
        return None

    def _refuse(self, name: str) -> None:
        self._counts["name"] += 1
        if name in self._refused or len(self._refused) < _MOST_TOLD:
            self._refused[name] = self._refused.get(name, 0) + 1


def _reply(
    query: dns.message.Message, code: dns.rcode.Rcode, answer: dns.message.Message | None = None
) -> dns.message.Message:
    reply = dns.message.make_response(query, recursion_available=True, our_payload=PAYLOAD_BYTES)
    if answer is not None:
        reply.answer, reply.authority = answer.answer, answer.authority
        shorten(reply)
    reply.set_rcode(code if query.edns >= 0 or code <= 15 else dns.rcode.SERVFAIL)
    return reply


def _packed(reply: dns.message.Message, query: dns.message.Message, room: int) -> bytes:
    try:
        return reply.to_wire(max_size=room)
    except dns.exception.TooBig:
        cut = _reply(query, reply.rcode())
        cut.flags |= dns.flags.TC
        return cut.to_wire()
