"""A VMM that keeps its machines in memory: for tests of everything above the driver contract."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from torpor.errors import BootFailed, FreezeFailed, RestoreFailed, SandboxLost, TorporError, Unavailable
from torpor.kit.procfs import ProcessMark
from torpor.kit.runs import Run, Written, merged
from torpor.kit.shielded import shielded, wait_ended
from torpor.model.template import Fingerprint
from torpor.vmm.driver import Hardware, Place, Saved, Trace
from torpor.vmm.pages import PAGE, Image, saving_memory_of

Step = Literal["attach", "pause", "resume", "save_state", "save_memory"]

_BOOT = "fake"
_pids = itertools.count(4_000_001)  # above every real process id
_STATE_FORMAT = "fake-state-1"
# The first page of the memory of a guest that was booted and that nothing was written over since.
_FRESH = b"\x01" * PAGE


class Guest(Protocol):
    """What runs in a fake machine."""

    async def serve(self, sock: socket.socket) -> None:
        """Answer on one end of a channel, as a guest's agent would, until the other is closed or it is cancelled."""

    def save(self) -> bytes:
        """Return all that it has in memory, as text without zero bytes."""

    def load(self, data: bytes) -> None:
        """Become the guest that was saved. Raises ValueError for what is none."""


@dataclass(frozen=True, slots=True)
class Dies:
    """In the place of an error: the machine ends in the middle of the step, as by a crash."""

    how: str = "it crashed"


Faults = dict[Step, TorporError | Dies]


@dataclass(frozen=True, slots=True)
class Left:
    """A machine that runs while its program was killed. `started_in`: the folder of the place it was loaded in;
    `folder`: where that is now.

    `mute`: it answers nobody any more.
    """

    trace: Trace
    started_in: Path
    folder: Path
    memory: bytes
    paused: bool
    stalled: bool = False
    mute: bool = False
    used: tuple[float, int] = (0.0, 0)

    def moved(self, places: Path) -> Left:
        """Return the same as if it had been started in a folder of that name below another one."""
        return dataclasses.replace(self, started_in=places / self.started_in.name, folder=places / self.folder.name)

    def muted(self) -> Left:
        """Return the same, but that it answers nobody any more."""
        return dataclasses.replace(self, mute=True)

    def is_below(self, folder: Path) -> bool:
        """Tell whether it was started, or has files, below a folder."""
        return any(folder in (place, *place.parents) for place in (self.started_in, self.folder))


