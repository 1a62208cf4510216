"""A TCP forwarder that can fall silent, as a dropped network does, and then lead to another server."""

from __future__ import annotations

import asyncio
import threading
import time


class SilentForwarder:
    """Forwards connections from a port of its own to one server, until `fall_silent`.

    `run` serves in one thread's event loop; everything else may be called from other threads.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listening = threading.Event()
        self._silent_since: float | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Its own address, as a URL."""
        return f"http://127.0.0.1:{self._port}"

    def fall_silent(self) -> None:
        """Let nothing pass from now on. Connections stay open."""
        if self._silent_since is None:
            self._silent_since = time.monotonic()

    def lead_to(self, host: str, port: int) -> None:
        """Let connections that are made from now on end elsewhere."""
        self._target = (host, port)

    def silent_for_s(self) -> float:
        """Return how long it has been silent, in seconds."""
        assert self._silent_since is not None, "it never fell silent"
        return time.monotonic() - self._silent_since

    def wait_listening(self) -> None:
        """Return when connections are accepted."""
        assert self._listening.wait(10)

    def stop(self) -> None:
        """Make `run` end."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def run(self) -> None:
        """Serve until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()  # no server is there now
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, there_writer))
                both.create_task(self._pump(there_reader, writer))
        except* OSError:
            pass  # one side closed on the other
        finally:
            writer.close()
            there_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._silent_since is not None:
                await self._stop.wait()
                return
            writer.write(data)
            await writer.drain()
        writer.write_eof()
