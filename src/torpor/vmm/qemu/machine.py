"""A running QEMU, as the machine contract has it, whoever started it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from torpor.errors import Failed, FreezeFailed, RestoreFailed, SandboxLost, Unavailable
from torpor.kit.cgroups import Group
from torpor.kit.proc import Process
from torpor.kit.procfs import cpu_seconds, resident_bytes
from torpor.kit.runs import Written
from torpor.kit.shielded import shielded
from torpor.kit.sockets import connect_to
from torpor.vmm.bounded_log import BoundedLog, Source
from torpor.vmm.driver import Place, Trace
from torpor.vmm.pages import saving_memory_of
from torpor.vmm.qemu.memory import GuestGone, NotItsImage, Ram, read_ahead, save_ram
from torpor.vmm.qemu.qmp import Monitor, MonitorLost, MonitorRefused

_logger = structlog.get_logger(__name__)

# What QEMU says at every load of a state that was saved without RAM; it is no reason for anything.
_NO_NEWS = ("Expected vmdescription section", "migration to a file is deprecated")
# Generous: a loaded host under emulation. What takes longer is not slow but stuck.
_MONITOR_TIMEOUT_S = 10.0
_LOG_TAIL_BYTES = 4096


class QemuMachine:
    """A running QEMU. Made by the driver or by `QemuSurvivors`; `trace` is None for one that was booted."""

    def __init__(self, place: Place, process: VmmProcess, monitor: Monitor, trace: Trace | None) -> None:
        self._place, self._process, self._monitor, self._trace = place, process, monitor, trace
        self._child = process.child
        self._left = False

    def __repr__(self) -> str:
        return f"<QemuMachine {self._place.name} pid {self.pid} {self.end or 'runs'}>"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return not self._child.gone.is_set()

    @property
    def end(self) -> str:
        return self._process.how_it_ended()

    @property
    def trace(self) -> Trace | None:
        return self._trace

    def cpu_seconds(self) -> float | None:
        return cpu_seconds(self.pid) if self.alive else None

    def resident_bytes(self) -> int | None:
        return resident_bytes(self.pid) if self.alive else None

    def move(self, place: Place) -> None:
        self._place = place
        self._process.move(place)

    def open_channel(self) -> socket.socket:
        try:
            return connect_to(agent_socket(self._place))
        except BlockingIOError as error:
            raise Unavailable(f"the machine of {self._place.name} lives, and accepts no connection now") from error
        except OSError as error:
            raise SandboxLost(f"the machine of {self._place.name} does not answer: {error}") from error

    async def attach(self, bay: int, image: Path) -> None:
        not_attached = f"the volume {image.name} was not attached to {self._place.name}"
        try:
            with image.open("r+b", buffering=0) as file:
                async with asyncio.timeout(_MONITOR_TIMEOUT_S):
                    size = file.seek(0, os.SEEK_END)
                    await self._monitor.attach(f"bay{bay}", file.fileno(), size)
        except MonitorLost as error:
            raise SandboxLost(f"the machine of {self._place.name} does not answer: {_said(error)}") from error
        except (OSError, MonitorRefused) as error:  # a TimeoutError is an OSError
            raise RestoreFailed(f"{not_attached}: {_said(error)}") from error

    async def pause(self) -> None:
        await self._ask("stop", FreezeFailed)

    async def resume(self) -> None:
        await self._ask("cont", RestoreFailed)

    async def revive(self) -> bool:
        status = await self._ask("query-status", Failed)
        if status["status"] != "io-error":
            return False
        await self.resume()
        return True

    async def save_state(self, state: Path) -> None:
        not_saved = f"the machine state of {self._place.name} was not saved"
        try:
            file = os.open(state, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FreezeFailed(f"{not_saved}: {error}") from error
        try:
            async with asyncio.timeout(_MONITOR_TIMEOUT_S):
                await self._monitor.save_state(file)
        except (MonitorLost, MonitorRefused, TimeoutError) as error:
            state.unlink(missing_ok=True)
            raise FreezeFailed(f"{not_saved}: {_said(error)}") from error
        finally:
            os.close(file)

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
        if (trace := self._trace) is None:
            raise FreezeFailed(f"the machine of {self._place.name} was booted: what it was booted with is its image")
        try:
            with saving_memory_of(self._place.name):
                yield Ram(self.pid, trace.image_inode, trace.image_bytes)
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

    async def leave(self) -> None:
        await shielded(self._leave() if self._trace is not None else self._end())

    async def _leave(self) -> None:
        self._left = True
        await self._monitor.close()
        self._process.leave()

    async def aclose(self) -> None:
        await shielded(self._end())

    async def _end(self) -> None:
        if self._left:  # it is somebody else's, or nobody's
            return
        await self._child.kill()
        await self._monitor.close()
        await self._process.tidy()


def _said(error: Exception) -> str:
    return str(error) or f"no answer within {_MONITOR_TIMEOUT_S:g} s"


def agent_socket(place: Place) -> Path:
    """Return where a machine's agent port is."""
    return place.folder / "agent.sock"


