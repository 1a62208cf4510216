"""Requests and answers that two readers could read in two ways: none gets through, in either direction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from loopback_servers import answering, request_of, serving
from ports_rig import PATIENCE_S, PortsRig, ports_rig
from torpor.control.front import MAX_HEAD

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
SMUGGLED = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def ports() -> AsyncIterator[PortsRig]:
    async with ports_rig() as rig:
        yield rig


REFUSED = {
    "length and chunks": (
        "POST / HTTP/1.1",
        f"content-length: {len(SMUGGLED)}\r\ntransfer-encoding: chunked",
        SMUGGLED,
    ),
    "chunks and length": ("POST / HTTP/1.1", "transfer-encoding: chunked\r\ncontent-length: 4", "0\r\n\r\n" + SMUGGLED),
    "two lengths": ("POST / HTTP/1.1", "content-length: 0\r\ncontent-length: 36", SMUGGLED),
    "the same length twice": ("POST / HTTP/1.1", "content-length: 2\r\ncontent-length: 2", "ab"),
    "a list of lengths": ("POST / HTTP/1.1", "content-length: 2, 2", "ab"),
    "a signed length": ("POST / HTTP/1.1", "content-length: +2", "ab"),
    "a length in hexadecimal": ("POST / HTTP/1.1", "content-length: 0x2", "ab"),
    "another coding": ("POST / HTTP/1.1", "transfer-encoding: gzip, chunked", "0\r\n\r\n" + SMUGGLED),
    "a coding that is none": ("POST / HTTP/1.1", "transfer-encoding: xchunked", "0\r\n\r\n" + SMUGGLED),
    "a space before the colon": ("POST / HTTP/1.1", "transfer-encoding : chunked", "0\r\n\r\n" + SMUGGLED),
    "a tab before the coding's end": ("POST / HTTP/1.1", "transfer-encoding:\x0bchunked", "0\r\n\r\n" + SMUGGLED),
    "a size of a chunk that is none": ("POST / HTTP/1.1", "transfer-encoding: chunked", "0x2\r\nab\r\n0\r\n\r\n"),
    "a line that is folded": ("GET / HTTP/1.1", "x-a: b\r\n x-c: d", ""),
    "a line without a colon": ("GET / HTTP/1.1", "x-a", ""),
    "a carriage return alone": ("GET / HTTP/1.1", "x-a: b\rx-c: d", ""),
    "a zero byte": ("GET / HTTP/1.1", "x-a: b\x00c", ""),
    "two hosts": ("GET / HTTP/1.1", "host: other.example", ""),
    "a space in the path": ("GET /a b HTTP/1.1", "x-a: b", ""),
    "a path of another form": ("GET x HTTP/1.1", "x-a: b", ""),
    "a method to tunnel": ("CONNECT a:80 HTTP/1.1", "x-a: b", ""),
    "a method that echoes": ("TRACE / HTTP/1.1", "x-a: b", ""),
    "a version that is none": ("GET / HTTP/1.9", "x-a: b", ""),
    "characters beyond ASCII in the path": ("GET /\xff HTTP/1.1", "x-a: b", ""),
}


@pytest.mark.parametrize("name", list(REFUSED))
async def test_a_request_that_could_be_read_in_two_ways_is_refused_and_nothing_follows_it(
    ports: PortsRig, name: str
) -> None:
    line, more, body = REFUSED[name]
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        own = f"host: {ports.by_host(sandbox)}\r\nx-torpor-token: {await ports.token(sandbox)}\r\nconnection: close"
        answer = await ports.raw(f"{line}\r\n{own}\r\n{more}\r\n\r\n{body}".encode("latin-1"))
    status = int(answer.split(b" ", 2)[1])
    assert status in (400, 404, 405, 501, 505), answer
    assert came == []
    assert b"smuggled" not in answer


@pytest.mark.parametrize(
    "more",
    [
        "x-a: b\nx-smuggled: 1",
        "x-a: b\r\nX-Hop: 1\r\nconnection: host, x-hop, content-length",
        "transfer-encoding: chunked",
    ],
)
async def test_what_does_get_through_is_said_anew(ports: PortsRig, more: str) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        own = f"host: {ports.by_host(sandbox)}\r\nx-torpor-token: {await ports.token(sandbox)}\r\nconnection: close"
        body = "2\r\nab\r\n0\r\n\r\n" if "chunked" in more else ""
        answer = await ports.raw(f"POST / HTTP/1.1\r\n{own}\r\n{more}\r\n\r\n{body}".encode())
    if answer.startswith(b"HTTP/1.1 400"):
        assert came == []
        return
    assert answer.startswith(b"HTTP/1.1 200")
    (head,) = [request.partition(b"\r\n\r\n")[0].lower() for request in came]
    lines = head.split(b"\r\n")
    assert lines.count(b"connection: close") == 1
    assert [line for line in lines if line.startswith(b"host: ")] == [f"host: {ports.by_host(sandbox)}".encode()]
    assert b"\n" not in head.replace(b"\r\n", b"")
    assert not any(line.startswith((b"x-hop", b"x-torpor")) for line in lines)


@pytest.mark.parametrize("byte", ["%0d%0a", "%00", "%0a"])
async def test_line_ends_in_path_and_query_stay_encoded(ports: PortsRig, byte: str) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        headers = await ports.linked(sandbox)
        answer = await ports.http.get(f"/a{byte}x-evil:1?b={byte}x-evil:1", headers=headers)
    assert answer.status_code == 200
    assert came[0].split(b"\r\n")[0].lower() == f"get /a{byte}x-evil:1?b={byte}x-evil:1 http/1.1".encode()


HOSTILE = {
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status beyond all": b"HTTP/1.1 999 OK\r\ncontent-length: 0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "interim answers without end": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000,
    "length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
    "a header without a name": b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
    "a carriage return in a header": b"HTTP/1.1 200 OK\r\nx-a: b\rset-cookie: c\r\n\r\n",
    "a zero byte in a header": b"HTTP/1.1 200 OK\r\nx-a: b\0c\r\n\r\n",
    "headers that end in nothing": b"HTTP/1.1 200 OK\r\nx-a: b\r\n",
}


@pytest.mark.parametrize("name", list(HOSTILE))
async def test_an_answer_that_is_none_is_a_bad_gateway(ports: PortsRig, name: str) -> None:
    async with answering(HOSTILE[name]) as (port, _), ports.serves(port) as sandbox:
        answer = await ports.http.get("/", headers=await ports.linked(sandbox))
    assert (answer.status_code, answer.json()["code"]) == (502, "bad_answer"), answer.text
    assert answer.json()["error"].startswith("the server in the sandbox ")


async def test_headers_without_end_are_given_up(ports: PortsRig) -> None:
    sent = 0

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-a: " + b"b" * 1000 + b"\r\n")
            await writer.drain()
            sent += 1

    async with serving(server) as port, ports.serves(port) as sandbox:
        answer = await ports.http.get("/", headers=await ports.linked(sandbox))
    assert (answer.status_code, answer.json()["code"]) == (502, "bad_answer")
    assert sent < 20_000


async def test_a_server_that_breaks_off_before_its_answer_is_a_bad_gateway(ports: PortsRig) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)  # with bytes that were not read, closing is a reset
        writer.transport.abort()

    async with serving(server) as port, ports.serves(port) as sandbox:
        answer = await ports.http.get("/", headers=await ports.linked(sandbox))
    assert (answer.status_code, answer.json()["code"]) == (502, "bad_answer")


@pytest.mark.parametrize("kind", ["one line", "many lines", "trailers"])
async def test_a_head_without_end_is_refused_before_it_takes_much_room(ports: PortsRig, kind: str) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", ports.port)
    writer.write(b"POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\n")
    if kind == "trailers":
        writer.write(b"transfer-encoding: chunked\r\n\r\n0\r\n")
    more = b"a" * 8192 if kind == "one line" else b"x-a: " + b"a" * 8192 + b"\r\n"
    writer.write(b"x-b: ")
    sent = 0
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            while sent < 64 * 1024 * 1024:
                writer.write(more)
                await writer.drain()
                sent += len(more)
    writer.transport.abort()
    assert MAX_HEAD <= sent < 16 * 1024 * 1024  # what the sockets between hold counts, too


async def test_a_head_that_is_long_but_ends_is_served(ports: PortsRig) -> None:
    long = f"x-long: {'a' * (MAX_HEAD - 4096)}"
    answer = await ports.raw(
        f"GET /healthz HTTP/1.1\r\nhost: localhost\r\n{long}\r\nconnection: close\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 200")


async def test_what_follows_a_body_is_no_header(ports: PortsRig) -> None:
    async with answering(OK) as (port, came), ports.serves(port) as sandbox:
        own = f"host: {ports.by_host(sandbox)}\r\nx-torpor-token: {await ports.token(sandbox)}\r\nconnection: close"
        body = "2\r\nab\r\n0\r\nx-trailing: 1\r\nx-forwarded-for: 6\r\n\r\n"
        answer = await ports.raw(f"POST / HTTP/1.1\r\n{own}\r\ntransfer-encoding: chunked\r\n\r\n{body}".encode())
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"x-trailing" not in came[0]
