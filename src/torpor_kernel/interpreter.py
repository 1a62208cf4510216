"""The process that runs the cells, one after another, in one namespace. It is forked from the supervisor.

Its stdout and stderr are pipes that the supervisor reads; what else it has to say goes over a socket of its own, as
does each cell that it is to run. A message there is its length in four bytes (big-endian), and JSON.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import signal
import socket
import struct
import sys
import threading
import types
from typing import Any, NamedTuple

from torpor_kernel.display import Screen, clipped

# The flag of code that waits for something (`inspect.CO_COROUTINE`).
_WAITS = 0x80
_LENGTH = struct.Struct(">I")
_MOST_TRACEBACK = 256 * 1024
# The source of so many cells is kept for tracebacks.
_MOST_SOURCES = 1000


class Ending(NamedTuple):
    """How a cell ended: its exit code, and if it failed its traceback and the name of the exception."""

    exit: int = 0
    error: str | None = None
    name: str | None = None


class Interpreter:
    """Runs what `line` brings until its other end is closed."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._speaking = threading.RLock()
        self._pid = os.getpid()
        self._loop: Any = None
        # An interrupt that comes while no cell runs is nobody's, and one that comes in a message has to wait.
        self._is_running = self._is_deaf = self._is_interrupted = False
        self._screen = Screen(lambda bundle: self._say({"result": bundle}))
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self._names: dict[str, Any] = main.__dict__
        self._names["__builtins__"] = builtins

    def serve(self) -> None:
        """Run cells."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        builtins.input = _no_input
        self._screen.install()
        while True:
            order = self._next()
            if order is None:
                return
            ending = self._run(order["code"], order["number"])
            if os.getpid() != self._pid:  # a child that the cell has forked came to the cell's end, too
                os._exit(ending.exit)
            done = {"exit": ending.exit, "error": ending.error, "error_name": ending.name}
            self._say({"done": {**done, "truncated": self._screen.is_truncated}})

    def _run(self, code: str, number: int) -> Ending:
        self._screen.clear()
        try:
            self._is_interrupted, self._is_running = False, True
            try:
                ending = self._result(code, number)
                _flush()
            finally:
                self._is_running = False
        except BaseException as error:  # what was being told of the cell's end was interrupted
            ending = _failure(error)
            _flush()
        return ending

    def _result(self, code: str, number: int) -> Ending:
        ending = Ending()
        try:
            self._execute(code, number)
        except BaseException as error:
            ending = _failure(error)
        if os.getpid() == self._pid:
            try:
                self._screen.show_figures()
            except Exception as error:
                ending = ending if ending.exit else _failure(error)
        return ending

    def _execute(self, code: str, number: int) -> None:
        file = f"<cell {number}>"
        linecache.cache.pop(f"<cell {number - _MOST_SOURCES}>", None)
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        body = list(compile(code, file, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True).body)
        last = body.pop() if body and isinstance(body[-1], ast.Expr) and not _is_silenced(code) else None
        codes = [compile(ast.Module(body, []), file, "exec", flags, dont_inherit=True)]
        if isinstance(last, ast.Expr):
            codes.append(compile(ast.Expression(last.value), file, "eval", flags, dont_inherit=True))
        value = self._evaluate(codes)
        if value is not None:
            self._names["_"] = value
            self._screen.display(value)

    def _evaluate(self, codes: list[types.CodeType]) -> Any:
        """Run pieces of code, and return the value of the last one. If one of them waits, a loop runs for all."""
        if any(code.co_flags & _WAITS for code in codes):
            return self._awaited(self._waiting(codes))
        return [eval(code, self._names) for code in codes][-1]  # noqa: S307 - what it is for

    async def _waiting(self, codes: list[types.CodeType]) -> Any:
        value = None
        for code in codes:
            value = eval(code, self._names)  # noqa: S307
            if code.co_flags & _WAITS:
                value = await value
        return value

    def _awaited(self, coroutine: Any) -> Any:
        """Run a coroutine in the loop of all cells, so that what one has begun goes on in the next that waits."""
        import asyncio  # noqa: PLC0415 - it is slow to import, and most cells need none

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task]))
            raise

    def _on_interrupt(self, *_: object) -> None:
        if self._is_deaf:
            self._is_interrupted = True
        elif self._is_running:
            raise KeyboardInterrupt

    def _say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        in_main = threading.current_thread() is threading.main_thread()
        with self._speaking:
            self._is_deaf = self._is_deaf or in_main
            try:
                self._line.sendall(_LENGTH.pack(len(data)) + data)
            finally:
                if in_main:
                    self._is_deaf = False
        if in_main and self._is_interrupted:
            self._is_interrupted = False
            if self._is_running:
                raise KeyboardInterrupt

    def _next(self) -> Any:
        """Return the next order, None if there will be none."""
        head = self._read(_LENGTH.size)
        body = head and self._read(_LENGTH.unpack(head)[0])
        return json.loads(body) if body else None

    def _read(self, size: int) -> bytes:
        """Return so many bytes; none if the supervisor is gone."""
        data = b""
        while len(data) < size:
            piece = self._line.recv(size - len(data))
            if not piece:
                return b""
            data += piece
        return data


def _failure(error: BaseException) -> Ending:
    """Return how a cell ended that raised."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return Ending((error.code or 0) & 0xFF)
        print(error.code, file=sys.stderr)
        return Ending(1)
    import traceback  # noqa: PLC0415 - as little as can be is imported before the first cell

    told = traceback.TracebackException(type(error), error, error.__traceback__)
    _leave_out_ours(told, set())
    lines = list(told.format())
    if isinstance(error, SyntaxError) and (error.text or "").lstrip()[:1] in ("!", "%"):
        lines.append("Lines that begin with ! or % are IPython's and not Python; subprocess runs commands.\n")
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    return Ending(code, clipped("".join(lines), _MOST_TRACEBACK), type(error).__name__)


def _leave_out_ours(told: Any, seen: set[int]) -> None:
    """Leave out what is before the cell in a traceback, and our own frames, here and in what it came from."""
    seen.add(id(told))
    frames = list(told.stack)
    begin = next((at for at, frame in enumerate(frames) if frame.filename.startswith("<cell ")), len(frames))
    kept = [frame for frame in frames[begin:] if not frame.filename.startswith("<torpor_kernel.")]
    told.stack = type(told.stack).from_list(kept)
    for other in (told.__cause__, told.__context__):
        if other is not None and id(other) not in seen:
            _leave_out_ours(other, seen)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # the cell has put something else there, or closed it
            continue


def _is_silenced(code: str) -> bool:
    """Tell whether a cell ends with a semicolon, so that its last value is not wanted."""
    if ";" not in code:
        return False
    import io  # noqa: PLC0415
    import tokenize  # noqa: PLC0415

    last = ""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.OP:
            last = token.string
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT):
            last = ""
    return last == ";"


def _no_input(*_: object) -> str:
    raise EOFError("input() has nobody to ask in a code context: put the value into the code")
