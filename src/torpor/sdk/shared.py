"""The client that is used where none is given: one for each server, made at first use, closed at the end."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncGenerator

from torpor.sdk._async.client import AsyncClient
from torpor.sdk._sync.client import Client
from torpor.sdk.settings import Server, locate

_lock = threading.Lock()
_clients: dict[Server, Client] = {}

Keeper = AsyncGenerator[AsyncClient, None]
_keepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Server, tuple[AsyncClient, Keeper]]]
_keepers = weakref.WeakKeyDictionary()


def shared_client() -> Client:
    """Return this process's client of the configured server, safe to use from any thread and after a fork.

    The server is looked up at every call, so a program follows one that was restarted at another address. Raises as
    `Client` does.
    """
    server = locate()
    with _lock:
        if server not in _clients:
            _clients[server] = Client(server.url, server.key)
        return _clients[server]


async def shared_async_client() -> AsyncClient:
    """Return the running event loop's client of the configured server. `asyncio.run` closes it with the loop."""
    server = locate()
    kept = _keepers.setdefault(asyncio.get_running_loop(), {})
    if server not in kept:
        client = AsyncClient(server.url, server.key)
        kept[server] = (client, _open_while_the_loop_runs(client, kept, server))
        await anext(kept[server][1])
    return kept[server][0]


async def _open_while_the_loop_runs(
    client: AsyncClient, kept: dict[Server, tuple[AsyncClient, Keeper]], server: Server
) -> Keeper:
    # A loop that ends closes its suspended generators first, which is the one moment left to close connections in.
    try:
        yield client
    finally:
        kept.pop(server, None)
        await client.aclose()


@atexit.register
def _close_all() -> None:
    for client in _clients.values():
        client.close()


def _renew_lock() -> None:
    # The parent's lock may have been held by a thread that does not exist in the child.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
