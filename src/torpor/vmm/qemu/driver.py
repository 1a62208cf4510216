"""The QEMU driver: one QEMU process is one machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torpor.errors import BootFailed, Failed, RestoreFailed, Unsupported
from torpor.kit.cgroups import Groups, Limits
from torpor.kit.proc import Process, ProgramMissing, run
from torpor.kit.procfs import mark_of
from torpor.kit.race import Overtaken, race
from torpor.kit.sockets import listen_at
from torpor.model.capacity import MIB, OVERHEAD_BYTES
from torpor.model.template import Fingerprint
from torpor.vmm.driver import Hardware, Place, Saved, Trace
from torpor.vmm.qemu.argv import MACHINE, Accelerator, Descriptors, qemu_argv
from torpor.vmm.qemu.files import Files
from torpor.vmm.qemu.jail import Cell, Jail, within
from torpor.vmm.qemu.launch import PROCESSES, Order, launch
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
# Beside a guest's own processors, a machine has its disks, its network and its monitor to serve.
_CPUS_BESIDE = 0.5
# An emulator keeps where in its own memory the guest's pages are, which grows with them.
_ADDRESSES_OF = 16
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


@dataclass(frozen=True, slots=True)
class _Given:
    """Descriptors that the caller of the driver gives to a machine: the state it loads, and the tap of its card."""

    state: int | None
    tap: int | None


class QemuDriver:
    """Starts QEMU processes with one accelerator; keeps the driver contract.

    With a `jail` each is in a cell of it, with `groups` in a control group of its own.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        version: str,
        *,
        program: str = PROGRAM,
        jail: Jail | None = None,
        groups: Groups | None = None,
    ) -> None:
        self._accelerator, self._program, self._jail, self._groups = accelerator, program, jail, groups
        # "host" is what this host has, so it says nothing on another.
        cpu = f"host:{processor_name()}" if accelerator.cpu_model == "host" else accelerator.cpu_model
        self.fingerprint = Fingerprint("qemu", version, accelerator.name, cpu, MACHINE)

    async def boot(self, place: Place, hardware: Hardware, memory: Path, tap: int | None = None) -> QemuMachine:
        given = _Given(None, tap)
        try:
            with _starting(BootFailed):
                return QemuMachine(place, *await self._start(place, hardware, memory, given, BootFailed), None)
        except BaseException:
            memory.unlink(missing_ok=True)
            raise

    async def load(self, place: Place, hardware: Hardware, saved: Saved, tap: int | None = None) -> QemuMachine:
        with _starting(RestoreFailed), saved.state.open("rb") as state:
            image = saved.memory.stat()  # now: once QEMU maps it, it may be unlinked
            given = _Given(state.fileno(), tap)
            process, monitor = await self._start(place, hardware, saved.memory, given, RestoreFailed)
            mark = mark_of(process.child.pid)
            trace = None if mark is None else Trace(mark, image.st_ino, image.st_size)
            machine = QemuMachine(place, process, monitor, trace)
            if trace is None:
                await machine.aclose()
                raise RestoreFailed(f"the machine did not start: {process.how_it_ended()}")
            return machine

    async def _start(
        self, place: Place, hardware: Hardware, memory: Path, given: _Given, failure: type[Failed]
    ) -> tuple[VmmProcess, Monitor]:
        with ExitStack() as closing:  # what QEMU has its own of, once it is up
            process = await self._spawn(place, hardware, memory, given, closing)
            try:
                return process, await _wait_up(place, process.child, given.state)
            except BaseException as error:
                await process.child.kill()
                await process.tidy()
                if isinstance(error, MonitorLost | MonitorRefused | OSError):
                    raise failure(f"the machine did not start: {process.how_it_ended()}") from error
                raise

    async def _spawn(
        self, place: Place, hardware: Hardware, memory: Path, given: _Given, closing: ExitStack
    ) -> VmmProcess:
        """Start QEMU with its files and sockets as inherited descriptors, which `closing` closes here.

        One that is booted dies with this program; one that loads a state is left to whoever adopts it.
        """
        with ExitStack() as undo:
            undo.callback(remove_sockets, place)
            sockets = _listen(place, closing)
            said = _open_pipe(place, closing)
            log = listen_to_log(place)
            undo.callback(log.close)
            console = listen_to_console(place)
            undo.callback(console.close)
            order = self._order(place, hardware, memory, Descriptors(*sockets, given.state, given.tap), closing)
            try:
                child, group = await launch(order, said, self._jail, self._groups)
            except ProgramMissing as error:
                raise Unsupported(str(error), hint=f"install the package util-linux, or {INSTALL}") from error
            undo.pop_all()
            return VmmProcess(place, child, console, log, group)

    def _order(
        self, place: Place, hardware: Hardware, memory: Path, descriptors: Descriptors, closing: ExitStack
    ) -> Order:
        jail, loading = self._jail, descriptors.state is not None
        user = None if jail is None else jail.user()
        files = Files(jail, user, closing)
        seen = files.shown(memory, "memory") if loading else files.lent(memory, "memory")
        program = self._program if jail is None else within(self._program)
        accelerator, inside = files.accelerator(self._accelerator), files.hardware(hardware, loading=loading)
        argv = [*qemu_argv(program, accelerator, inside, seen, descriptors), *files.words]
        cell = Cell(user, tuple(files.bound), lasting=loading)
        return Order(argv, (*descriptors, *files.passed), cell, place.name, limits_of(hardware))


def limits_of(hardware: Hardware) -> Limits:
    """Return what the process of such a machine may have of its host, with what it needs beside its guest."""
    guest = hardware.memory_mib * MIB
    return Limits(
        cpus=hardware.cpu + _CPUS_BESIDE,
        memory_bytes=guest + guest // _ADDRESSES_OF + OVERHEAD_BYTES,
        processes=PROCESSES,
    )


@contextmanager
def _starting(failure: type[Failed]) -> Iterator[None]:
    """Raise what the system says while a machine is started as `failure`."""
    try:
        yield
    except OSError as error:
        raise failure(f"the machine did not start: {error}") from error


async def _wait_up(place: Place, child: Process, state: int | None) -> Monitor:
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


def _listen(place: Place, closing: ExitStack) -> tuple[int, int, int]:
    """Make the sockets of the monitor, the guest agent and the console, and return their descriptors."""
    monitor, agent, console = (
        closing.enter_context(listen_at(path)).fileno()
        for path in (monitor_socket(place), agent_socket(place), console_socket(place))
    )
    return monitor, agent, console


def _open_pipe(place: Place, closing: ExitStack) -> int:
    """Make the pipe that QEMU speaks into, and return a descriptor of both its ends, which `closing` closes here."""
    os.mkfifo(log_pipe(place), 0o600)
    both = os.open(log_pipe(place), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    closing.callback(os.close, both)
    return both


async def _or_gone(child: Process, work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`, but raise MonitorLost as soon as the process has ended."""
    try:
        return await race(work, child.gone.wait())
    except Overtaken as error:
        raise MonitorLost("QEMU ended") from error
