"""A command whose stdin is passed on as it comes, however much it is."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable

from torpor.cli import output
from torpor.errors import Conflict, TorporError
from torpor.sdk import Process

_CHUNK = 256 * 1024


def talk(start: Callable[[], Process]) -> int:
    """Start a command with an open stdin, pass ours on to it and its output to ours, and return its exit code.

    Ctrl-C ends it. Raises ExecTimeout, and what keeps its input or output from being passed on.
    """
    process = start()
    feeder = _Feeder(process)
    try:
        with feeder:
            for stream, data in process:
                (output.to_stdout if stream == "stdout" else output.to_stderr)(data)
    except BaseException:
        with contextlib.suppress(TorporError):
            process.kill()
        raise
    if feeder.failure is not None:
        raise feeder.failure
    return process.exit_code or 0


class _Feeder:
    """Passes on what comes while a block lasts, in a thread of its own. What the command does not read is no error."""

    def __init__(self, process: Process) -> None:
        self.failure: TorporError | None = None
        self._process = process
        self._stop, self._stopping = os.pipe()
        self._thread = threading.Thread(target=self._run, name="stdin", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        os.close(self._stopping)  # which the thread sees, unless it waits for the command to read
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            os.close(self._stop)

    def _run(self) -> None:
        try:
            while chunk := self._next():
                self._process.write_stdin(chunk)
            self._process.close_stdin()
        except Conflict:  # it reads no more
            return
        except TorporError as error:
            self.failure = error
            with contextlib.suppress(TorporError):  # without all of its input its work is not what was asked for
                self._process.kill()

    def _next(self) -> bytes:
        """Return what comes next, b"" at the end of it or of the block."""
        source = sys.stdin.fileno()
        ready, _, _ = select.select([source, self._stop], [], [])
        return os.read(source, _CHUNK) if source in ready and self._stop not in ready else b""
