"""The QEMU driver: one QEMU process is one machine."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torpor.errors import BootFailed, Failed, FreezeFailed, RestoreFailed, SandboxLost, Unsupported
from torpor.kit.proc import Child, ProgramMissing, run
from torpor.kit.race import Overtaken, race
from torpor.kit.runs import Written
from torpor.kit.shielded import shielded
from torpor.kit.sockets import connect_to, listen_at
from torpor.model.template import Fingerprint
from torpor.vmm.bounded_log import BoundedLog
from torpor.vmm.driver import Hardware, Place, Saved
from torpor.vmm.pages import saving_memory_of
from torpor.vmm.qemu.argv import MACHINE, Accelerator, Descriptors, qemu_argv
from torpor.vmm.qemu.memory import GuestGone, NotItsImage, Ram, read_ahead, save_ram
from torpor.vmm.qemu.processor import processor_name
from torpor.vmm.qemu.qmp import Monitor, MonitorLost, MonitorRefused

_T = TypeVar("_T")

PROGRAM = "qemu-system-x86_64"
# What QEMU says at every load of a state that was saved without RAM; it is no reason for anything.
_NO_NEWS = ("Expected vmdescription section", "migration to a file is deprecated")
OLDEST_VERSION = (8, 2)
# Generous: a loaded host under emulation. What takes longer is not slow but stuck.
_START_TIMEOUT_S = 30.0
_MONITOR_TIMEOUT_S = 10.0
_LOG_TAIL_BYTES = 4096
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


class QemuMachine:
    """A running QEMU. Made by the driver; keeps the machine contract. `ram` is None for one that was booted."""

    def __init__(self, place: Place, process: _Process, monitor: Monitor, ram: Ram | None) -> None:
        self._place, self._process, self._monitor, self._ram = place, process, monitor, ram
        self._child = process.child

    def __repr__(self) -> str:
        state = "runs" if self.alive else f"ended with {self._child.code}"
        return f"<QemuMachine {self._place.name} pid {self.pid} {state}>"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return not self._child.gone.is_set()

    @property
    def end(self) -> str:
        return self._process.how_it_ended()

    def move(self, place: Place) -> None:
        self._place = place
        self._process.move(place)

    def open_channel(self) -> socket.socket:
        try:
            return connect_to(_agent_socket(self._place))
        except OSError as error:
            raise SandboxLost(f"the machine of {self._place.name} does not answer: {error}") from error

    async def pause(self) -> None:
        await self._ask("stop", FreezeFailed)

    async def resume(self) -> None:
        await self._ask("cont", RestoreFailed)

    async def revive(self) -> bool:
        status = await self._ask("query-status", SandboxLost)
        if status["status"] != "io-error":
            return False
        await self.resume()
        return True

    async def save_state(self, state: Path) -> None:
        try:
            async with asyncio.timeout(_MONITOR_TIMEOUT_S):
                # Despite its name it is generic: every device's state, without RAM. live=False: this machine goes on.
                await self._monitor.execute("xen-save-devices-state", filename=str(state), live=False)
        except (MonitorLost, MonitorRefused, TimeoutError) as error:
            state.unlink(missing_ok=True)
            raise FreezeFailed(f"the machine state of {self._place.name} was not saved: {_said(error)}") from error

    async def read_ahead(self, like: Path) -> None:
        with self._saving_memory() as ram:
            await shielded(asyncio.to_thread(read_ahead, ram, like))

    async def save_memory(self, image: Path, *, like: Path | None = None) -> Written:
        with self._saving_memory() as ram:
            if (await self._ask("query-status", FreezeFailed))["running"]:
                raise FreezeFailed(f"the machine of {self._place.name} is not paused")
            return await shielded(asyncio.to_thread(save_ram, ram, image, like or image))

    @contextmanager
    def _saving_memory(self) -> Iterator[Ram]:
        """Yield what is known of the memory, and raise what goes wrong with it as the contract's errors."""
        if self._ram is None:
            raise FreezeFailed(f"the machine of {self._place.name} was booted: what it was booted with is its image")
        try:
            with saving_memory_of(self._place.name):
                yield self._ram
        except GuestGone as error:
            raise SandboxLost(f"the machine of {self._place.name} ended while it was saved: {error}") from error
        except NotItsImage as error:
            raise FreezeFailed(f"the memory of {self._place.name} was not saved: {error}") from error

    async def _ask(self, command: str, late: type[Failed]) -> Any:
        """Have the monitor do something. Raises SandboxLost if it is lost, `late` if it refuses or takes too long."""
        try:
            async with asyncio.timeout(_MONITOR_TIMEOUT_S):
                return await self._monitor.execute(command)
        except MonitorLost as error:
            raise SandboxLost(f"the machine of {self._place.name} does not answer: {_said(error)}") from error
        except (MonitorRefused, TimeoutError) as error:
            raise late(f"the machine of {self._place.name} does not do `{command}`: {_said(error)}") from error

    async def wait_gone(self) -> None:
        await self._child.gone.wait()

    async def aclose(self) -> None:
        await shielded(self._end())

    async def _end(self) -> None:
        await self._child.kill()
        await self._monitor.close()
        self._process.tidy()


