"""A VMM that keeps its machines in memory: for tests of everything above the driver contract."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torpor.errors import BootFailed, FreezeFailed, RestoreFailed, SandboxLost, TorporError
from torpor.kit.shielded import wait_ended
from torpor.model.template import Fingerprint
from torpor.vmm.driver import Hardware, Place, Saved

# Answers on one end of a channel, as a guest's agent would, until the other end is closed or it is cancelled.
ServeGuest = Callable[[socket.socket], Coroutine[Any, Any, None]]

_pids = itertools.count(4_000_001)  # above every real process id
_STATE_FORMAT = "fake-state-1"


class FakeMachine:
    """A machine without a process. `die` ends it as a crash would."""

    def __init__(self, place: Place, image: Path, serve: ServeGuest) -> None:
        self.place, self.image, self.pid = place, image, next(_pids)
        self.paused = False
        self._serve = serve
        self.end = ""
        self._gone = asyncio.Event()
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
        ours, theirs = socket.socketpair()
        self._serving = asyncio.create_task(self._serve(theirs))
        return ours

    async def pause(self) -> None:
        self._check()
        self.paused = True

    async def resume(self) -> None:
        self._check()
        self.paused = False

    async def save_state(self, state: Path) -> None:
        if not self.alive or not self.paused:
            raise FreezeFailed(f"the machine of {self.place.name} is not there and paused")
        state.write_text(json.dumps({"format": _STATE_FORMAT, "image": self.image.stat().st_size}))

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

    def _hang_up(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    def _check(self) -> None:
        if self.end:
            raise SandboxLost(f"the machine of {self.place.name} does not answer: {self.end}")


@dataclass
class FakeDriver:
    """Makes fake machines, each with a guest from `new_guest`.

    Errors in `failures` are raised by the next boots or loads.
    """

    new_guest: Callable[[], ServeGuest]
    fingerprint: Fingerprint = field(default=Fingerprint("fake", "1", "none", "none"))
    machines: list[FakeMachine] = field(default_factory=list)
    failures: list[TorporError] = field(default_factory=list)

    @property
    def running(self) -> list[FakeMachine]:
        """The machines that have not ended."""
        return [machine for machine in self.machines if machine.alive]

    async def boot(self, place: Place, hardware: Hardware, memory: Path) -> FakeMachine:
        self._maybe_fail()
        if not hardware.kernel.exists():
            raise BootFailed(f"there is no kernel {hardware.kernel}")
        memory.write_bytes(b"\x01" * 4096)
        return self._machine(place, memory)

    async def load(self, place: Place, hardware: Hardware, saved: Saved) -> FakeMachine:
        self._maybe_fail()
        _check_saved(hardware, saved)
        machine = self._machine(place, saved.memory)
        machine.paused = True
        return machine

    def _machine(self, place: Place, image: Path) -> FakeMachine:
        machine = FakeMachine(place, image, self.new_guest())
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
