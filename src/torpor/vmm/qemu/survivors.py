"""QEMU processes that have outlived the program that started them."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

from torpor.errors import Failed, RestoreFailed, SandboxLost
from torpor.kit.proc import Orphan
from torpor.kit.procfs import ProcessMark, mark_of, processes
from torpor.kit.shielded import shielded
from torpor.vmm.driver import Place, Trace
from torpor.vmm.qemu.machine import (
    QemuMachine,
    VmmProcess,
    listen_to_console,
    listen_to_log,
    monitor_socket,
    remove_sockets,
)
from torpor.vmm.qemu.qmp import Monitor, MonitorLost, MonitorRefused

# A monitor answers in some milliseconds; one that does not within this is stuck.
_ANSWER_S = 3.0
_END_S = 10.0


class QemuSurvivors:
    """Finds QEMU's machines by the process table; keeps the contract of survivors."""

    def below(self, folder: Path) -> list[ProcessMark]:
        own = f"{folder}/".encode()
        found = [mark_of(pid) for pid, argv in processes() if _is_machine(argv, own)]
        return [mark for mark in found if mark is not None]

    async def adopt(self, place: Place, trace: Trace) -> QemuMachine:
        try:
            process = Orphan(trace.process)
        except ProcessLookupError as error:
            raise SandboxLost(f"the machine of {place.name} ended while nobody watched it") from error
        try:
            async with asyncio.timeout(_ANSWER_S):
                monitor = await Monitor.connect(place.name, monitor_socket(place))
                return await _taken_over(place, process, monitor, trace)
        except BaseException as error:
            await shielded(_ended(process))
            remove_sockets(place)
            if isinstance(error, MonitorLost | MonitorRefused | TimeoutError | OSError):
                why = str(error) or f"no answer within {_ANSWER_S:g} s"
                raise RestoreFailed(f"the machine of {place.name} did not answer, and was ended: {why}") from error
            raise

    async def end(self, process: ProcessMark) -> None:
        with suppress(ProcessLookupError):
            await shielded(_ended(Orphan(process)))


async def _ended(process: Orphan) -> None:
    process.signal(signal.SIGKILL)
    try:
        async with asyncio.timeout(_END_S):
            await process.gone.wait()
    except TimeoutError as error:
        process.leave()
        raise Failed(
            f"the process {process.pid} of a former server does not end", hint="look at it with `ps`, then try again"
        ) from error


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
    return QemuMachine(place, VmmProcess(place, process, console, log), monitor, trace)


def _is_machine(argv: list[bytes], own: bytes) -> bool:
    # Until it has become QEMU the process is the program that starts it, with QEMU's name further back.
    return any(b"qemu-system-" in word for word in argv[:10]) and any(own in word for word in argv)
