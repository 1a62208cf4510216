"""The one way out of the jail that pulls images: a proxy that connects to public addresses and to listed registries.

The jail has no network, so what a registry says, such as where else to go, changes nothing: names are looked up here,
and what was looked up is what is connected to. It speaks CONNECT only, so all that passes is TLS; a listed registry on
this host's loopback has a socket of its own, and no TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from torpor.errors import InvalidRequest
from torpor.kit.shielded import end_tasks
from torpor.kit.sockets import listen_at
from torpor.storage.references import Allowed, Reference, refusal

PROXY_PORT = 3128
PROXY, LOOPBACK = "proxy.sock", "loopback.sock"
_PIECE = 65536
_LONGEST_LINE = 8192
_MOST_LINES = 64
_PATIENCE_S = 30.0
_CONNECTED = b"HTTP/1.1 200 connected\r\n\r\n"
_CONNECT = re.compile(rb"CONNECT (\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5}) HTTP/1\.[01]\r\n")

Connect = Callable[[asyncio.StreamReader], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a name. Raises InvalidRequest if it has none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"the registry {host} is not known by that name: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def check_registry(reference: Reference, allowed: Allowed) -> None:
    """Raise InvalidRequest for a registry that may not be spoken to; what is connected to later is checked again."""
    if reference.is_loopback and reference.port is None:
        raise InvalidRequest(f"the registry {reference.host} is on this host, so its port has to be named")
    if reference.host is None or allowed.lists(reference.host, reference.port):
        return
    if (why := refusal(reference.host, await addresses_of(reference.host, reference.port or 443))) is not None:
        raise why


@asynccontextmanager
async def gateway(folder: Path, reference: Reference, allowed: Allowed) -> AsyncIterator[list[str]]:
    """Open the way out as sockets in a folder, and yield the words that lead to them in the jail, as `relay.py` has
    them with the folder as `/gateway`.
    """
    async with AsyncExitStack() as undo:
        proxied = _listening(folder / PROXY, lambda reader: _proxied(reader, allowed), _CONNECTED)
        await undo.enter_async_context(proxied)
        words = [f"{PROXY_PORT}=/gateway/{PROXY}"]
        if reference.is_loopback and reference.host is not None and reference.port is not None:
            host, port = reference.host.strip("[]"), reference.port
            direct = _listening(folder / LOOPBACK, lambda _: asyncio.open_connection(host, port, limit=_PIECE), b"")
            await undo.enter_async_context(direct)
            words.append(f"{port}=/gateway/{LOOPBACK}")
        yield words


@asynccontextmanager
async def _listening(path: Path, connect: Connect, greeting: bytes) -> AsyncIterator[None]:
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await _serve(reader, writer, connect, greeting)

    server = await asyncio.start_unix_server(serve, sock=listen_at(path), limit=_LONGEST_LINE)
    try:
        yield
    finally:
        server.close()
        await end_tasks(*tasks)
        path.unlink(missing_ok=True)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: Connect, greeting: bytes) -> None:
    other: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            far, other = await connect(reader)
        writer.write(greeting)
        await asyncio.gather(_pass_on(reader, other), _pass_on(far, writer))
    except InvalidRequest as error:
        writer.write(f"HTTP/1.1 403 {error.message}\r\nContent-Length: 0\r\n\r\n".encode("ascii", "replace"))
        with contextlib.suppress(OSError):
            await writer.drain()
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        pass  # whoever connected hears that it is closed
    finally:
        for each in (writer, other):
            if each is not None:
                each.close()


async def _proxied(reader: asyncio.StreamReader, allowed: Allowed) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Read what is asked of the proxy, and connect. Raises InvalidRequest if that is not to be, OSError."""
    first = await reader.readline()
    for _ in range(_MOST_LINES):
        if await reader.readline() in {b"\r\n", b""}:
            break
    found = _CONNECT.fullmatch(first)
    if found is None:
        raise InvalidRequest("only TLS passes here")
    host, port = found[1].decode().strip("[]"), int(found[2])
    addresses = await addresses_of(host, port)
    if not allowed.lists(host, port) and (why := refusal(host, addresses)) is not None:
        raise why
    last: OSError = ConnectionRefusedError()
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port, limit=_PIECE)
        except OSError as error:
            last = error
    raise last


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_PIECE):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
