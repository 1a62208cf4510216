"""A terminal that exists in memory only, and the little shell that runs on it."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from torpor.kit.race import Overtaken, race
from torpor.wire.host import TerminalSize

# Takes what a program writes.
Out = Callable[[bytes], Awaitable[None]]
# Runs words as a command whose output goes to `out`, and returns its exit code.
Run = Callable[[list[str], Out], Coroutine[Any, Any, int]]

_PROMPT = b"$ "
_INTERRUPT, _END = b"\x03", b"\x04"
_INTERRUPTED = 130


class FakeTerminal:
    """One terminal: it shows what is typed, and a line is a command.

    `read` returns what is typed next. Beside what `run` knows there are `stty size`, `echo $?` and `exit [CODE]`;
    Ctrl-C ends a command, Ctrl-D on an empty line the shell.
    """

    def __init__(self, size: TerminalSize, read: Callable[[], Awaitable[bytes]], out: Out, run: Run) -> None:
        self.size = size
        self._read, self._out, self._run = read, out, run
        self._ahead = bytearray()
        self._code = 0

    async def serve(self, argv: list[str]) -> int:
        """Run a command, or without one the shell, and return the exit code."""
        if argv:
            text = argv[2] if argv[:2] == ["/bin/sh", "-c"] else shlex.join(argv)
            await self._do(text, argv)
            return self._code
        while True:
            await self._out(_PROMPT)
            line = await self._line()
            if line is None or line.split()[:1] == ["exit"]:
                words = [] if line is None else line.split()
                return int(words[1]) if words[1:] else self._code
            if line.strip():
                await self._do(line, ["/bin/sh", "-c", line])

    async def _do(self, text: str, argv: list[str]) -> None:
        if text == "stty size":
            await self._out(f"{self.size.rows} {self.size.cols}\r\n".encode())
            self._code = 0
        elif text == "echo $?":
            await self._out(f"{self._code}\r\n".encode())
        else:
            try:
                self._code = await race(self._run(argv, self._write), self._interrupted())
            except Overtaken:
                await self._out(b"^C\r\n")
                self._code = _INTERRUPTED

    async def _write(self, data: bytes) -> None:
        await self._out(data.replace(b"\n", b"\r\n"))

    async def _line(self) -> str | None:
        held = bytearray()
        while True:
            key = await self._key()
            if key == _END and not held:
                return None
            if key == _INTERRUPT:
                held.clear()
                self._code = _INTERRUPTED
                await self._out(b"^C\r\n" + _PROMPT)
            elif key in (b"\r", b"\n"):
                await self._out(b"\r\n")
                return held.decode(errors="replace")
            else:
                held += key
                await self._out(key)

    async def _key(self) -> bytes:
        while not self._ahead:
            self._ahead += await self._read()
        key = bytes(self._ahead[:1])
        del self._ahead[:1]
        return key

    async def _interrupted(self) -> None:
        """Return when Ctrl-C is typed; what is typed before it is thrown away, as a terminal does."""
        while _INTERRUPT not in self._ahead:
            self._ahead += await self._read()
        del self._ahead[: self._ahead.index(_INTERRUPT) + 1]
