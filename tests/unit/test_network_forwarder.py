"""The name server of a sandbox, on sockets of this machine's loopback."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rrset
import pytest

from torpor.errors import Failed, Unavailable
from torpor.model.network import NO_NETWORK, Egress, Mode
from torpor.network.config import NameServer
from torpor.network.forwarder import Forwarder
from torpor.network.rules import Pin
from torpor.network.upstream import Upstream


class _Told(asyncio.DatagramProtocol):
    """A name server that tells these addresses for every name; with `forges`, after a forged answer of other ones."""

    def __init__(self, records: list[str], *, forges: bool = False) -> None:
        self._records, self._forges = records, forges
        self.asked: list[dns.message.Message] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        self.asked.append(query)
        reply = dns.message.make_response(query, recursion_available=True)
        reply.answer.append(dns.rrset.from_text_list(query.question[0].name, 60, "IN", "A", self._records))
        if self._forges:
            forged = dns.message.make_response(query, recursion_available=True)
            forged.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", "20.6.6.6"))
            forged.id ^= 1
            self._transport.sendto(forged.to_wire(), sender)
        self._transport.sendto(reply.to_wire(), sender)


class Scene:
    """A forwarder with a name server behind it, and what it has let through."""

    def __init__(self, told: _Told, forwarder: Forwarder, address: tuple[str, int], pinned: list[Pin]) -> None:
        self.told, self.forwarder, self.address, self.pinned = told, forwarder, address, pinned

    async def ask(self, query: dns.message.Message) -> dns.message.Message:
        answer = await self.forwarder.answer(query.to_wire())
        assert answer is not None
        return dns.message.from_wire(answer)


async def opened(told: _Told) -> AsyncIterator[Scene]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: told, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    udp, tcp = socket.socket(type=socket.SOCK_DGRAM), socket.create_server(("127.0.0.1", 0))
    udp.bind(("127.0.0.1", tcp.getsockname()[1]))
    for sock in (udp, tcp):
        sock.setblocking(False)

    async def pin(pins: list[Pin]) -> None:
        if any(str(each.address) == "20.0.0.99" for each in pins):
            raise Failed("the set is full")
        pinned.extend(pins)

    pinned: list[Pin] = []
    forwarder = Forwarder(Upstream([NameServer("127.0.0.1", port)]), pin)
    scene = Scene(told, forwarder, udp.getsockname(), pinned)
    forwarder.serve(udp, tcp)
    try:
        yield scene
    finally:
        await forwarder.aclose()
        await forwarder.aclose()
        udp.close()
        tcp.close()
        transport.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async for scene in opened(_Told(["20.0.0.1"])):
        yield scene


def query_for(name: str, kind: str = "A") -> dns.message.Message:
    return dns.message.make_query(name, kind)


async def test_a_question_is_answered_under_its_own_number_and_asked_under_another(scene: Scene) -> None:
    query = query_for("example.com")
    answer = await scene.ask(query)
    assert answer.id == query.id
    assert query.is_response(answer)
    assert [str(record) for record in answer.answer[0]] == ["20.0.0.1"]
    assert scene.told.asked[0].id != query.id
    assert scene.pinned == []


async def test_with_an_allow_list_the_addresses_pass_before_the_answer_is_given(scene: Scene) -> None:
    scene.forwarder.egress = Egress(Mode.ALLOW, (), ("example.com",))
    assert (await scene.ask(query_for("example.com"))).rcode() is dns.rcode.NOERROR
    assert [str(pin.address) for pin in scene.pinned] == ["20.0.0.1"]
    assert (await scene.ask(query_for("example.org"))).rcode() is dns.rcode.REFUSED
    assert len(scene.told.asked) == 1
    denied = {(each.reason, each.destination, each.count) for each in scene.forwarder.denied()}
    assert denied == {("name-not-allowed", None, 1), ("name", "example.org", 1)}


async def test_addresses_that_cannot_be_let_through_are_not_told() -> None:
    async for scene in opened(_Told(["20.0.0.99"])):
        scene.forwarder.egress = Egress(Mode.ALLOW, (), ("example.com",))
        answer = await scene.ask(query_for("example.com"))
        assert (answer.rcode(), answer.answer) == (dns.rcode.SERVFAIL, [])


async def test_nothing_is_told_where_nothing_may_be_reached(scene: Scene) -> None:
    scene.forwarder.egress = NO_NETWORK
    assert (await scene.ask(query_for("example.com"))).rcode() is dns.rcode.REFUSED
    assert scene.told.asked == []


async def test_an_answer_with_another_number_is_passed_over() -> None:
    async for scene in opened(_Told(["20.0.0.1"], forges=True)):
        answer = await scene.ask(query_for("example.com"))
        assert [str(record) for record in answer.answer[0]] == ["20.0.0.1"]


async def test_no_bytes_of_a_guest_s_break_it(scene: Scene) -> None:
    scene.forwarder.egress = NO_NETWORK  # what is a question after all is not asked on, some thousand times
    chance = random.Random(5)
    wire = dns.message.make_query("a.example.com", "A", use_edns=0, payload=4096).to_wire()
    for _ in range(3000):
        broken = bytearray(wire)
        for _ in range(chance.randrange(1, 8)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        answer = await scene.forwarder.answer(bytes(broken[: chance.randrange(len(broken) + 1)]))
        assert answer is None or (len(answer) >= 12 and answer[2] & 0x80)


@pytest.mark.parametrize("kind", ["AXFR", "IXFR", "ANY"])
async def test_questions_for_whole_zones_are_refused(scene: Scene, kind: str) -> None:
    assert (await scene.ask(query_for("example.com", kind))).rcode() is dns.rcode.REFUSED
    assert scene.told.asked == []


async def test_what_is_no_question_is_not_asked_on(scene: Scene) -> None:
    answer = scene.forwarder.answer
    assert await answer(b"") is None
    assert await answer(b"\0" * 11) is None
    assert await answer(bytes(2000)) is None
    a_reply = dns.message.make_response(query_for("example.com")).to_wire()
    assert await answer(a_reply) is None
    garbage = await answer(b"\xab\xcd\x01\x00\x00\x01" + b"\xff" * 40)
    assert garbage is not None
    assert (garbage[:2], garbage[3] & 15) == (b"\xab\xcd", dns.rcode.FORMERR)
    status = query_for("example.com")
    status.set_opcode(dns.opcode.STATUS)
    assert (await scene.ask(status)).rcode() is dns.rcode.NOTIMP
    assert scene.told.asked == []


async def test_a_large_answer_is_cut_in_a_packet_and_whole_through_a_connection() -> None:
    many = [f"20.0.{high}.{low}" for high in range(2) for low in range(100)]
    async for scene in opened(_Told(many[:70])):
        packet = await scene.forwarder.answer(query_for("example.com").to_wire())
        assert packet is not None
        assert len(packet) <= 512
        assert dns.message.from_wire(packet).flags & dns.flags.TC
        reader, writer = await asyncio.open_connection(*scene.address)
        wire = query_for("example.com").to_wire()
        writer.write(len(wire).to_bytes(2) + wire)
        whole = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        assert len(dns.message.from_wire(whole).answer[0]) == 70
        writer.close()
        await writer.wait_closed()


async def test_packets_are_answered_on_the_socket(scene: Scene) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(scene.address)
        query = query_for("example.com")
        await loop.sock_sendall(sock, query.to_wire())
        assert query.is_response(dns.message.from_wire(await loop.sock_recv(sock, 2000)))


async def test_connections_are_bounded(scene: Scene) -> None:
    lines = [await asyncio.open_connection(*scene.address) for _ in range(20)]
    ended = await asyncio.wait_for(asyncio.gather(*(reader.read(1) for reader, _ in lines[16:])), 5)
    assert ended == [b""] * 4
    for _, writer in lines:
        writer.close()


async def test_a_name_server_that_is_not_there_is_told_as_a_failure(tmp_path: Path) -> None:
    nobody = Upstream(resolv_conf=tmp_path / "none")
    assert nobody.servers() == ()
    with pytest.raises(Unavailable, match="none is known"):
        await nobody.ask(query_for("a.org").question[0].name, query_for("a.org").question[0].rdtype)


async def test_name_servers_are_read_again_when_the_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("nameserver 9.9.9.9\n")
    upstream = Upstream(resolv_conf=file)
    assert upstream.servers() == (NameServer("9.9.9.9"),)
    (tmp_path / "new").write_text("nameserver 1.1.1.1\n")
    (tmp_path / "new").rename(file)
    assert upstream.servers() == (NameServer("1.1.1.1"),)
