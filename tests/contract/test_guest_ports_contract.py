"""Connections to servers in a guest, through the real agent (as a process of this machine) and the fake one."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guest_agent import running_agent
from loopback_servers import closed_port, echo_server, serving
from torpor import errors
from torpor.guest.client import Guest, connect
from torpor.guest.ports import Connection
from torpor.testing.fake_guest import FakeGuest
from torpor.testing.fake_guest_line import ECHO_PORT

PIECE = bytes(range(256)) * 256


@dataclass
class Subject:
    """A guest, and the port of a server in it that sends back what it gets."""

    guest: Guest
    echo: int


@pytest.fixture(params=["agent", "fake"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "fake":
        ours, theirs = socket.socketpair()
        fake = asyncio.create_task(FakeGuest().serve(theirs))
        with ours:
            async with await connect(ours.dup(), timeout_s=10) as guest:
                yield Subject(guest, ECHO_PORT)
        await fake
        return
    async with running_agent(tmp_path) as agent, await agent.connect() as guest, echo_server() as port:
        yield Subject(guest, port)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Guest]:
    async with running_agent(tmp_path) as running, await running.connect() as guest:
        yield guest


async def all_of(connection: Connection) -> bytes:
    received = bytearray()
    while chunk := await connection.receive():
        received += chunk
    return bytes(received)


async def test_bytes_pass_both_ways_and_the_end_is_passed_on(subject: Subject) -> None:
    async with subject.guest.dial(subject.echo) as connection:
        assert await connection.send(b"hello")
        assert await connection.receive() == b"hello"
        assert await connection.send(b" and bye")
        connection.end()
        assert await all_of(connection) == b" and bye"


async def test_much_passes_both_ways_at_once_and_unchanged(subject: Subject) -> None:
    async def sending(connection: Connection) -> None:
        for _ in range(100):
            assert await connection.send(PIECE)
        connection.end()

    async with subject.guest.dial(subject.echo) as connection:
        _, received = await asyncio.gather(sending(connection), all_of(connection))
    assert received == PIECE * 100


async def test_many_connections_are_open_at_once(subject: Subject) -> None:
    async def one(number: int) -> bytes:
        async with subject.guest.dial(subject.echo) as connection:
            await connection.send(b"%d" % number)
            connection.end()
            return await all_of(connection)

    assert await asyncio.gather(*(one(number) for number in range(40))) == [b"%d" % number for number in range(40)]


async def test_a_port_at_which_nobody_listens_is_refused_at_once(subject: Subject) -> None:
    with pytest.raises(errors.PortClosed, match="nobody listens on port"):
        async with subject.guest.dial(closed_port()):
            pytest.fail("the block was entered")


async def test_who_listens_is_told(subject: Subject) -> None:
    told = {port.port: port for port in await subject.guest.ports()}
    assert told[subject.echo].address == "127.0.0.1"
    assert told[subject.echo].process is not None


@pytest.mark.parametrize("port", [0, 65536, -1])
async def test_a_number_that_is_no_port_is_refused(agent: Guest, port: int) -> None:
    with pytest.raises(errors.InvalidRequest, match="port"):
        async with agent.dial(port):
            pytest.fail("the block was entered")


async def test_a_server_on_the_loopback_address_of_ipv6_alone_is_found(agent: Guest) -> None:
    async with echo_server("::1") as port, agent.dial(port) as connection:
        await connection.send(b"six")
        assert await connection.receive() == b"six"


async def test_leaving_a_connection_closes_it(agent: Guest) -> None:
    closed = asyncio.Event()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        writer.close()
        closed.set()

    async with serving(server) as port:
        async with agent.dial(port):
            pass
        await asyncio.wait_for(closed.wait(), 20)


async def test_a_server_that_breaks_off_is_no_end(agent: Guest) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(b"half")
        await writer.drain()
        await reader.readexactly(1)
        # So that closing is a reset, whatever has been read by then.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with serving(server) as port, agent.dial(port) as connection:
        await connection.send(b"go")
        assert await connection.receive() == b"half"
        await connection.send(b"!" * 100_000)
        with pytest.raises(errors.Failed, match="broke the connection off"):
            await all_of(connection)


async def test_a_server_that_does_not_read_holds_its_sender_up_and_nobody_else(agent: Guest) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(server) as port, agent.dial(port) as connection:
        sender = asyncio.create_task(_send_for_ever(connection))
        for _ in range(200):
            await agent.ping()
        assert not sender.done()
        async with echo_server() as other, agent.dial(other) as second:
            await second.send(b"on")
            assert await second.receive() == b"on"
        sender.cancel()


async def _send_for_ever(connection: Connection) -> None:
    while await connection.send(PIECE):
        pass


async def test_a_server_whose_queue_is_full_is_busy_after_a_while(agent: Guest) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)),
            pytest.raises(errors.Busy, match="takes no new connection"),
        ):
            async with agent.dial(port), agent.dial(port), agent.dial(port):
                pytest.fail("the block was entered")


async def test_the_survey_names_this_process(agent: Guest) -> None:
    async with echo_server() as port:
        told = next(one for one in await agent.ports() if one.port == port)
    assert told.pid == os.getpid()