def monitor_socket(place: Place) -> Path:
    """Return where a machine's monitor is."""
    return place.folder / "monitor.sock"


def console_socket(place: Place) -> Path:
    """Return where a machine's console can be listened to."""
    return place.folder / "console.sock"


def log_pipe(place: Place) -> Path:
    """Return the pipe that the VMM itself speaks into.

    It holds both ends open, so that it neither waits nor ends when nobody listens.
    """
    return place.folder / "vmm.fifo"


def listen_to_console(place: Place) -> BoundedLog:
    """Keep what the guest says on its console from now on. Raises OSError if nobody lets us listen."""
    return _kept(connect_to(console_socket(place)), place.console)


def listen_to_log(place: Place) -> BoundedLog:
    """Keep what the VMM says, and what is still in its pipe. Raises OSError if there is none."""
    ours = os.open(log_pipe(place), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return _kept(os.fdopen(ours, "rb", buffering=0), place.log)


def _kept(source: Source, path: Path) -> BoundedLog:
    try:
        return BoundedLog(source, path)
    except BaseException:
        source.close()
        raise


class VmmProcess:
    """A QEMU process with its control group, and with what it leaves in its place: its sockets, and the logs of its
    guest and of itself.
    """

    def __init__(
        self, place: Place, child: Process, console: BoundedLog, log: BoundedLog, group: Group | None = None
    ) -> None:
        self.child = child
        self._place, self._console, self._log, self._group = place, console, log, group
        self._short_of_memory = False

    def move(self, place: Place) -> None:
        """Take note that the place's folder was renamed."""
        self._place, self._console.path, self._log.path = place, place.console, place.log

    def how_it_ended(self) -> str:
        """Return one sentence on how the process ended; nothing while it runs."""
        if not self.child.gone.is_set():
            return ""
        self._log.catch_up()
        code, name, last = self.child.code, self._place.name, _last_line(self._place.log)
        if self._ran_out_of_memory():
            return f"the VMM of {name} was ended as it needed more memory than its machine may have{last}"
        if code is None:
            return f"the VMM of {name} has ended{last}"
        if code < 0:
            return f"the VMM of {name} was ended by {signal.Signals(-code).name}{last}"
        return f"the VMM of {name} ended with code {code}{last}"

    def leave(self) -> None:
        """Close the logs, and let the process be. Idempotent."""
        self._console.close()
        self._log.close()
        self.child.leave()

    def _ran_out_of_memory(self) -> bool:
        if self._group is not None and not self._short_of_memory:  # of which its group knows, while it is there
            self._short_of_memory = self._group.killed_for_memory()
        return self._short_of_memory

    async def tidy(self) -> None:
        """Close the logs, and remove the sockets and the group of a process that has ended. Idempotent."""
        self._console.close()
        self._log.close()
        remove_sockets(self._place)
        self._ran_out_of_memory()
        if self._group is not None and not await self._group.remove():
            _logger.warning("a control group is left, as a process in it has not ended", place=self._place.name)


def remove_sockets(place: Place) -> None:
    """Remove what a machine is reached by."""
    for path in (agent_socket(place), monitor_socket(place), console_socket(place), log_pipe(place)):
        path.unlink(missing_ok=True)


def _last_line(log: Path) -> str:
    """Return ": " and the last thing the VMM said; nothing if it said nothing."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    said = [line for line in lines if not any(words in line for words in _NO_NEWS)]
    return f": {said[-1]}" if said else ""
