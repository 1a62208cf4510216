"""The contract between Torpor and a VMM.

Words. A *driver* starts machines of one VMM. A *machine* is one VMM process with one guest. A machine's *memory
image* is a file that holds its whole RAM; its *machine state* is a small file with everything else but the disks.
Together with the disks as they were in the same instant they are what `load` brings to life again.

Prerequisites. The files named in a request exist and belong to this machine alone if it writes them. A memory image
given to `load` stays in place, unchanged, for as long as a machine maps it (unlinking is fine; rewriting is
corruption).

After success a machine runs and is owned by the caller, who calls `aclose`. After failure nothing is left: no
process, no file that the driver made, and the error is a `TorporError`: `BootFailed` or `RestoreFailed` for a guest
or state that does not come up, `Unsupported` for a host that lacks what is needed, its hint naming the package or
step that mends it.

A machine that was loaded outlives the program that loaded it, whatever ends that: it runs on, or stands still, and
takes no harm from nobody's listening. Another program that has its `trace` takes it over with `Survivors.adopt`. One
that was booted ends with its program.

`torpor.testing.vmm_contract` is the suite that every driver passes. A driver may start its processes ahead of time;
nothing here says when a process begins, only when `load` may return.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torpor.kit.procfs import ProcessMark
from torpor.kit.runs import Written
from torpor.model.template import Fingerprint


@dataclass(frozen=True, slots=True)
class Disk:
    """A block device. With `overlay` the guest writes there, over `image`; without, it sees `image` read-only.

    `image` is a raw disk image, never written; `overlay` a qcow2 file.
    """

    image: Path
    overlay: Path | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card with its address, such as "02:00:00:00:00:01". What it is connected to is no part of the shape."""

    mac: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a guest is made of. The same value has to be given at boot and at every load of what was saved from it.

    `memory_mib` in MiB. `command_line` is the guest kernel's. Disks appear in the guest in this order. `bays`:
    devices beside them, with the serials bay0, bay1 and so on, and the raw disk image that the guest reads and writes
    in each; None: nothing, until one is attached. What was in one when the guest was saved has to be in it at a load.
    """

    cpu: int
    memory_mib: int
    kernel: Path
    initrd: Path
    command_line: str
    disks: tuple[Disk, ...]
    nic: Nic | None = None
    bays: tuple[Path | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a machine may keep what belongs to it: an existing folder of its own, and a name for messages."""

    name: str
    folder: Path

    @property
    def console(self) -> Path:
        """The guest's serial console, as text; `torpor.vmm.console` reads it with its older part."""
        return self.folder / "console.log"

    @property
    def log(self) -> Path:
        """What the VMM itself said."""
        return self.folder / "vmm.log"


@dataclass(frozen=True, slots=True)
class Saved:
    """A stopped guest on disk: its memory image and its machine state."""

    memory: Path
    state: Path


@dataclass(frozen=True, slots=True)
class Trace:
    """By what a loaded machine is found again by another program on this host: plain values, to be kept in a file.

    `image_inode` and `image_bytes` are of the memory image that it maps, which may have another name by now, or none.
    """

    process: ProcessMark
    image_inode: int
    image_bytes: int


