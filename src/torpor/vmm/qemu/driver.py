"""The QEMU driver: one QEMU process is one machine."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from torpor.errors import BootFailed, Failed, FreezeFailed, RestoreFailed, SandboxLost, Unsupported
from torpor.kit.proc import Child, ProgramMissing, run
from torpor.kit.shielded import shielded
from torpor.kit.sockets import connect_to, listen_at
from torpor.vmm.driver import Capabilities, Hardware, Place, Saved
from torpor.vmm.qemu.argv import Accelerator, Descriptors, qemu_argv
from torpor.vmm.qemu.console import Console
from torpor.vmm.qemu.qmp import Monitor, MonitorLost, MonitorRefused

_T = TypeVar("_T")

PROGRAM = "qemu-system-x86_64"
OLDEST_VERSION = (8, 2)
# Generous: a loaded host under emulation. What takes longer is not slow but stuck.
_START_TIMEOUT_S = 30.0
_MONITOR_TIMEOUT_S = 20.0
_INSTALL = (
    "install QEMU 8.2 or newer (package qemu-system-x86; on Debian 12 from bookworm-backports), or run `make setup`"
)


async def qemu_version(program: str = PROGRAM) -> str:
    """Return the version of the installed QEMU, such as "10.0.2".

    Raises Unsupported if there is none, or too old a one.
    """
    if shutil.which(program) is None:
        raise Unsupported(f"QEMU ({program}) is not installed", hint=_INSTALL)
    text = await run([program, "--version"])
    found = re.search(r"version (\d+)\.(\d+)(?:\.\d+)*", text)
    if found is None:
        raise Unsupported(f"{program} --version said nothing this program understands: {text[:80]!r}", hint=_INSTALL)
    if (int(found[1]), int(found[2])) < OLDEST_VERSION:
        raise Unsupported(f"{found[0].removeprefix('version ')} is too old a QEMU", hint=_INSTALL)
    return found[0].removeprefix("version ")


class QemuMachine:
    """A running QEMU. Made by the driver; keeps the machine contract."""

    def __init__(self, place: Place, child: Child, monitor: Monitor, console: Console) -> None:
        self._place, self._child, self._monitor, self._console = place, child, monitor, console

    def __repr__(self) -> str:
        state = "runs" if self.alive else f"ended with {self._child.code}"
        return f"<QemuMachine {self._place.name} pid {self.pid} {state}>"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return not self._child.gone.is_set()

    def move(self, place: Place) -> None:
        self._place = place
        self._console.path = place.console

    def open_channel(self) -> socket.socket:
        try:
            return connect_to(_agent_socket(self._place))
        except OSError as error:
            raise SandboxLost(f"the machine of {self._place.name} does not answer: {error}") from error

    async def pause(self) -> None:
        await self._ask("stop")

    async def resume(self) -> None:
        await self._ask("cont")

    async def save_state(self, state: Path) -> None:
        try:
            async with asyncio.timeout(_MONITOR_TIMEOUT_S):
                # Despite its name it is generic: every device's state, without RAM. live=False: this machine goes on.
                await self._monitor.execute("xen-save-devices-state", filename=str(state), live=False)
        except (MonitorLost, MonitorRefused, TimeoutError) as error:
            state.unlink(missing_ok=True)
            raise FreezeFailed(
                f"the machine state of {self._place.name} was not saved: {error or 'timeout'}"
            ) from error

    async def _ask(self, command: str) -> None:
        try:
            async with asyncio.timeout(_MONITOR_TIMEOUT_S):
                await self._monitor.execute(command)
        except (MonitorLost, MonitorRefused, TimeoutError) as error:
            raise SandboxLost(f"the machine of {self._place.name} does not answer: {error or 'timeout'}") from error

    async def wait_gone(self) -> str:
        await self._child.gone.wait()
        return _how_it_ended(self._place, self._child)

    async def aclose(self) -> None:
        await shielded(self._end())

    async def _end(self) -> None:
        await self._child.kill()
        await self._monitor.close()
        _tidy(self._place, self._console)


class QemuDriver:
    """Starts QEMU processes with one accelerator; keeps the driver contract."""

    def __init__(self, accelerator: Accelerator, version: str, *, program: str = PROGRAM) -> None:
        self._accelerator, self._program = accelerator, program
        self.capabilities = Capabilities("qemu-microvm", version, accelerator.name, accelerator.cpu_model)

    async def boot(self, place: Place, hardware: Hardware, memory: Path) -> QemuMachine:
        try:
            return await self._start(place, hardware, memory, None, BootFailed)
        except BaseException:
            memory.unlink(missing_ok=True)
            raise

    async def load(self, place: Place, hardware: Hardware, saved: Saved) -> QemuMachine:
        with saved.state.open("rb") as state:
            return await self._start(place, hardware, saved.memory, state.fileno(), RestoreFailed)

    async def _start(
        self, place: Place, hardware: Hardware, memory: Path, state: int | None, failure: type[Failed]
    ) -> QemuMachine:
        def argv_of(sockets: tuple[int, int, int]) -> list[str]:
            return qemu_argv(self._program, self._accelerator, hardware, memory, Descriptors(*sockets, state))

        child, console = _spawn(place, argv_of, state)
        try:
            monitor = await _wait_up(place, child, state)
        except BaseException as error:
            await child.kill()
            _tidy(place, console)
            if isinstance(error, MonitorLost | MonitorRefused | TimeoutError):
                raise failure(f"the machine did not start: {_how_it_ended(place, child)}") from error
            raise
        return QemuMachine(place, child, monitor, console)


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


def _tidy(place: Place, console: Console) -> None:
    console.close()
    for path in (_agent_socket(place), _monitor_socket(place)):
        path.unlink(missing_ok=True)


def _spawn(
    place: Place, argv_of: Callable[[tuple[int, int, int]], list[str]], state: int | None
) -> tuple[Child, Console]:
    """Start QEMU with its sockets as inherited descriptors, which this process closes again."""
    with ExitStack() as closing:
        ours, theirs = socket.socketpair()
        closing.enter_context(theirs)
        monitor = closing.enter_context(listen_at(_monitor_socket(place)))
        agent = closing.enter_context(listen_at(_agent_socket(place)))
        sockets = (monitor.fileno(), agent.fileno(), theirs.fileno())
        passed = sockets if state is None else (*sockets, state)
        try:
            child = Child(argv_of(sockets), pass_fds=passed, output=place.log)
        except ProgramMissing as error:
            ours.close()
            raise Unsupported(str(error), hint=_INSTALL) from error
        return child, Console(ours, place.console)


async def _or_gone(child: Child, work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`, but raise MonitorLost as soon as the process has ended."""
    doing = asyncio.ensure_future(work)
    ended = asyncio.ensure_future(child.gone.wait())
    try:
        await asyncio.wait({doing, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise MonitorLost("QEMU ended")
        return doing.result()
    finally:
        for task in (doing, ended):
            task.cancel()
        await asyncio.gather(doing, ended, return_exceptions=True)


def _how_it_ended(place: Place, child: Child) -> str:
    if child.code is None:
        return f"the VMM of {place.name} still runs"
    said = place.log.read_text(errors="replace").strip().splitlines() if place.log.exists() else []
    last = f": {said[-1]}" if said else ""
    if child.code < 0:
        return f"the VMM of {place.name} was ended by {signal.Signals(-child.code).name}{last}"
    return f"the VMM of {place.name} ended with code {child.code}{last}"
