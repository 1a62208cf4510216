"""Programs: run one to its end, or keep one and know when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import cast

from torpor.kit.procfs import ProcessMark, mark_of
from torpor.kit.shielded import shielded

# util-linux' setpriv has the kernel kill the child when the thread that started it, our main one, is no more; the shell
# then looks whether it was too late for that, and becomes the program.
_DIES_WITH_OWNER = ("setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')

# A shell tells by exit codes above this one that a program was ended by a signal, and by which.
_SIGNALLED = 128

# Of what a program writes, so much is held in memory.
_KEPT_BYTES = 4 * 1024 * 1024


class ProgramMissing(OSError):
    """The program is not installed, or not where it was looked for."""


class ProgramFailed(RuntimeError):
    """A program ended with another code than 0. `output` is the end of what it wrote, stdout and stderr together."""

    def __init__(self, argv: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"{argv[0]} ended with code {code}: {output.strip() or 'no output'}")
        self.argv, self.code, self.output = tuple(argv), code, output


async def run(argv: Sequence[str], *, log: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end and return what it wrote, stdout and stderr as one text: the newest 4 MiB.

    `log` gets all of it, appended as it comes. Raises ProgramMissing or ProgramFailed. Cancelled, it kills the program
    with its children and waits until it is gone.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )
    except FileNotFoundError as error:
        raise ProgramMissing(f"the program {argv[0]} is not installed") from error
    try:
        with (log or Path(os.devnull)).open("ab", buffering=0) as sink:
            sink.write(f"$ {' '.join(argv)}\n".encode())
            output = (await _drained(process, sink)).decode(errors="replace")
        code = await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await shielded(process.wait())
        raise
    if code != 0:
        raise ProgramFailed(argv, code, output[-4000:])
    return output


async def _drained(process: asyncio.subprocess.Process, sink: RawIOBase) -> bytearray:
    """Pass what a program writes on to `sink`, to its end, and return the newest part of it."""
    source, kept = cast("asyncio.StreamReader", process.stdout), bytearray()
    while chunk := await source.read(65536):
        sink.write(chunk)
        kept += chunk
        del kept[:-_KEPT_BYTES]
    return kept


class _Watched:
    """A process whose end is told by a descriptor from pidfd_open, so nothing polls and no thread waits.

    `gone` is set when it has ended, and then `on_end` is called. `code` is its exit code then, negative for the signal
    that ended it; None where nobody is told.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.gone = asyncio.Event()
        self.on_end: Callable[[], None] = lambda: None
        self._pidfd = os.pidfd_open(pid)
        self._watched = False

    def _watch(self) -> None:
        self._watched = True
        asyncio.get_running_loop().add_reader(self._pidfd, self._note_end)

    def _note_end(self) -> None:
        self._look_away()
        self.code = self._reap()
        self.gone.set()
        self.on_end()

    def _reap(self) -> int | None:
        return None

    def _look_away(self) -> None:
        if self._watched:
            self._watched = False
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended, or that was left, gets none."""
        if self._watched:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def kill(self) -> None:
        """End it now and return when it is gone; one that was left is none of ours. Idempotent; not cut short."""
        if self._watched:
            self.signal(signal.SIGKILL)
            await shielded(self.gone.wait())

    def leave(self) -> None:
        """Let it run on without us: it is not watched any more, and never `gone`. Idempotent."""
        self._look_away()


class Child(_Watched):
    """A process of ours that runs on. Unless it is `lasting`, it is killed if this program dies.

    The descriptors in `pass_fds` keep their numbers in it; what it says goes to the descriptor `output`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        output: int = subprocess.DEVNULL,
        lasting: bool = False,
    ) -> None:
        whole = argv if lasting else [*_DIES_WITH_OWNER, str(os.getpid()), *argv]
        try:
            self._process = subprocess.Popen(
                whole,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                start_new_session=True,
                cwd="/",  # whatever is mounted where we are can be unmounted
            )
        except FileNotFoundError as error:
            raise ProgramMissing(f"the program {whole[0]} is not installed") from error
        super().__init__(self._process.pid)
        self._watch()

    def _reap(self) -> int | None:
        return self._process.wait()

    def leave(self) -> None:
        """Let it run on without us: it is not watched any more, and never `gone`. Idempotent."""
        super().leave()
        if self._process.returncode is None:
            self._process.returncode = 0  # it is no forgotten child: whoever is its parent then waits for it


class Orphan(_Watched):
    """A process that has outlived the program that started it. Its exit code is told to nobody.

    Raises ProcessLookupError if the process of that mark has ended.
    """

    def __init__(self, mark: ProcessMark) -> None:
        super().__init__(mark.pid)
        if mark_of(mark.pid) != mark:  # looked at once we hold it, so that it cannot become another one any more
            os.close(self._pidfd)
            raise ProcessLookupError(f"the process {mark.pid} is another one by now")
        self._watch()


class Guarded(_Watched):
    """A process whose parent is another program that we started, its `guard`, which ends with it and tells its code.

    It is gone when both are. A guard that is killed by itself does it no harm, but then its code is told to nobody.
    Raises ProcessLookupError if it has ended already.
    """

    def __init__(self, guard: Child, pid: int) -> None:
        super().__init__(pid)
        self._guard, self._ended = guard, False
        if mark_of(pid) is None:
            os.close(self._pidfd)
            raise ProcessLookupError(f"the process {pid} has ended")
        self._watch()
        guard.on_end = self._settle

    def _note_end(self) -> None:
        self._look_away()
        self._ended = True
        self._settle()

    def _settle(self) -> None:
        if self._ended and self._guard.gone.is_set():
            self.code = _code_inside(self._guard.code)
            self.gone.set()
            self.on_end()

    async def kill(self) -> None:
        """End it now and return when it and its guard are gone. Idempotent; not cut short."""
        if self._watched or self._ended:
            self.signal(signal.SIGKILL)
            await shielded(self.gone.wait())

    def leave(self) -> None:
        """Let both run on without us. Idempotent."""
        super().leave()
        self._ended = False
        self._guard.leave()


def _code_inside(code: int | None) -> int | None:
    """Return how a guarded process ended, by its guard's exit code, which is a shell's: 128 and the signal."""
    if code is None or code < 0:
        return None
    return code if code <= _SIGNALLED else _SIGNALLED - code


# Any process that is watched to its end.
Process = Child | Orphan | Guarded
