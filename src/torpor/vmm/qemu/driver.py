"""The QEMU driver: one QEMU process is one machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torpor.errors import BootFailed, Failed, RestoreFailed, Unsupported
from torpor.kit.proc import Child, Orphan, ProgramMissing, run
from torpor.kit.procfs import mark_of
from torpor.kit.race import Overtaken, race
from torpor.kit.sockets import listen_at
from torpor.model.template import Fingerprint
from torpor.vmm.driver import Hardware, Place, Saved, Trace
from torpor.vmm.qemu.argv import MACHINE, Accelerator, Descriptors, qemu_argv
from torpor.vmm.qemu.machine import (
    QemuMachine,
    VmmProcess,
    agent_socket,
    console_socket,
    listen_to_console,
    listen_to_log,
    log_pipe,
    monitor_socket,
    remove_sockets,
)
from torpor.vmm.qemu.processor import processor_name
from torpor.vmm.qemu.qmp import Monitor, MonitorLost, MonitorRefused

_T = TypeVar("_T")

PROGRAM = "qemu-system-x86_64"
OLDEST_VERSION = (8, 2)
# Generous: a loaded host under emulation. What takes longer is not slow but stuck.
_START_TIMEOUT_S = 30.0
INSTALL = (
    "run `make setup` in the checkout, or install QEMU 8.2 or newer"
    " (Debian 12: apt-get install -t bookworm-backports qemu-system-x86 qemu-utils)"
)


async def qemu_version(program: str = PROGRAM) -> str:
    """Return the version of the installed QEMU, such as "10.0.2".

    Raises Unsupported if there is none, or too old a one.
    """
    if shutil.which(program) is None:
        raise Unsupported(f"QEMU ({program}) is not installed", hint=INSTALL)
    text = await run([program, "--version"])
    found = re.search(r"version (\d+)\.(\d+)(?:\.\d+)*", text)
    if found is None:
        raise Unsupported(f"{program} --version said nothing this program understands: {text[:80]!r}", hint=INSTALL)
    if (int(found[1]), int(found[2])) < OLDEST_VERSION:
        raise Unsupported(f"{found[0].removeprefix('version ')} is too old a QEMU", hint=INSTALL)
    return found[0].removeprefix("version ")


class QemuDriver:
    """Starts QEMU processes with one accelerator; keeps the driver contract."""

    def __init__(self, accelerator: Accelerator, version: str, *, program: str = PROGRAM) -> None:
        self._accelerator, self._program = accelerator, program
        # "host" is what this host has, so it says nothing on another.
        cpu = f"host:{processor_name()}" if accelerator.cpu_model == "host" else accelerator.cpu_model
        self.fingerprint = Fingerprint("qemu", version, accelerator.name, cpu, MACHINE)

    async def boot(self, place: Place, hardware: Hardware, memory: Path) -> QemuMachine:
        try:
            with _starting(BootFailed):
                return QemuMachine(place, *await self._start(place, hardware, memory, None, BootFailed), None)
        except BaseException:
            memory.unlink(missing_ok=True)
            raise

    async def load(self, place: Place, hardware: Hardware, saved: Saved) -> QemuMachine:
        with _starting(RestoreFailed), saved.state.open("rb") as state:
            image = saved.memory.stat()  # now: once QEMU maps it, it may be unlinked
            process, monitor = await self._start(place, hardware, saved.memory, state.fileno(), RestoreFailed)
            mark = mark_of(process.child.pid)
            trace = None if mark is None else Trace(mark, image.st_ino, image.st_size)
            machine = QemuMachine(place, process, monitor, trace)
            if trace is None:
                await machine.aclose()
                raise RestoreFailed(f"the machine did not start: {process.how_it_ended()}")
            return machine

    async def _start(
        self, place: Place, hardware: Hardware, memory: Path, state: int | None, failure: type[Failed]
    ) -> tuple[VmmProcess, Monitor]:
        def argv_of(sockets: tuple[int, int, int]) -> list[str]:
            return qemu_argv(self._program, self._accelerator, hardware, memory, Descriptors(*sockets, state))

        process = _spawn(place, argv_of, state)
        try:
            return process, await _wait_up(place, process.child, state)
        except BaseException as error:
            await process.child.kill()
            process.tidy()
            if isinstance(error, MonitorLost | MonitorRefused | OSError):
                raise failure(f"the machine did not start: {process.how_it_ended()}") from error
            raise


@contextmanager
def _starting(failure: type[Failed]) -> Iterator[None]:
    """Raise what the system says while a machine is started as `failure`."""
    try:
        yield
    except OSError as error:
        raise failure(f"the machine did not start: {error}") from error


async def _wait_up(place: Place, child: Child | Orphan, state: int | None) -> Monitor:
    monitor: Monitor | None = None
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            # The listener is ours and exists already: connecting never waits for QEMU, the greeting does.
            monitor = await _or_gone(child, Monitor.connect(place.name, monitor_socket(place)))
            if state is not None:
                await _or_gone(child, monitor.load_state(state))
    except BaseException:
        if monitor is not None:
            await monitor.close()
        raise
    return monitor


def _spawn(place: Place, argv_of: Callable[[tuple[int, int, int]], list[str]], state: int | None) -> VmmProcess:
    """Start QEMU with its sockets as inherited descriptors, which this process closes again.

    One that is booted dies with this program; one that loads a state is left to whoever adopts it.
    """
    with ExitStack() as undo, ExitStack() as closing:
        undo.callback(remove_sockets, place)
        listeners = [
            closing.enter_context(listen_at(path))
            for path in (monitor_socket(place), agent_socket(place), console_socket(place))
        ]
        said = _open_pipe(place, closing)
        log = listen_to_log(place)
        undo.callback(log.close)
        console = listen_to_console(place)
        undo.callback(console.close)
        monitor, agent, screen = (listener.fileno() for listener in listeners)
        passed = (monitor, agent, screen) if state is None else (monitor, agent, screen, state)
        try:
            child = Child(argv_of((monitor, agent, screen)), pass_fds=passed, output=said, lasting=state is not None)
        except ProgramMissing as error:
            raise Unsupported(str(error), hint=f"install the package util-linux, or {INSTALL}") from error
        undo.pop_all()
        return VmmProcess(place, child, console, log)


def _open_pipe(place: Place, closing: ExitStack) -> int:
    """Make the pipe that QEMU speaks into, and return a descriptor of both its ends, which `closing` closes here."""
    os.mkfifo(log_pipe(place), 0o600)
    both = os.open(log_pipe(place), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    closing.callback(os.close, both)
    return both


async def _or_gone(child: Child | Orphan, work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`, but raise MonitorLost as soon as the process has ended."""
    try:
        return await race(work, child.gone.wait())
    except Overtaken as error:
        raise MonitorLost("QEMU ended") from error
