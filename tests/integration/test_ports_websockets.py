"""WebSockets to servers in sandboxes, through a real server of ours on a socket; the host is a fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request

from loopback_servers import answering, closed_port, serving
from ports_rig import IN_GUEST, PATIENCE_S, PortsRig, ports_rig
from torpor.control.proxy.websockets import MAX_MESSAGE
from torpor.model.ids import SandboxId


@pytest.fixture
async def ports() -> AsyncIterator[PortsRig]:
    async with ports_rig() as rig:
        yield rig


async def echo(line: ServerConnection) -> None:
    async for message in line:
        if message == "bye":
            await line.close(4001, "as you wish")
            return
        await line.send(message)


@asynccontextmanager
async def server(**more: object) -> AsyncIterator[int]:
    async with serve(echo, "127.0.0.1", 0, max_size=2 * MAX_MESSAGE, **more) as listening:  # type: ignore[arg-type]
        yield next(iter(listening.sockets)).getsockname()[1]


def opened(ports: PortsRig, sandbox: str, headers: dict[str, str], **more: object) -> connect:
    """Return a connection by path."""
    url = f"ws://127.0.0.1:{ports.port}{ports.by_path(sandbox)}/chat?x=1"
    more = {"max_size": 2 * MAX_MESSAGE, "proxy": None, **more}
    return connect(url, additional_headers=headers, **more)  # type: ignore[arg-type]


async def test_messages_of_a_mebibyte_pass_both_ways_and_wake_the_sandbox(ports: PortsRig) -> None:
    async with server() as port, ports.serves(port) as sandbox:
        await ports.rig.post(sandbox, "hibernate")
        async with opened(ports, sandbox, ports.key()) as line, asyncio.timeout(PATIENCE_S):
            for message in (bytes(range(256)) * 4096, "ä" * (1 << 19), "", b""):
                await line.send(message)
                assert await line.recv() == message
            assert ports.rig.plane.activity.in_flight(SandboxId(sandbox)) == 1
    assert ports.rig.host.calls["wake"] == 1


async def test_by_host_with_a_link_or_its_cookie(ports: PortsRig) -> None:
    async with server() as port, ports.serves(port) as sandbox:
        token = await ports.token(sandbox)
        url = f"ws://{ports.by_host(sandbox)}"
        for query, headers in (
            (f"?torpor_token={token}", {}),
            ("", {"x-torpor-token": token}),
            ("", {"cookie": f"torpor-link={token}", "origin": f"http://{ports.by_host(sandbox)}"}),
        ):
            async with connect(
                f"{url}/{query}", host="127.0.0.1", port=ports.port, additional_headers=headers, proxy=None
            ) as line:
                await line.send("hello")
                assert await line.recv() == "hello"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", None])
async def test_nobody_without_a_link_and_no_page_of_another_site_with_a_cookie_gets_through(
    ports: PortsRig, origin: str | None
) -> None:
    async with server() as port, ports.serves(port) as sandbox:
        headers = {} if origin is None else {"origin": origin, "cookie": f"torpor-link={await ports.token(sandbox)}"}
        with pytest.raises(InvalidStatus) as refused:
            await connect(
                f"ws://{ports.by_host(sandbox)}/",
                host="127.0.0.1",
                port=ports.port,
                additional_headers=headers,
                proxy=None,
            )
    assert refused.value.response.status_code == 401


async def test_the_server_chooses_the_subprotocol_and_sees_what_the_client_says(ports: PortsRig) -> None:
    seen: list[dict[str, str]] = []

    def note(line: ServerConnection, request: Request) -> None:
        seen.append({name.lower(): value for name, value in request.headers.raw_items()} | {"path": request.path})

    async with (
        server(subprotocols=["b", "a"], process_request=note) as port,
        ports.serves(port) as sandbox,
        opened(ports, sandbox, ports.key() | {"x-mine": "1"}, subprotocols=["a", "b"]) as line,
    ):
        assert line.subprotocol in ("a", "b")
    assert (seen[0]["path"], seen[0]["x-mine"]) == ("/chat?x=1", "1")
    assert seen[0]["sec-websocket-protocol"].replace(" ", "") == "a,b"
    assert "authorization" not in seen[0]
    assert "sec-websocket-extensions" not in seen[0]


async def test_codes_and_reasons_of_a_close_pass_both_ways(ports: PortsRig) -> None:
    heard: asyncio.Queue[tuple[int | None, str | None]] = asyncio.Queue()

    async def listen(line: ServerConnection) -> None:
        await line.wait_closed()
        await heard.put((line.close_code, line.close_reason))

    async with server() as port, ports.serves(port) as sandbox:
        async with opened(ports, sandbox, ports.key()) as line:
            await line.send("bye")
            with pytest.raises(ConnectionClosed):
                await line.recv()
            assert (line.close_code, line.close_reason) == (4001, "as you wish")
        async with serve(listen, "127.0.0.1", 0) as listening:
            ports.rig.host.servers[IN_GUEST] = next(iter(listening.sockets)).getsockname()[1]
            for code, reason in ((4002, "enough"), (1001, ""), (1000, "")):
                async with opened(ports, sandbox, ports.key()) as line:
                    await line.close(code, reason)
                assert await asyncio.wait_for(heard.get(), PATIENCE_S) == (code, reason)


async def test_pings_of_either_side_are_answered(ports: PortsRig) -> None:
    ponged = asyncio.Event()

    async def ping(line: ServerConnection) -> None:
        await (await line.ping(b"guest"))
        ponged.set()
        await line.wait_closed()

    async with serve(ping, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        async with ports.serves(port) as sandbox, opened(ports, sandbox, ports.key()) as line:
            async with asyncio.timeout(PATIENCE_S):
                await (await line.ping(b"client"))
                await ponged.wait()


async def test_a_client_that_vanishes_closes_the_connection_to_the_server(ports: PortsRig) -> None:
    gone = asyncio.Event()

    async def watch(line: ServerConnection) -> None:
        await line.wait_closed()
        gone.set()

    async with serve(watch, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        async with ports.serves(port) as sandbox:
            line = await opened(ports, sandbox, ports.key())
            line.transport.abort()
            async with asyncio.timeout(PATIENCE_S):
                await gone.wait()


async def test_a_server_that_vanishes_is_a_close_that_says_so(ports: PortsRig) -> None:
    async def abort(line: ServerConnection) -> None:
        await line.send("one")
        await line.recv()
        line.transport.abort()

    async with serve(abort, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        async with ports.serves(port) as sandbox, opened(ports, sandbox, ports.key()) as line:
            assert await line.recv() == "one"
            await line.send("go")
            with pytest.raises(ConnectionClosed):
                await line.recv()
    assert line.close_code == 1014


async def test_a_message_that_is_too_long_is_refused_in_either_direction(ports: PortsRig) -> None:
    async def long(line: ServerConnection) -> None:
        await line.send(bytes(MAX_MESSAGE + 1))
        await line.wait_closed()

    async with server() as port, ports.serves(port) as sandbox:
        async with opened(ports, sandbox, ports.key()) as line:
            with pytest.raises(ConnectionClosed):
                await asyncio.gather(line.send(bytes(MAX_MESSAGE + 1)), line.recv())
        assert line.close_code == 1009
        async with serve(long, "127.0.0.1", 0) as listening:
            ports.rig.host.servers[IN_GUEST] = next(iter(listening.sockets)).getsockname()[1]
            async with opened(ports, sandbox, ports.key()) as line:
                with pytest.raises(ConnectionClosed):
                    await line.recv()
            assert line.close_code == 1009


async def test_a_refusal_of_the_server_is_passed_on(ports: PortsRig) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 6\r\nset-cookie: a=1\r\nx-why: so\r\n\r\nnot so"
    async with answering(refusal) as (port, _), ports.serves(port) as sandbox:
        with pytest.raises(InvalidStatus) as refused:
            await opened(ports, sandbox, ports.key())
    response = refused.value.response
    assert (response.status_code, response.body, response.headers["x-why"]) == (403, b"not so", "so")
    assert "set-cookie" not in response.headers


HOSTILE = {
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
    "no handshake": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "too many headers": b"HTTP/1.1 101 Switching Protocols\r\n" + b"x-a: b\r\n" * 10_000,
}


@pytest.mark.parametrize("name", list(HOSTILE))
async def test_an_answer_that_is_no_handshake_is_a_bad_gateway(ports: PortsRig, name: str) -> None:
    async with answering(HOSTILE[name]) as (port, _), ports.serves(port) as sandbox:
        with pytest.raises(InvalidStatus) as refused:
            await opened(ports, sandbox, ports.key())
    assert refused.value.response.status_code == 502


async def test_nobody_listening_and_no_such_sandbox_are_told(ports: PortsRig) -> None:
    async with ports.serves(closed_port()) as sandbox:
        for one, headers, status in (
            (sandbox, ports.key(), 502),
            ("sbx-0000000000000000", ports.key(), 404),
            (sandbox, {}, 401),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await opened(ports, one, headers)
            assert refused.value.response.status_code == status


async def test_a_websocket_by_link_is_closed_when_the_link_expires(ports: PortsRig) -> None:
    async with server() as port, ports.serves(port) as sandbox:
        token = await ports.token(sandbox, seconds=60)
        async with opened(ports, sandbox, {"x-torpor-token": token}) as line:
            await line.send("still")
            assert await line.recv() == "still"
            await ports.rig.clock.jump(62)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(line.recv(), PATIENCE_S)
        assert line.close_code in (1006, 1008)


@pytest.mark.parametrize("way", ["key", "link"])
@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_websocket_is_closed_when_the_key_behind_it_ends(ports: PortsRig, ends: str, way: str) -> None:
    async with server() as port, ports.serves(port) as sandbox:
        made = await ports.rig.http.post("/v1/me/tokens", json={"label": "short", "expires_in_days": 1})
        key = made.json()["token"]
        headers = {"authorization": f"Bearer {key}"}
        if way == "link":
            path, long = f"/v1/sandboxes/{sandbox}/ports/{IN_GUEST}/link", {"expires_seconds": 10 * 86_400}
            link = await ports.rig.http.post(path, json=long, headers=headers)
            headers = {"x-torpor-token": link.json()["token"]}
        async with opened(ports, sandbox, headers) as line:
            await line.send("still")
            assert await line.recv() == "still"
            if ends == "revoked":
                assert (await ports.rig.http.delete(f"/v1/me/tokens/{key[:12]}")).status_code == 204
            else:
                await ports.rig.clock.jump(86_400)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(line.recv(), PATIENCE_S)


async def test_a_text_that_is_none_ends_the_websocket(ports: PortsRig) -> None:
    async def handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from websockets.server import ServerProtocol

        protocol = ServerProtocol()
        protocol.receive_data(await reader.readuntil(b"\r\n\r\n"))
        (request,) = protocol.events_received()
        protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
        writer.write(b"".join(protocol.data_to_send()) + b"\x81\x02\xff\xfe")
        await writer.drain()
        await reader.read()

    async with (
        serving(handshake) as port,
        ports.serves(port) as sandbox,
        opened(ports, sandbox, ports.key()) as line,
    ):
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(line.recv(), PATIENCE_S)
    assert line.close_code == 1014
