"""How requests to servers in sandboxes end that do not end of themselves; the host is a fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx2
import pytest
import structlog

from loopback_servers import answering, serving
from ports_rig import PATIENCE_S, PortsRig, ports_rig


@pytest.fixture
async def ports() -> AsyncIterator[PortsRig]:
    async with ports_rig() as rig:
        yield rig


async def test_an_answer_by_path_that_breaks_off_is_told_as_what_it_is(ports: PortsRig) -> None:
    with structlog.testing.capture_logs() as logged:
        async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab") as (port, _), ports.serves(port) as box:
            with pytest.raises(httpx2.RemoteProtocolError):
                await ports.http.get(f"{ports.by_path(box)}/", headers=ports.key())
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == []
    assert "answer broken off" in [entry["event"] for entry in logged]


async def test_a_key_that_is_revoked_hears_no_more_even_if_its_own_request_never_ends(ports: PortsRig) -> None:
    made = await ports.rig.http.post("/v1/me/tokens", json={"label": "leaked"})
    key = made.json()["token"]

    async def never_ending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        await reader.read()

    async with serving(never_ending) as port, ports.serves(port) as sandbox:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports.port)
        writer.write(f"POST {ports.by_path(sandbox)}/ HTTP/1.1\r\nhost: localhost\r\n".encode())
        writer.write(f"authorization: Bearer {key}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"hello")
            assert (await ports.rig.http.delete(f"/v1/me/tokens/{key[:12]}")).status_code == 204
            with suppress(ConnectionError):
                await reader.read()  # comes back only because the connection was broken off
        writer.transport.abort()