def _said(error: Exception) -> str:
    return str(error) or f"no answer within {_MONITOR_TIMEOUT_S:g} s"


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
            started = await self._start(place, hardware, saved.memory, state.fileno(), RestoreFailed)
            return QemuMachine(place, *started, Ram(started[0].child.pid, image.st_ino, image.st_size))

    async def _start(
        self, place: Place, hardware: Hardware, memory: Path, state: int | None, failure: type[Failed]
    ) -> tuple[_Process, Monitor]:
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


async def _wait_up(place: Place, child: Child, state: int | None) -> Monitor:
    monitor: Monitor | None = None
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            # The listener is ours and exists already: connecting never waits for QEMU, the greeting does.
            monitor = await _or_gone(child, Monitor.connect(place.name, _monitor_socket(place)))
            if state is not None:
                await _or_gone(child, monitor.load_state(state))
    except BaseException:
        if monitor is not None:
            await monitor.close()
        raise
    return monitor


def _agent_socket(place: Place) -> Path:
    return place.folder / "agent.sock"


def _monitor_socket(place: Place) -> Path:
    return place.folder / "monitor.sock"


class _Process:
    """A QEMU process with what it leaves in its place: its sockets, and the logs of its guest and of itself."""

    def __init__(self, place: Place, child: Child, console: BoundedLog, log: BoundedLog) -> None:
        self.child = child
        self._place, self._console, self._log = place, console, log

    def move(self, place: Place) -> None:
        """Take note that the place's folder was renamed."""
        self._place, self._console.path, self._log.path = place, place.console, place.log

    def how_it_ended(self) -> str:
        """Return one sentence on how the process ended; nothing while it runs."""
        code, name = self.child.code, self._place.name
        if code is None:
            return ""
        self._log.catch_up()
        last = _last_line(self._place.log)
        if code < 0:
            return f"the VMM of {name} was ended by {signal.Signals(-code).name}{last}"
        return f"the VMM of {name} ended with code {code}{last}"

    def tidy(self) -> None:
        """Close the logs and remove the sockets of a process that has ended. Idempotent."""
        self._console.close()
        self._log.close()
        _remove_sockets(self._place)


def _remove_sockets(place: Place) -> None:
    for path in (_agent_socket(place), _monitor_socket(place)):
        path.unlink(missing_ok=True)


def _spawn(place: Place, argv_of: Callable[[tuple[int, int, int]], list[str]], state: int | None) -> _Process:
    """Start QEMU with its sockets as inherited descriptors, which this process closes again."""
    with ExitStack() as undo, ExitStack() as closing:
        undo.callback(_remove_sockets, place)
        console, console_end = _logged(place.console, undo, closing)
        log, log_end = _logged(place.log, undo, closing)
        monitor = closing.enter_context(listen_at(_monitor_socket(place)))
        agent = closing.enter_context(listen_at(_agent_socket(place)))
        sockets = (monitor.fileno(), agent.fileno(), console_end)
        passed = sockets if state is None else (*sockets, state)
        try:
            child = Child(argv_of(sockets), pass_fds=passed, output=log_end)
        except ProgramMissing as error:
            raise Unsupported(str(error), hint="install the package util-linux") from error
        undo.pop_all()
        return _Process(place, child, console, log)


def _logged(path: Path, undo: ExitStack, closing: ExitStack) -> tuple[BoundedLog, int]:
    """Return a log and the descriptor to write it to, which `closing` closes here; `undo` closes the log."""
    ours, theirs = socket.socketpair()
    closing.enter_context(theirs)
    undo.enter_context(ours)
    log = BoundedLog(ours, path)
    undo.callback(log.close)
    return log, theirs.fileno()


async def _or_gone(child: Child, work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`, but raise MonitorLost as soon as the process has ended."""
    try:
        return await race(work, child.gone.wait())
    except Overtaken as error:
        raise MonitorLost("QEMU ended") from error


def _last_line(log: Path) -> str:
    """Return ": " and the last thing the VMM said; nothing if it said nothing."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    said = [line for line in lines if not any(words in line for words in _NO_NEWS)]
    return f": {said[-1]}" if said else ""
