"""A VMM that keeps its machines in memory: for tests of everything above the driver contract."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from torpor.errors import BootFailed, FreezeFailed, RestoreFailed, SandboxLost, TorporError
from torpor.kit.runs import Run, Written, merged
from torpor.kit.shielded import shielded, wait_ended
from torpor.model.template import Fingerprint
from torpor.vmm.driver import Hardware, Place, Saved
from torpor.vmm.pages import PAGE, Image, saving_memory_of

Step = Literal["pause", "resume", "save_state", "save_memory"]

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


class FakeMachine:
    """A machine without a process. `die` ends it as a crash would.

    `faults` make its next such step fail, half done where it can be. `loaded` tells it from one that was booted.
    """

    def __init__(self, place: Place, image: Path, guest: Guest, faults: Faults, *, loaded: bool) -> None:
        self.place, self.image, self.guest, self.pid = place, image, guest, next(_pids)
        self.paused = self.loaded = loaded
        self.stalled = False  # stopped as by a VMM whose host has no room
        self._size = image.stat().st_size
        self._faults = faults
        self.end = ""
        self._gone = asyncio.Event()
        self._waiting: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        place.console.write_text("fake guest\n")

    @property
    def alive(self) -> bool:
        return not self.end

    def move(self, place: Place) -> None:
        self.place = place

    def open_channel(self) -> socket.socket:
        self._check()
        self._hang_up()
        ours, self._waiting = socket.socketpair()
        if not self.paused:
            self._serve()
        return ours

    async def pause(self) -> None:
        self._check()
        self._maybe_fail("pause")
        self.paused = True

    async def resume(self) -> None:
        self._check()
        self._maybe_fail("resume")
        self.paused = False
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
        if not self.loaded:
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

    async def aclose(self) -> None:
        self.die("it was closed")
        if self._serving is not None:
            await wait_ended(self._serving)

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

    Errors in `failures` are raised by the next boots or loads; `faults` are those of the machines.
    """

    new_guest: Callable[[], Guest]
    fingerprint: Fingerprint = field(default=Fingerprint("fake", "1", "none", "none", "none"))
    machines: list[FakeMachine] = field(default_factory=list)
    failures: list[TorporError] = field(default_factory=list)
    faults: Faults = field(default_factory=dict)

    @property
    def running(self) -> list[FakeMachine]:
        """The machines that have not ended."""
        return [machine for machine in self.machines if machine.alive]

    async def boot(self, place: Place, hardware: Hardware, memory: Path) -> FakeMachine:
        self._maybe_fail()
        if not hardware.kernel.exists():
            raise BootFailed(f"there is no kernel {hardware.kernel}")
        memory.write_bytes(_FRESH)
        os.truncate(memory, hardware.memory_mib << 20)
        return self._machine(place, memory, self.new_guest(), loaded=False)

    async def load(self, place: Place, hardware: Hardware, saved: Saved) -> FakeMachine:
        self._maybe_fail()
        _check_saved(hardware, saved)
        guest, memory = self.new_guest(), _used(saved.memory)
        try:
            if memory != _FRESH:
                guest.load(memory)
        except ValueError as error:
            raise RestoreFailed(f"there is no guest in the memory image {saved.memory.name}: {error}") from error
        return self._machine(place, saved.memory, guest, loaded=True)

    def _machine(self, place: Place, image: Path, guest: Guest, *, loaded: bool) -> FakeMachine:
        machine = FakeMachine(place, image, guest, self.faults, loaded=loaded)
        self.machines.append(machine)
        return machine

    def _maybe_fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def _check_saved(hardware: Hardware, saved: Saved) -> None:
    try:
        state = json.loads(saved.state.read_bytes())
        good = state == {"format": _STATE_FORMAT, "image": saved.memory.stat().st_size}
    except (OSError, ValueError) as error:
        raise RestoreFailed(f"the machine state {saved.state.name} cannot be read: {error}") from error
    missing = [disk.overlay for disk in hardware.disks if disk.overlay is not None and not disk.overlay.exists()]
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
