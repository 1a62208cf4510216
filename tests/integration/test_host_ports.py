"""Connections to servers in guests, through the host agent's interface; the guests are fake ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import pytest

from frozen_rig import order
from host_rig import HostRig
from torpor.control.hosts import HostClient
from torpor.errors import Busy, Failed, NotFound, PortClosed
from torpor.host.api import host_app
from torpor.host.flow.delete import delete
from torpor.host.flow.hibernate import hibernate
from torpor.host.flow.wake import wake
from torpor.host.ports_api import MOST_CONNECTIONS
from torpor.model.ids import SandboxId
from torpor.model.snapshot import Kind
from torpor.testing.fake_guest_line import ECHO_PORT
from torpor.wire.memory import MemoryTransport

PATIENCE_S = 30


@pytest.fixture
async def client(rig: HostRig) -> AsyncIterator[HostClient]:
    async with aclosing(HostClient(MemoryTransport(host_app(rig.host)))) as client:
        yield client


async def test_a_connection_carries_bytes_both_ways_and_ends_well(client: HostClient, one: SandboxId) -> None:
    async with client.dial(one, ECHO_PORT) as connection:
        for word in (b"one", b"x" * 1_000_000):
            sending = asyncio.create_task(connection.send(word))
            received = b""
            while len(received) < len(word):
                received += await connection.receive()
            assert received == word
            assert await sending
        connection.end()
        assert await connection.receive() == b""


async def test_it_goes_on_over_a_hibernation(rig: HostRig, client: HostClient, one: SandboxId) -> None:
    async with client.dial(one, ECHO_PORT) as connection, asyncio.timeout(PATIENCE_S):
        assert await connection.send(b"before")
        assert await connection.receive() == b"before"
        for word in (b"first", b"second"):
            await hibernate(rig.host, one, order(Kind.HIBERNATION))
            sending = asyncio.create_task(connection.send(word))
            await asyncio.wait({sending}, timeout=0.1)
            assert not sending.done(), "what is sent waits for the guest to wake"
            await wake(rig.host, one)
            assert await sending
            assert await connection.receive() == word


async def test_deleting_a_sandbox_breaks_its_connections_off(rig: HostRig, client: HostClient, one: SandboxId) -> None:
    async with client.dial(one, ECHO_PORT) as connection:
        await connection.send(b"x")
        await connection.receive()
        await delete(rig.host, one)
        with pytest.raises(Failed):
            await connection.receive()


async def test_what_cannot_be_reached_is_told_before_the_connection_is_there(
    client: HostClient, one: SandboxId
) -> None:
    for sandbox, port, error in ((one, 9, PortClosed), (one, 0, NotFound), ("sbx-0000000000000000", 80, NotFound)):
        with pytest.raises(error):
            async with client.dial(sandbox, port):
                pytest.fail("the block was entered")


async def test_a_sandbox_has_so_many_connections_and_no_more(client: HostClient, one: SandboxId) -> None:
    async with AsyncExitStack() as open_ones:
        for _ in range(MOST_CONNECTIONS):
            await open_ones.enter_async_context(client.dial(one, ECHO_PORT))
        with pytest.raises(Busy, match=f"{MOST_CONNECTIONS} connections"):
            async with client.dial(one, ECHO_PORT):
                pytest.fail("the block was entered")
    async with client.dial(one, ECHO_PORT) as connection:
        await connection.send(b"again")
        assert await connection.receive() == b"again"


async def test_who_listens_is_listed(client: HostClient, one: SandboxId) -> None:
    assert [(port.port, port.address) for port in await client.ports(one)] == [(ECHO_PORT, "127.0.0.1")]
