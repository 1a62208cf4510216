"""A code context's interpreter for the fake host: the real program, run by this machine's own Python.

It is a process of the test's machine, in a session of its own. Neither a pause nor a snapshot knows of it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import select
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress

from torpor.kit.shielded import shielded
from torpor.wire import host

Write = Callable[[bytes], Awaitable[None]]
_CHUNK = 64 * 1024


class FakeInterpreter:
    """Runs the interpreter that an order starts. `out` and `err` take what it writes."""

    def __init__(self, order: host.ExecOrder, out: Write, err: Write) -> None:
        self._order, self._writes = order, (out, err)
        self._process: Process | None = None

    @staticmethod
    def is_meant(order: host.ExecOrder) -> bool:
        """Tell whether an order is one for an interpreter."""
        return isinstance(order, host.JobOrder) and order.open_stdin and order.argv[:2] == ["python3", "-c"]

    def kill(self) -> None:
        """End it, and wait until it is gone. For those who are in no event loop, or in another one."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                gone = os.pidfd_open(self._process.pid)
                os.kill(self._process.pid, signal.SIGTERM)
                select.select([gone], [], [])
                os.close(gone)

    async def run(self, read: Callable[[], Awaitable[bytes]], env: dict[str, str]) -> int:
        """Run it with what `read` returns as its input, to its end, and return its exit code."""
        argv = [sys.executable, *self._order.argv[1:]]
        self._process = process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**os.environ, **env}, start_new_session=True
        )
        works = [asyncio.create_task(work) for work in (self._feed(process, read), self._listen(process))]
        try:
            await works[1]
            return await process.wait()
        finally:
            await shielded(self._end(process, works))

    async def _end(self, process: Process, works: list[asyncio.Task[None]]) -> None:
        """End all of it; cut short, it would leave the processes that only the program itself knows."""
        self.signal("SIGKILL")
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await process.wait()

    def signal(self, name: str) -> None:
        """Send it a signal. SIGKILL is for all its processes, which only it knows: so it is asked to end them."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM if name == "SIGKILL" else signal.Signals[name])

    async def _feed(self, process: Process, read: Callable[[], Awaitable[bytes]]) -> None:
        assert process.stdin is not None
        data = base64.b64decode(self._order.stdin or "")
        while True:
            with suppress(ConnectionError):
                process.stdin.write(data)
                await process.stdin.drain()
            data = await read()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None

        async def pass_on(source: asyncio.StreamReader, write: Write) -> None:
            while data := await source.read(_CHUNK):
                await write(data)

        sources = (process.stdout, process.stderr)
        await asyncio.gather(*(pass_on(source, write) for source, write in zip(sources, self._writes, strict=True)))
