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
from torpor.kit.proc import Child
from torpor.kit.shielded import shielded, wait_ended
from torpor.storage.layout import Layout
from torpor.vmm.driver import Survivors

_log = structlog.get_logger(__name__)
_PROGRAM = Path(keeper.__file__)
_END_S = 10.0
# One that ended though nobody asked it to is replaced after this.
_AGAIN_S = 5.0
# One that has just begun tells its id within this.
_TELLS_S = 0.01


@asynccontextmanager
async def keeping(layout: Layout, survivors: Survivors) -> AsyncIterator[None]:
    """Have a keeper run while the block lasts, instead of an earlier one, and after it if there are machines then.

    Raises Failed if the earlier one does not end.
    """
    await asyncio.to_thread(_end_earlier, layout)
    keeper = _Keeper(layout)
    watching = asyncio.create_task(keeper.watch())
    try:
        yield
    finally:
        watching.cancel()
        await wait_ended(watching)
        await shielded(keeper.end_or_leave(survivors))


class _Keeper:
    """The keeper of a data directory: a process that is started again if it ends."""

    def __init__(self, layout: Layout) -> None:
        places = (layout.sandboxes, layout.alive, layout.keeper)
        self._argv = [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, places)]
        self._sandboxes = layout.sandboxes
        self._child = Child(self._argv, lasting=True)

    async def watch(self) -> None:
        while True:
            await self._child.gone.wait()
            _log.warning("the keeper ended, and is started again", code=self._child.code)
            await asyncio.sleep(_AGAIN_S)
            self._child = Child(self._argv, lasting=True)

    async def end_or_leave(self, survivors: Survivors) -> None:
        left = await asyncio.to_thread(survivors.below, self._sandboxes)
        if not left:
            await self._child.kill()
            return
        self._child.leave()
        pid = self._child.pid
        _log.info("machines run on without a server; a keeper looks after them", machines=len(left), keeper=pid)


def _end_earlier(layout: Layout) -> None:
    """End the keeper that an earlier server has left, which may be of another version. Blocks for some milliseconds."""
    lock = os.open(layout.keeper, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up = time.monotonic() + _END_S
    try:
        while not _is_free(lock):
            # It takes the lock, and then tells its id.
            process = _pidfd(os.pread(lock, 32, 0))
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


def _pidfd(told: bytes) -> int | None:
    """Return a descriptor of the keeper whose id is told; None if that is not its id, or not any more."""
    with suppress(ValueError, OSError):
        pid = int(told)
        process = os.pidfd_open(pid)
        if _PROGRAM.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return process
        os.close(process)
    return None


def _kill(process: int) -> None:
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], _END_S)[0]:
            raise Failed("the keeper of an earlier server does not end", hint="look at it with `ps`, then try again")
    except ProcessLookupError:
        pass  # it ended by itself
    finally:
        os.close(process)
