"""Terminals: commands that talk with a person, or with a program that plays one."""

from __future__ import annotations

import contextlib
import os
import signal as signals
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from torpor.errors import Conflict, NotFound
from torpor.sdk._sync.life import Life
from torpor.sdk._sync.line import Line
from torpor.sdk._sync.process import Process
from torpor.sdk.http import making
from torpor.sdk.listening import Deadline
from torpor.sdk.orders import opening
from torpor.sdk.output import Callback, Output
from torpor.sdk.results import ProcessInfo
from torpor.sdk.waiting import sync_deliver
from torpor.wire.processes import ProcessView

if TYPE_CHECKING:
    from types import TracebackType

    from torpor.sdk._sync.client import Client


class Pty:
    """A command on a terminal of its own, as `sandbox.pty` gives it.

        with sbx.pty() as shell:    # the user's login shell
            shell.write("stty size; exit 3\\r")
            for shown in shell:           # bytes as they come, control sequences and all
                print(shown)
            print(shell.exit_code)              # 3

    It is a process like others: it survives a hibernation, a restart of the server, and whoever started it; another
    program finds it by its `id`. Leaving the block hangs it up. Reading goes on from the byte where a broken connection
    ended. What is shown and not read is kept, the newest 1 MiB of it.
    """

    def __init__(self, client: Client, view: ProcessView, on_output: Callback | None = None) -> None:
        self._client = client
        self._process = process = Process(client, view)
        self._on_output = on_output
        self._listened = process.listened()
        self._line: Line | None = None
        self._pieces: Generator[Output, None] | None = None
        self._has_ended = False

    @property
    def id(self) -> str:
        """Its id, by which `sandbox.attach` finds it."""
        return self._process.id

    @property
    def info(self) -> ProcessInfo:
        """What the server last said of it."""
        return self._process.info

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None as long as its end has not been read."""
        return self._process.exit_code

    def write(self, data: str | bytes) -> int:
        """Type, and return how many bytes were taken. `"\\r"` is the Enter key, `"\\x03"` Ctrl-C, `"\\x04"` Ctrl-D.

        A write whose answer was lost is not sent again. Raises Conflict once it has ended.
        """
        return self._process.write_stdin(data)

    def read(self, timeout: float | None = None) -> bytes:
        """Return what it shows next, b"" once it has ended. With a `timeout` (in seconds) raises TimeoutError after it.

        Raises ExecTimeout if it was killed for outlasting its own timeout, SandboxLost, OutcomeUnknown.
        """
        if self._has_ended:
            return b""
        if timeout is not None:
            self._leave()  # the next line is one with an end
        if self._pieces is None:
            self._line = Line(self._client, self._listened, Deadline(timeout))
            self._pieces = self._line.pieces()
        piece = self._next(self._pieces)
        if timeout is not None:
            self._leave()
        if piece and self._on_output is not None:
            sync_deliver(self._on_output, piece)
        return piece

    def _next(self, pieces: Generator[Output, None]) -> bytes:
        for piece in pieces:
            return piece.data
        self._has_ended = True
        if self._line is not None and self._line.end is not None:
            self._process.ended(self._line.end)
        return b""

    def output(self) -> Iterator[bytes]:
        """Yield what it shows, as it comes, to its end. A loop over the terminal itself is the same."""
        while piece := self.read():
            yield piece

    def __iter__(self) -> Iterator[bytes]:
        return self.output()

    def wait(self, timeout: float | None = None) -> int:
        """Read on to its end, and return its exit code. After `timeout` seconds raises TimeoutError, and it runs on."""
        deadline = Deadline(timeout)
        while self.read(None if timeout is None else deadline.left_s()):
            pass
        return self._process.exit_code or 0

    def resize(self, rows: int, cols: int) -> None:
        """Give it another size, of which its programs are told by SIGWINCH. Raises Conflict once it has ended."""
        self._process.resize(rows, cols)

    def kill(self, signal: int | str | signals.Signals = signals.SIGKILL) -> None:
        """Send a signal: SIGKILL to all it started, SIGHUP hangs it up, another goes to what is in the foreground.

        Raises Conflict once it has ended.
        """
        self._process.kill(signal)

    def close(self) -> None:
        """Hang it up: its programs get SIGHUP. Idempotent; that it is gone already is no error."""
        self._leave()
        if not self._has_ended:
            self._has_ended = True
            with contextlib.suppress(Conflict, NotFound):
                self._process.kill(signals.SIGHUP)

    def _leave(self) -> None:
        if self._pieces is not None:
            pieces, self._pieces = self._pieces, None
            pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._process.info.sandbox_id}>"


class Terminals(Life):
    """The part of a sandbox that has to do with terminals."""

    def pty(  # noqa: PLR0913 - each is one thing to say about a terminal
        self,
        cmd: str | Sequence[str | os.PathLike[str]] | None = None,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_seconds: float | None = None,
        on_output: Callback | None = None,
        hangup_seconds: float | None = None,
    ) -> Pty:
        """Start a command on a terminal of its own, or without `cmd` the user's login shell.

        `timeout_seconds` bounds its running time. `on_output` is called with the bytes it shows, whenever they are
        read. `hangup_seconds`: once nobody has read from it for so long (while the sandbox is awake) it is hung up;
        None: it waits for ever, as far as its sandbox does. A terminal from which nobody reads does not keep its
        sandbox from being idle.

        Raises InvalidRequest, NotFound, Conflict, SandboxLost, Busy (64 terminals are open in it).
        """
        clocks = (timeout_seconds, hangup_seconds)
        content = opening(cmd, (rows, cols), clocks, cwd=cwd, env=env, user=user)
        call = making(f"{self._path}/processes", content)
        return Pty(self._client, self._client.fetch_as(ProcessView, call), on_output)