class Machine(Protocol):
    """One VMM process with its guest."""

    @property
    def pid(self) -> int:
        """The VMM's process id."""

    @property
    def alive(self) -> bool:
        """Whether the VMM process still runs."""

    @property
    def end(self) -> str:
        """How the VMM process ended, in one sentence; empty while it runs."""

    @property
    def trace(self) -> Trace | None:
        """By what it is found again; None for a machine that was booted."""

    def cpu_seconds(self) -> float | None:
        """Return the processor time that it has used since it began; None once it has ended."""

    def resident_bytes(self) -> int | None:
        """Return how much of the host's memory it holds; None once it has ended. Blocks for some milliseconds."""

    def move(self, place: Place) -> None:
        """Take note that the caller has renamed the folder of the machine's place."""

    def open_channel(self) -> socket.socket:
        """Return a new connected stream socket to the guest's agent port. One at a time; the caller closes it.

        What is written before the guest listens, or before the machine runs, is kept for it, as far as the socket's
        buffer goes. What the guest has sent can be read even after the machine has ended. Never waits. Raises
        SandboxLost if the machine has died, Unavailable if it lives and accepts no connection now.
        """

    async def attach(self, bay: int, image: Path) -> None:
        """Let the guest read and write a raw disk image, in a bay with nothing in it, which grows to the image's size.

        The machine runs, or has run before. Raises RestoreFailed if the file cannot be opened or there is no such bay,
        SandboxLost if the machine has died.
        """

    async def pause(self) -> None:
        """Stop the guest's CPUs, with nothing in flight to its disks.

        Idempotent. Raises SandboxLost if the machine has died, FreezeFailed if it does not stop in time; it may stop
        later then, unless it is resumed.
        """

    async def resume(self) -> None:
        """Let the guest's CPUs run. Idempotent. Raises SandboxLost if the machine has died, RestoreFailed if it does
        not go on in time.
        """

    async def revive(self) -> bool:
        """Let the guest's CPUs run if the VMM itself stopped them because the host's disk was full; return whether.

        Nothing of what the guest writes is lost by that: it writes it again, and is stopped again if there is still no
        room. Raises SandboxLost if the machine has died, Failed if it does not answer in time.
        """

    async def save_state(self, state: Path) -> None:
        """Write the machine state of a paused machine to a new file. Raises FreezeFailed, and then there is no file."""

    async def read_ahead(self, like: Path) -> None:
        """Have the host begin to read what `save_memory` will compare this machine's memory with, while it runs on.

        Only for speed: it shortens the pause, and may be left out. Raises FreezeFailed, SandboxLost.
        """

    async def save_memory(self, image: Path, *, like: Path | None = None) -> Written:
        """Bring `image`, a copy of the image this machine was loaded from or of one saved from it since, to what its
        memory holds now.

        `like` is what `image` was copied from, unchanged since: its bytes are in the host's memory where those of a new
        copy are not, so it is what memory is compared with. The machine is paused, and stays so. Only pages that differ
        are written; pages of zeros become holes. Not made durable. Not cut short by cancellation, which the caller
        hears when it is done. Raises FreezeFailed, also for a machine that was booted, whose image is the file it was
        given; OutOfSpace, if the host's disk is full; SandboxLost. Then `image` is of no use, and the machine as it
        was, unless it is lost.
        """

    async def wait_gone(self) -> None:
        """Return when the VMM process has ended."""

    async def leave(self) -> None:
        """Let go of the machine, which goes on as it is until somebody adopts it. Nothing is asked of this one again.

        Idempotent, and not cut short by cancellation. For a machine that was booted, the same as `aclose`.
        """

    async def aclose(self) -> None:
        """End the machine at once and return when its process is gone.

        Idempotent, and not cut short by cancellation.
        """


class Driver(Protocol):
    """Starts machines of one VMM."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What the machine states of this driver on this host depend on."""

    async def boot(self, place: Place, hardware: Hardware, memory: Path, tap: int | None = None) -> Machine:
        """Boot a guest from cold.

        Its RAM is kept in the new file `memory`, which is its memory image once it is paused. `tap`: see `load`.
        """

    async def load(self, place: Place, hardware: Hardware, saved: Saved, tap: int | None = None) -> Machine:
        """Bring a saved guest to life. It stands still, where it was paused, until `resume`.

        RAM is mapped from `saved.memory`, copied when written. `tap` is a descriptor of a tap device, attached, without
        a header of its own before each frame, that the guest's network card is connected to; the caller closes its own.
        Without one the card is connected to nothing, and what the guest sends is lost.
        """


class Survivors(Protocol):
    """The machines of one VMM that have outlived the program that loaded them."""

    def below(self, folder: Path) -> list[ProcessMark]:
        """Return the processes of all machines that were started in, or have files in, places below a folder.

        Whoever started them, and by evidence, not by records. Blocks for some milliseconds.
        """

    async def adopt(self, place: Place, trace: Trace, *, within_s: float) -> Machine:
        """Take over a machine that was loaded, in the place where its files are now.

        It is as it was left: running, or standing still. Raises SandboxLost if it is no more; Unavailable if it lives
        and does not answer within a time, or this host has no room to speak to it. Then, and where this is cancelled,
        it is not touched, and can be taken over later.
        """

    async def end(self, process: ProcessMark) -> None:
        """End one of the machines found; fine if it has ended. Raises Failed if it does not end."""
