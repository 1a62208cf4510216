"""The server's side of the keeper: one runs while the server does, and stays if there are machines to look after."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from torpor.errors import Failed
from torpor.host import keeper
from torpor.kit.beside import beside
from torpor.kit.proc import Child
from torpor.kit.shielded import shielded
from torpor.storage.layout import Layout
from torpor.vmm.driver import Survivors

_log = structlog.get_logger(__name__)
_PROGRAM = Path(keeper.__file__)
_END_S = 10.0
# One that ended though nobody asked it to is replaced at once, unless it was as young as this: then after so long.
_AGAIN_S = 5.0
# One that has just begun tells its id within this.
_TELLS_S = 0.01


@asynccontextmanager
async def keeping(layout: Layout, survivors: Survivors) -> AsyncIterator[None]:
    """Have a keeper run while the block lasts, instead of an earlier one, and after it if there are machines then.

    Raises Failed if the earlier one does not end.
    """
    await asyncio.to_thread(_end_earlier, layout)
    keeps = _Keeper(layout)
    try:
        async with beside(keeps.watch()):
            yield
    finally:
        await shielded(keeps.end_or_leave(survivors))


class _Keeper:
    """The keeper of a data directory: a process that is started again if it ends."""

    def __init__(self, layout: Layout) -> None:
        places = (layout.sandboxes, layout.alive, layout.keeper)
        self._argv = [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, places)]
        self._sandboxes = layout.sandboxes
        self._child = self._started()

    def _started(self) -> Child:
        return Child(self._argv, lasting=True)

    async def watch(self) -> None:
        while True:
            began = time.monotonic()
            await self._child.gone.wait()
            _log.warning("the keeper ended, and is started again", code=self._child.code)
            if time.monotonic() - began < _AGAIN_S:
                await asyncio.sleep(_AGAIN_S)
            self._start_again()

    def _start_again(self) -> None:
        try:
            self._child = self._started()
        except OSError as error:  # no process or descriptor to be had
            _log.error("the keeper cannot be started again", error=str(error))

    async def end_or_leave(self, survivors: Survivors) -> None:
        left = await asyncio.to_thread(self._machines, survivors)
        if not left:
            await self._child.kill()
            return
        if self._child.gone.is_set():
            self._start_again()
        self._child.leave()
        pid = self._child.pid
        _log.info("machines run on without a server; a keeper looks after them", machines=left, keeper=pid)

    def _machines(self, survivors: Survivors) -> int:
        """Return how many machines there are, by the process table and by the records; at least."""
        found = {(mark.pid, mark.started) for mark in survivors.below(self._sandboxes)}
        try:
            noted, _ = keeper.deadlines_of(str(self._sandboxes))
        except OSError as error:
            _log.warning("the records of machines cannot be read", error=str(error))
            noted = {}
        return len(found | noted.keys())


def _end_earlier(layout: Layout) -> None:
    """End the keeper that an earlier server has left, which may be of another version. Blocks for some milliseconds."""
    lock = os.open(layout.keeper, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up = time.monotonic() + _END_S
    try:
        while not _is_free(lock):
            # It takes the lock, and then tells its id.
            process = _pidfd(os.pread(lock, 32, 0), lock)
            if process is not None:
                _kill(process)
            elif time.monotonic() > give_up:
                raise Failed(f"somebody who is no keeper holds {layout.keeper}", hint="see who it is with `lsof`")
            else:
                time.sleep(_TELLS_S)
    finally:
        os.close(lock)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pidfd(told: bytes, lock: int) -> int | None:
    """Return a descriptor of the keeper whose id is told; None if that is not its id, not yet, or not any more.

    It has the file open that it tells its id in. The id of one that has ended may be another directory's by now.
    """
    try:
        pid = int(told)
        process = os.pidfd_open(pid)
    except (ValueError, OSError):
        return None
    if _is_keeper(pid, os.fstat(lock)):
        return process
    os.close(process)
    return None


def _is_keeper(pid: int, lock: os.stat_result) -> bool:
    with suppress(OSError):  # it has ended
        if _PROGRAM.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return any(_is_file(Path(f"/proc/{pid}/fd/{number}"), lock) for number in os.listdir(f"/proc/{pid}/fd"))
    return False


def _is_file(open_file: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(open_file.stat(), wanted)
    except OSError:
        return False  # it is closed by now


def _kill(process: int) -> None:
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        ending = select.poll()
        ending.register(process, select.POLLIN)
        if not ending.poll(_END_S * 1000):
            raise Failed("the keeper of an earlier server does not end", hint="look at it with `ps`, then try again")
    except ProcessLookupError:
        pass  # it ended by itself
    finally:
        os.close(process)
