"""The sandboxes of this host: those that are alive, and those that sleep."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from torpor.errors import Busy, Failed, NotFound, OutcomeUnknown, SandboxLost, Unavailable
from torpor.guest.client import Guest
from torpor.host.meter import Meter
from torpor.host.record import MachineRecord, write_record
from torpor.host.unreachable import Unreachable
from torpor.kit.files import allocated_bytes, remove_tree
from torpor.kit.locks import KeyedLocks
from torpor.kit.shielded import shielded
from torpor.model.ids import SandboxId
from torpor.model.network import NO_NETWORK, Egress
from torpor.model.usage import Reading
from torpor.model.volume import Attachment
from torpor.network.absent import Nowhere
from torpor.network.contract import Slot
from torpor.storage.frozen import DISK, Frozen
from torpor.vmm.driver import Machine, Place

_log = structlog.get_logger(__name__)
# Connects to the guest agent at the other end of a machine's channel; raises RestoreFailed if it does not answer.
ConnectGuest = Callable[[socket.socket], Awaitable[Guest]]
_NOTHING = Reading()


def moved(base: Frozen, place: Place, to: Place) -> Frozen:
    """Rename the folder of a place, where nothing is yet, and return the base in it as it is found then.

    Raises OSError.
    """
    place.folder.rename(to.folder)
    return dataclasses.replace(base, folder=to.folder / base.folder.name)


def _taken_up(disk: Path, last: int) -> int:
    """Return what a disk takes up, or what it did last where that cannot be told."""
    try:
        return allocated_bytes(disk)
    except OSError as error:
        _log.warning("what a disk takes up is not known", path=str(disk), error=str(error))
        return last


async def ended(machine: Machine, guest: Guest, slot: Slot, discard: Callable[[], None]) -> None:
    """Close the line to a guest, end its machine, give up its slot, and discard what they leave; each also if the one
    before fails.
    """
    async with AsyncExitStack() as undo:
        undo.callback(discard)
        undo.push_async_callback(slot.aclose)
        undo.push_async_callback(machine.aclose)
        undo.push_async_callback(guest.aclose)


@dataclass(slots=True)
class Incarnation:
    """One run of a sandbox, from restore to close. `boot_ms`: from the order to the guest's acknowledgement.

    `base` is what it came from or was last frozen into, with its folder in the sandbox's own. `guest` is the line to
    the guest as it was last made; see `reach`. It `stands_still` while it is frozen or paused; `paused`: somebody asked
    for that. `adopted`: its machine was taken over from an earlier host agent. `starved`: its machine is stopped until
    there is more room on the host's disk. `egress`: what it may reach, by its `slot` in the network. `volumes`: those
    that it has, in the order of their bays.
    """

    id: SandboxId
    base: Frozen
    place: Place
    machine: Machine
    guest: Guest
    meter: Meter
    boot_ms: int
    stands_still: bool = False
    paused: bool = False
    adopted: bool = False
    starved: bool = False
    slot: Slot = field(default_factory=Nowhere)
    egress: Egress = NO_NETWORK
    volumes: tuple[Attachment, ...] = ()
    _disk_bytes: int = 0
    _reaching: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def reach(self, connect: ConnectGuest) -> Guest:
        """Return the line to the guest, made anew if it broke off while the machine lives.

        A line breaks when the guest says what no agent says. Raises Busy for one that is paused, Unavailable if the
        guest does not answer, or is stopped for want of room on the host's disk.
        """
        async with self._reaching:
            if self.paused:
                raise Busy(f"the sandbox {self.id} is paused", hint="resume it")
            if self.starved:
                raise Unavailable(
                    f"the sandbox {self.id} stands still because the host's disk is nearly full",
                    hint="make room on the host, then it goes on; `torpor capacity` says how much there is",
                )
            if self.is_cut_off and self.stands_still:
                raise Busy(f"the sandbox {self.id} stands still")
            await self._call_again(connect)
            return self.guest

    @property
    def is_cut_off(self) -> bool:
        """Whether the machine lives, and there is no line to its guest."""
        return self.guest.closed.is_set() and self.machine.alive

    async def call_again(self, connect: ConnectGuest) -> None:
        """Make the line to the guest anew if it is cut off, and let it go on. Its machine runs.

        Raises Unavailable if the guest does not answer.
        """
        async with self._reaching:
            await self._call_again(connect)

    async def _call_again(self, connect: ConnectGuest) -> None:
        if not self.is_cut_off:
            return
        try:
            self.guest = await connect(self.machine.open_channel())
            await self.guest.thaw()  # the line may have broken while the guest stood still
        except (Failed, OutcomeUnknown) as error:
            raise Unavailable(f"the guest of the sandbox {self.id} does not answer") from error

    def usage(self) -> Reading:
        """Return what the sandbox has used, with its memory as it was last looked at. Never fails."""
        self._disk_bytes = _taken_up(self.place.folder / DISK, self._disk_bytes)
        return self.meter.reading(self._disk_bytes)

    def settle(self, place: Place) -> None:
        """Take another place, where nothing is yet. Raises OSError if it cannot be taken."""
        self.base, self.place = moved(self.base, self.place, place), place
        self.machine.move(place)

    async def end(self) -> None:
        """End the machine; what it wrote stays. Idempotent, and not cut short by cancellation."""
        await shielded(ended(self.machine, self.guest, self.slot, lambda: None))

    async def leave(self) -> None:
        """Let go of the machine, which goes on as it is until somebody adopts it."""
        await self.guest.aclose()
        await self.machine.leave()
        await self.slot.leave()

    async def aclose(self) -> None:
        """End the machine and remove what it wrote. Idempotent, and not cut short by cancellation."""
        await shielded(ended(self.machine, self.guest, self.slot, partial(remove_tree, self.place.folder)))


@dataclass(slots=True)
class Sleeper:
    """A sandbox that is hibernated: a folder, and no process.

    `line` is what calls that were under way when it fell asleep wait on; None where there are none. `used`: what it had
    used by then. `egress`: what it may reach once it is awake. `volumes`: those that it has.
    """

    id: SandboxId
    base: Frozen
    place: Place
    line: Guest | None = None
    used: Reading = _NOTHING
    egress: Egress = NO_NETWORK
    volumes: tuple[Attachment, ...] = ()

    def usage(self) -> Reading:
        """Return what the sandbox has used; what it sleeps in takes up room. Never fails."""
        disk = _taken_up(self.base.folder / DISK, 0)
        return dataclasses.replace(self.used, resident_bytes=0, disk_bytes=disk)

    def settle(self, place: Place) -> None:
        """Take another place, where nothing is yet. Raises OSError if it cannot be taken."""
        self.base, self.place = moved(self.base, self.place, place), place

    async def hang_up(self) -> None:
        """End the calls that wait for it to wake. Idempotent."""
        if (line := self.line) is not None:
            self.line = None
            await line.aclose()

    async def end(self) -> None:
        """End what waits for it."""
        await self.hang_up()

    async def aclose(self) -> None:
        """Forget it, with all that is in its folder."""
        await self.hang_up()
        remove_tree(self.place.folder)


def put_on_record(incarnation: Incarnation) -> None:
    """Note a sandbox's machine in its folder, so that the next host agent finds it. Raises OSError."""
    if (trace := incarnation.machine.trace) is not None:
        meter = incarnation.meter
        record = MachineRecord(incarnation.id, trace, incarnation.boot_ms, meter.began, meter.before)
        write_record(incarnation.place.folder, record)


