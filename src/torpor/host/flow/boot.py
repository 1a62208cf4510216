"""boot: a guest from cold, made ready and frozen into a template's snapshot. Only the bake of a template needs it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from torpor.errors import BootFailed, Failed, RestoreFailed
from torpor.guest.client import Guest, connect
from torpor.host.flow.furnish import check_start, furnish
from torpor.host.hardware import hardware_of
from torpor.kit.files import remove_tree
from torpor.kit.owning import own
from torpor.kit.shielded import shielded
from torpor.model.identity import NOBODY
from torpor.model.steps import SHELL
from torpor.model.template import Template
from torpor.storage.disks import make_overlay
from torpor.storage.frozen import DISK, MEMORY, PARTS, STATE, seal
from torpor.storage.images import Images
from torpor.storage.templates import write_manifest
from torpor.vmm.bounded_log import read_log
from torpor.vmm.driver import Driver, Place
from torpor.wire.host import ExecOrder

T = TypeVar("T")

# A boot takes about five seconds under emulation; one that takes this long hangs, and is tried once more.
BOOT_PATIENCE_S = 60.0
_ATTEMPTS = 2
PLACE = "place"
_QUIESCE_S = 10.0
# The guest's kernel cleans up after commands some time later and says nothing of it (control groups, writeback); what
# is left of that when it is frozen would be done again by every sandbox, before its first answer.
SETTLE_S = 2.0

# A command of a recipe's own may have much to read and to prepare.
_REHEARSAL_S = 600.0

_FIRST_COMMANDS = (
    ["true"],
    [*SHELL, "true"],
    ["ls", "/"],
    ["python3", "-c", "pass"],
    ["git", "--version"],
)


@dataclasses.dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a guest does before it is frozen: `commands`, which have to succeed, and nothing for `settle_s` seconds."""

    commands: tuple[tuple[str, ...], ...] = ()
    settle_s: float = SETTLE_S


_USUAL = Rehearsal()


async def boot_and_freeze(
    driver: Driver, images: Images, template: Template, draft: Path, log: Path, rehearsal: Rehearsal = _USUAL
) -> Template:
    """Fill a draft folder with the snapshot of a template that is described but not baked yet; return it completed.

    Raises BootFailed, FreezeFailed, OutOfSpace, Failed for a start command that ends with an error; what the machine
    and its guest said is in the log then, as it is after success.
    """
    return await booted(lambda: _attempt(driver, images, template, draft, log, rehearsal), log)


async def booted(attempt: Callable[[], Awaitable[T]], log: Path) -> T:
    """Return what an attempt to boot returns; one that fails is made once more.

    Raises BootFailed where the last one failed too, and what else an attempt raises.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(BootFailed, RestoreFailed):
            return await attempt()
    try:
        return await attempt()
    except (BootFailed, RestoreFailed) as error:
        raise BootFailed(f"the guest did not come up: {error.message}", hint=f"see {log}") from error


async def _attempt(
    driver: Driver, images: Images, template: Template, draft: Path, log: Path, rehearsal: Rehearsal
) -> Template:
    started = time.monotonic()
    async with AsyncExitStack() as undo:
        place = undo.enter_context(_place(f"bake-{template.name}", draft, log))
        hardware = hardware_of(images, template, draft / DISK)
        await make_overlay(hardware.disks[0].image, draft / DISK)
        machine = await own(undo, driver.boot(place, hardware, draft / MEMORY))
        async with await connect(machine.open_channel(), timeout_s=BOOT_PATIENCE_S) as guest:
            cold_boot_ms = round((time.monotonic() - started) * 1000)
            await _rehearse(guest, rehearsal.commands)
            await furnish(guest, template)
            await asyncio.sleep(rehearsal.settle_s)
            await check_start(guest, template)
        guest = await own(undo, connect(machine.open_channel(), timeout_s=BOOT_PATIENCE_S))
        await guest.quiesce(timeout_s=_QUIESCE_S, settle=True)
        await machine.pause()
        await machine.save_state(draft / STATE)
    sealed = await shielded(asyncio.to_thread(seal, draft))
    return write_manifest(draft, dataclasses.replace(template, cold_boot_ms=cold_boot_ms), sealed)


@contextmanager
def _place(name: str, draft: Path, log: Path) -> Iterator[Place]:
    """A place inside an emptied draft, for one attempt."""
    for path in (draft / PLACE, *(draft / part for part in PARTS)):
        remove_tree(path)
    with logged_place(name, draft, log) as place:
        yield place


@contextmanager
def logged_place(name: str, folder: Path, log: Path) -> Iterator[Place]:
    """A new place inside a folder; what the machine and its guest say there ends up in the log."""
    place = Place(name, folder / PLACE)
    place.folder.mkdir(mode=0o700)
    try:
        yield place
    finally:
        with log.open("ab") as file:
            for path in (place.log, place.console):
                if path.exists():
                    file.write(f"\n--- {path.name}\n".encode() + read_log(path))
        remove_tree(place.folder)


async def _rehearse(guest: Guest, commands: tuple[tuple[str, ...], ...]) -> None:
    """Do once what every sandbox begins with, so that nothing of it has to be read from a disk then."""
    await guest.adopt(NOBODY)
    for argv in _FIRST_COMMANDS:
        if (await guest.run(ExecOrder(argv=argv, timeout_s=60))).timed_out:
            raise Failed(f"the guest is up, but {argv[-1]!r} does not end in it")
    for command in commands:
        outcome = await guest.run(ExecOrder(argv=list(command), timeout_s=_REHEARSAL_S))
        if outcome.exit_code != 0:
            raise Failed(f"the guest is up, but its rehearsal of {command[0]} ends with code {outcome.exit_code}")