class FakeMachine:
    """A machine without a process. `die` ends it as a crash would.

    `faults` make its next such step fail, half done where it can be. `trace` is None for one that was booted. What it
    uses is what it is told: `cpu` seconds, and `held` bytes of memory. `tap`: the inode of the descriptor that its card
    was connected to. `bays`: what was attached to each.
    """

    def __init__(self, place: Place, guest: Guest, trace: Trace | None, size: int, faults: Faults) -> None:
        self.place, self.guest, self.trace = place, guest, trace
        self.started_in = place.folder
        self.pid = trace.process.pid if trace is not None else next(_pids)
        self.paused = trace is not None
        self.has_run = not self.paused
        self.stalled = False  # stopped as by a VMM whose host has no room
        self.left = False
        self.cpu, self.held = 0.0, 0
        self.tap: int | None = None
        self.bays: list[Path | None] = []
        self._size = size
        self._faults = faults
        self.end = ""
        self._gone = asyncio.Event()
        self._waiting: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return not self.end

    def cpu_seconds(self) -> float | None:
        return self.cpu if self.alive else None

    def resident_bytes(self) -> int | None:
        return self.held if self.alive else None

    def move(self, place: Place) -> None:
        self.place = place

    def open_channel(self) -> socket.socket:
        self._check()
        self._hang_up()
        ours, self._waiting = socket.socketpair()
        if not self.paused:
            self._serve()
        return ours

    async def attach(self, bay: int, image: Path) -> None:
        self._check()
        self._maybe_fail("attach")
        if self.paused and not self.has_run:
            raise RestoreFailed(f"the machine of {self.place.name} has not run yet")
        if not 0 <= bay < len(self.bays) or self.bays[bay] is not None or not image.is_file():
            raise RestoreFailed(f"the volume {image.name} was not attached to {self.place.name}")
        self.bays[bay] = image

    async def pause(self) -> None:
        self._check()
        self._maybe_fail("pause")
        self.paused = True

    async def resume(self) -> None:
        self._check()
        self._maybe_fail("resume")
        self.paused, self.has_run = False, True
        self._serve()

    async def revive(self) -> bool:
        self._check()
        if not self.stalled:
            return False
        await self.resume()
        self.stalled = False
        return True

    async def save_state(self, state: Path) -> None:
        try:
            self._check()
            self._maybe_fail("save_state")
        except SandboxLost as error:
            raise FreezeFailed(f"the machine state of {self.place.name} was not saved: {error}") from error
        if not self.paused:
            raise FreezeFailed(f"the machine of {self.place.name} is not paused")
        state.write_text(json.dumps({"format": _STATE_FORMAT, "image": self._size}))

    async def read_ahead(self, like: Path) -> None:
        self._check()
        with saving_memory_of(self.place.name):
            like.stat()

    async def save_memory(self, image: Path, *, like: Path | None = None) -> Written:
        self._check()
        if self.trace is None:
            raise FreezeFailed(f"the machine of {self.place.name} was booted: what it was booted with is its image")
        if not self.paused:
            raise FreezeFailed(f"the machine of {self.place.name} is not paused")
        return await shielded(self._write(image, like or image))

    async def _write(self, image: Path, like: Path) -> Written:
        pages = self.guest.save()
        with saving_memory_of(self.place.name), image.open("r+b") as file, like.open("rb") as source:
            if os.fstat(file.fileno()).st_size != self._size or len(pages) > self._size:
                raise OSError(errno.EINVAL, "it is no image of this machine, or too small for its guest")
            length = -(-max(len(pages), len(_used(image))) // PAGE) * PAGE
            writer, whole = Image(file.fileno(), source.fileno()), memoryview(pages + bytes(length - len(pages)))
            runs: list[Run] = []
            for at in range(0, length, PAGE):
                runs += writer.update(at, whole[at : at + PAGE])
                if at == length // PAGE // 2 * PAGE:
                    await asyncio.sleep(0)
                    self._maybe_fail("save_memory")
                    self._check()
        return Written(length, merged(runs), ((0, length),))

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def leave(self) -> None:
        if self.trace is None:
            await self.aclose()
        self.left = self.left or self.alive
        await self._hung_up()

    async def _hung_up(self) -> None:
        self._hang_up()
        if self._serving is not None:
            await wait_ended(self._serving)

    async def aclose(self) -> None:
        if not self.left:  # it is somebody else's then
            self.die("it was closed")
        await self._hung_up()

    def as_left(self, trace: Trace) -> Left:
        """Return what another program finds of it."""
        used = (self.cpu, self.held)
        folders = (self.started_in, self.place.folder)
        return Left(trace, *folders, self.guest.save(), self.paused, self.stalled, used=used)

    def die(self, how: str) -> None:
        """End the machine, and say how. Idempotent."""
        if not self.end:
            self.end = how
            self._gone.set()
            self._hang_up()

    def _serve(self) -> None:
        """Have the guest answer on the channel that was opened last, if it does not yet."""
        if (theirs := self._waiting) is not None:
            self._waiting = None
            self._serving = asyncio.create_task(self.guest.serve(theirs))
            self._serving.add_done_callback(lambda _: theirs.close())  # also where it was cancelled before it began

    def _hang_up(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None
        if self._serving is not None:
            self._serving.cancel()

    def _maybe_fail(self, step: Step) -> None:
        fault = self._faults.pop(step, None)
        if isinstance(fault, Dies):
            self.die(fault.how)
            self._check()
        elif fault is not None:
            raise fault

    def _check(self) -> None:
        if self.end:
            raise SandboxLost(f"the machine of {self.place.name} does not answer: {self.end}")


@dataclass
class FakeDriver:
    """Makes fake machines, each with a guest from `new_guest`, whose memory is kept at the beginning of its image.

    Errors in `failures` are raised by the next boots or loads; `faults` are those of the machines. `survivors`: what an
    earlier program has left here; it keeps the contract of survivors with these.
    """

    new_guest: Callable[[], Guest]
    survivors: list[Left] = field(default_factory=list)
    fingerprint: Fingerprint = field(default=Fingerprint("fake", "1", "none", "none", "none"))
    machines: list[FakeMachine] = field(default_factory=list)
    failures: list[TorporError] = field(default_factory=list)
    faults: Faults = field(default_factory=dict)

    @property
    def running(self) -> list[FakeMachine]:
        """The machines that have not ended, and were not left."""
        return [machine for machine in self.machines if machine.alive and not machine.left]

    def leave_all(self) -> list[Left]:
        """Return what another program finds if the one that has this driver is killed now. Nothing is changed."""
        running = [machine for machine in self.machines if machine.alive]
        return [*self.survivors, *(each.as_left(each.trace) for each in running if each.trace is not None)]

    async def boot(self, place: Place, hardware: Hardware, memory: Path, tap: int | None = None) -> FakeMachine:
        self._maybe_fail()
        if not hardware.kernel.exists():
            raise BootFailed(f"there is no kernel {hardware.kernel}")
        memory.write_bytes(_FRESH)
        os.truncate(memory, hardware.memory_mib << 20)
        machine = FakeMachine(place, self.new_guest(), None, memory.stat().st_size, self.faults)
        return self._begun(machine, hardware, tap)

    async def load(self, place: Place, hardware: Hardware, saved: Saved, tap: int | None = None) -> FakeMachine:
        self._maybe_fail()
        _check_saved(hardware, saved)
        guest, memory = self.new_guest(), _used(saved.memory)
        try:
            if memory != _FRESH:
                guest.load(memory)
        except ValueError as error:
            raise RestoreFailed(f"there is no guest in the memory image {saved.memory.name}: {error}") from error
        image, pid = saved.memory.stat(), next(_pids)
        trace = Trace(ProcessMark(pid, pid, _BOOT), image.st_ino, image.st_size)
        return self._begun(FakeMachine(place, guest, trace, image.st_size, self.faults), hardware, tap)

    def _begun(self, machine: FakeMachine, hardware: Hardware, tap: int | None) -> FakeMachine:
        machine.bays = list(hardware.bays)
        machine.tap = None if tap is None else os.fstat(tap).st_ino
        machine.place.console.write_text("fake guest\n")
        self.machines.append(machine)
        return machine

    def below(self, folder: Path) -> list[ProcessMark]:
        return [left.trace.process for left in self.leave_all() if left.is_below(folder)]

    async def adopt(self, place: Place, trace: Trace, *, within_s: float) -> FakeMachine:
        del within_s
        await asyncio.sleep(0)
        left = next((each for each in self.leave_all() if each.trace == trace), None)
        if left is None:
            raise SandboxLost(f"the machine of {place.name} ended while nobody watched it")
        if left.mute:
            raise Unavailable(f"the machine of {place.name} did not answer: it is mute")
        self.survivors[:] = [each for each in self.survivors if each.trace != trace]
        self.machines[:] = [each for each in self.machines if each.trace != trace]
        guest = self.new_guest()
        guest.load(left.memory)
        machine = FakeMachine(place, guest, trace, trace.image_bytes, self.faults)
        machine.paused, machine.stalled, (machine.cpu, machine.held) = left.paused, left.stalled, left.used
        self.machines.append(machine)
        return machine

    async def end(self, process: ProcessMark) -> None:
        await asyncio.sleep(0)
        self.survivors[:] = [each for each in self.survivors if each.trace.process != process]
        for machine in self.machines:
            if machine.trace is not None and machine.trace.process == process:
                machine.die("it was ended")

    def _maybe_fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def _check_saved(hardware: Hardware, saved: Saved) -> None:
    try:
        state = json.loads(saved.state.read_bytes())
        good = state == {"format": _STATE_FORMAT, "image": saved.memory.stat().st_size}
    except (OSError, ValueError) as error:
        raise RestoreFailed(f"the machine state {saved.state.name} cannot be read: {error}") from error
    writable = [*(disk.overlay for disk in hardware.disks), *hardware.bays]
    missing = [path for path in writable if path is not None and not path.exists()]
    if not good or missing:
        raise RestoreFailed(f"the machine state {saved.state.name} does not go with its memory image and disks")


def _used(image: Path) -> bytes:
    """Return the beginning of a memory image, up to the first zero byte."""
    found = bytearray()
    with image.open("rb") as file:
        while chunk := file.read(65536):
            used, zero, _ = chunk.partition(b"\0")
            found += used
            if zero:
                break
    return bytes(found)
