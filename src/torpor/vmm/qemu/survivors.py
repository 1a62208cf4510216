"""QEMU processes that have outlived the program that started them."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

from torpor.errors import Failed, SandboxLost, Unavailable
from torpor.kit.cgroups import group_of
from torpor.kit.proc import Orphan
from torpor.kit.procfs import ProcessMark, mark_of, open_files, processes_of, words_of
from torpor.kit.shielded import shielded
from torpor.vmm.driver import Place, Trace
from torpor.vmm.qemu.machine import (
    QemuMachine,
    VmmProcess,
    listen_to_console,
    listen_to_log,
    monitor_socket,
)
from torpor.vmm.qemu.qmp import Monitor, MonitorLost, MonitorRefused

_PROGRAM = "qemu-system-"
_END_S = 10.0


class QemuSurvivors:
    """Finds QEMU's machines by the process table; keeps the contract of survivors."""

    def below(self, folder: Path) -> list[ProcessMark]:
        own = f"{folder}/"
        found = [mark_of(pid) for pid in processes_of(_PROGRAM) if _is_of(pid, own)]
        return [mark for mark in found if mark is not None]

    async def adopt(self, place: Place, trace: Trace, *, within_s: float) -> QemuMachine:
        process: Orphan | None = None
        try:
            process = Orphan(trace.process)
            async with asyncio.timeout(within_s):
                monitor = await Monitor.connect(place.name, monitor_socket(place))
                return await _taken_over(place, process, monitor, trace)
        except ProcessLookupError as error:
            raise SandboxLost(f"the machine of {place.name} ended while nobody watched it") from error
        except BaseException as error:
            if process is not None:
                process.leave()
            if isinstance(error, MonitorLost | MonitorRefused | TimeoutError | OSError):
                why = str(error) or f"no answer within {within_s:g} s"
                raise Unavailable(f"the machine of {place.name} did not answer: {why}") from error
            raise

    async def end(self, process: ProcessMark) -> None:
        with suppress(ProcessLookupError):
            await shielded(_ended(Orphan(process)))


async def _ended(process: Orphan) -> None:
    group = group_of(process.pid)
    process.signal(signal.SIGKILL)
    try:
        async with asyncio.timeout(_END_S):
            await process.gone.wait()
    except TimeoutError as error:
        process.leave()
        raise Failed(
            f"the process {process.pid} of a former server does not end", hint="look at it with `ps`, then try again"
        ) from error
    if group is not None:
        await group.remove()


async def _taken_over(place: Place, process: Orphan, monitor: Monitor, trace: Trace) -> QemuMachine:
    try:
        await monitor.execute("query-status")  # it answers, and not only its kernel
        log = listen_to_log(place)
        try:
            console = listen_to_console(place)
        except BaseException:
            log.close()
            raise
    except BaseException:
        await monitor.close()
        raise
    return QemuMachine(place, VmmProcess(place, process, console, log, group_of(process.pid)), monitor, trace)


def _is_of(pid: int, own: str) -> bool:
    # Its words name its files as they were when it started, and in its own spelling; what it has open, as they are now.
    return any(own in word for word in words_of(pid)) or any(path.startswith(own) for path in open_files(pid))