class Live:
    """Incarnations, sleepers and what is out of reach by sandbox id, and one lock per sandbox for the verbs that begin
    or end one.
    """

    def __init__(self) -> None:
        self._here: dict[SandboxId, Incarnation | Sleeper | Unreachable] = {}
        self._locks = KeyedLocks[SandboxId]()
        # Sandboxes of which there is nothing here that could be used, with the reason, as far as it is known.
        self.damaged: dict[SandboxId, str] = {}

    def all(self) -> list[Incarnation]:
        """Return every incarnation, those whose machine has died included, oldest first."""
        return [each for each in self._here.values() if isinstance(each, Incarnation)]

    def everything(self) -> list[Incarnation | Sleeper | Unreachable]:
        """Return all there is of sandboxes here, alive, asleep or out of reach."""
        return list(self._here.values())

    def sleepers(self) -> list[Sleeper]:
        """Return every sandbox that sleeps here."""
        return [each for each in self._here.values() if isinstance(each, Sleeper)]

    def out_of_reach(self) -> list[Unreachable]:
        """Return every sandbox whose machine lives and could not be taken over yet."""
        return [each for each in self._here.values() if isinstance(each, Unreachable)]

    def whatever(self, sandbox: SandboxId) -> Incarnation | Sleeper | Unreachable | None:
        """Return what there is of a sandbox, or None."""
        return self._here.get(sandbox)

    def find(self, sandbox: SandboxId) -> Incarnation | None:
        """Return a sandbox's incarnation, dead or alive, or None."""
        found = self._here.get(sandbox)
        return found if isinstance(found, Incarnation) else None

    def sleeper(self, sandbox: SandboxId) -> Sleeper | None:
        """Return a sandbox that sleeps, or None."""
        found = self._here.get(sandbox)
        return found if isinstance(found, Sleeper) else None

    def place_of(self, sandbox: SandboxId) -> Place:
        """Return where a sandbox keeps what is its own. Raises NotFound if it is not here."""
        found = self._here.get(sandbox)
        if found is None:
            raise not_here(sandbox)
        return found.place

    def usage_of(self, sandbox: SandboxId) -> Reading | None:
        """Return what a sandbox has used; None if it is not here."""
        found = self._here.get(sandbox)
        return None if found is None else found.usage()

    def get(self, sandbox: SandboxId) -> Incarnation:
        """Return a living incarnation.

        Raises NotFound if there is none here, Busy if it sleeps, SandboxLost if its machine has died, Unavailable if
        that lives and is out of reach.
        """
        found = self._here.get(sandbox)
        match found:
            case None:
                raise not_here(sandbox)
            case Sleeper():
                raise Busy(f"the sandbox {sandbox} sleeps", hint="wake it")
            case Unreachable():
                raise found.refusal()
            case Incarnation():
                if not found.machine.alive:
                    raise SandboxLost(f"the machine of the sandbox {sandbox} has ended: {found.machine.end}")
                return found

    def enter(self, found: Incarnation | Sleeper | Unreachable) -> None:
        """Enter what there is of a sandbox from now on, in place of what there was; the caller holds its lock."""
        self.damaged.pop(found.id, None)
        self._here.pop(found.id, None)
        self._here[found.id] = found

    def take(self, sandbox: SandboxId) -> Incarnation | Sleeper | Unreachable | None:
        """Remove and return what there is of a sandbox, or None.

        The caller holds the sandbox's lock and closes what it got.
        """
        self.damaged.pop(sandbox, None)
        return self._here.pop(sandbox, None)

    def is_busy(self, sandbox: SandboxId) -> bool:
        """Tell whether a verb holds the sandbox's lock."""
        return sandbox in self._locks

    def lock(self, sandbox: SandboxId) -> AbstractAsyncContextManager[None]:
        """Hold the sandbox's lock while the block runs."""
        return self._locks.hold(sandbox)


def not_here(sandbox: SandboxId) -> NotFound:
    """Return the error for a sandbox that this host does not have."""
    return NotFound(f"the sandbox {sandbox} does not live on this host")
