"""The whole control plane over a fake host, on a real socket, for tests of whatever speaks its HTTP API."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from torpor.control.front import front
from torpor.control.keys import load_or_make_key
from torpor.control.main import ControlConfig, control_plane
from torpor.testing.host import FakeHost

_START_S = 30.0


@contextmanager
def running_server(home: Path, host: FakeHost | None = None) -> Iterator[tuple[str, str]]:
    """Serve while the block lasts, in a thread of its own on a free port of 127.0.0.1, and yield the URL and the key.

    `host` is used by that thread's event loop: set its `fail`, `lose_answer` and `down` from outside, nothing else.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = load_or_make_key(home)
    with _listening() as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = _Server(home, host, listening)
        server.start()
        try:
            server.wait_ready()
            yield url, key
        finally:
            server.stop()


def _listening() -> socket.socket:
    # asyncio turns Nagle's algorithm off only on sockets that say they are TCP; with it, answers come 40 ms late.
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.bind(("127.0.0.1", 0))
    opened.listen()
    return opened


class _Server(threading.Thread):
    def __init__(self, home: Path, host: FakeHost | None, listening: socket.socket) -> None:
        super().__init__(name="torpor-test-server")
        self._home, self._host, self._listening = home, host, listening
        self._ready = threading.Event()
        self._uvicorn: uvicorn.Server | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._ready.set()

    def wait_ready(self) -> None:
        """Return when the server answers. Raises what kept it from starting."""
        if not self._ready.wait(_START_S):
            raise TimeoutError("the test server did not start")
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the server and wait for the thread."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
        self.join()

    async def _serve(self) -> None:
        host = self._host or FakeHost()
        async with control_plane(ControlConfig(self._home), host.transport()) as app:
            self._uvicorn = _Announcing(front(app), self._ready)
            await self._uvicorn.serve(sockets=[self._listening])


class _Announcing(uvicorn.Server):
    """Tells when it has begun to serve."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()
