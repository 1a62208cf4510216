"""A data directory whose files can share blocks, on any host.

Where the file system of the data directory has reflinks, nothing is done. Else, for root, `volume.xfs` in it is an
image of a file system that has, and is mounted at `volume` while somebody uses it. Else memory and disks are copied
sparsely.

Several processes may use one volume: a server, and the bake of a template. Whoever mounts, grows or unmounts it holds
`volume.lock` meanwhile; whoever uses it holds a shared lock on the image, so the last one knows that it is the last.
The kernel gives both back for one that is killed: the volume stays mounted then, and the next one finds it so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import structlog

from torpor.errors import Failed, Forbidden, InvalidRequest, SnapshotCorrupt, TorporError, Unsupported
from torpor.kit.files import can_reflink
from torpor.storage import loop
from torpor.storage.frozen import read
from torpor.storage.layout import Layout
from torpor.storage.room import GIB, MIB, RESERVE, VOLUME_RESERVE, demand_room, free_and_total

_log = structlog.get_logger(__name__)

_MOST_BYTES = 1024 * GIB


@dataclass(frozen=True, slots=True)
class VolumeConfig:
    """`use`: "auto" makes a volume where it helps, "off" never does. `limit_gib`: up to which size it may grow, in GiB;
    None for 80 % of what is free below it, at most 1024.

    It begins with `first_gib`, or at its limit, and is doubled when less than a quarter of it is free. `reserve_mib`:
    how much of the disk that the data directory is on stays free, with a volume or without, in MiB.
    """

    use: Literal["auto", "off"] = "auto"
    limit_gib: int | None = None
    first_gib: int = 64
    reserve_mib: int = RESERVE // MIB


@dataclass(frozen=True, slots=True)
class Ground:
    """What a data directory stands on.

    kind: "native" (its file system has reflinks), "volume" (there is one), "bare" (there is none, but there can be),
    "plain" (there is none and cannot be). `why` says for the last what is lacking.
    """

    kind: Literal["native", "volume", "bare", "plain"]
    why: str = ""


def survey(layout: Layout, config: VolumeConfig, has_program: Callable[[str], bool], *, is_root: bool) -> Ground:
    """Return what a data directory stands on; `home` has to exist. Mounts and makes nothing."""
    if layout.volume_image.exists():
        return Ground("volume")
    if can_reflink(layout.home):
        return Ground("native")
    if why := _why_none(layout, config, has_program, is_root):
        return Ground("plain", why)
    return Ground("bare")


def _why_none(layout: Layout, config: VolumeConfig, has_program: Callable[[str], bool], is_root: bool) -> str:
    """Return why no volume can be made, empty if nothing speaks against it."""
    if config.use == "off":
        return "TORPOR_VOLUME is off"
    if not is_root:
        return "only root can mount a volume"
    if kept := _kept_in(Layout(layout.home)):
        return f"a volume would hide {kept}, which was frozen before there was one"
    return loop.lacking(has_program)


def _kept_in(layout: Layout) -> str:
    """Return the folder of something of use that is frozen into `home` itself, empty if there is none."""
    folders = (folder for folder in (layout.snapshots, layout.templates) if folder.is_dir())
    for entry in (entry for folder in folders for entry in sorted(folder.iterdir())):
        try:
            read(entry)
        except (SnapshotCorrupt, Unsupported):
            continue  # litter, or what an older version baked: of no use any more
        return str(entry)
    return ""


def mounted_layout(home: Path) -> Layout | None:
    """Return the layout of a data directory as it stands now, None where it has a volume that is not mounted.

    For looking on: nobody keeps it mounted. Raises Conflict if something else is mounted there.
    """
    layout = Layout(home.resolve())
    if not layout.volume_image.exists():
        return layout
    mounted = loop.is_mounted(layout.volume_image, layout.volume_place)
    return Layout(layout.home, layout.volume_image.stat().st_size) if mounted else None


@contextmanager
def use_volume(home: Path, config: VolumeConfig | None = None) -> Iterator[Layout]:
    """Yield the layout of a data directory, with its folders made, on a volume where that is what it needs.

    Blocks for about a second where a volume has to be made first, else for some milliseconds. Raises Forbidden (only
    root can mount the volume that is there), InvalidRequest (it is switched off, but there), Conflict (something else
    is mounted there), Unsupported, Failed (it cannot be mounted).
    """
    config = config or VolumeConfig()
    layout = Layout(home.resolve(), reserve=config.reserve_mib * MIB)
    layout.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    ground = survey(layout, config, _is_installed, is_root=os.geteuid() == 0)
    if ground.kind == "bare":
        ground = _make(layout, config)
    with ExitStack() as undo:
        if ground.kind == "volume":
            _refuse(layout, config)
            limit = _limit(layout, config)
            layout = replace(layout, volume_limit=limit)
            undo.enter_context(_mounted(layout, min(config.first_gib * GIB, limit)))
        _log.info("the data directory is ready", home=str(layout.home), stands_on=ground.kind, why=ground.why or None)
        layout.make()
        yield layout


def _is_installed(name: str) -> bool:
    return shutil.which(name) is not None


def _refuse(layout: Layout, config: VolumeConfig) -> None:
    if config.use == "off":
        raise InvalidRequest(
            f"TORPOR_VOLUME is off, but {layout.home} has its data in {layout.volume_image}",
            hint="unset TORPOR_VOLUME, or remove that file with everything in it",
        )
    if os.geteuid() != 0:
        raise Forbidden(f"only root can mount {layout.volume_image}", hint="run as root, or choose another --home")


def _limit(layout: Layout, config: VolumeConfig) -> int:
    """Return up to how many bytes a volume may grow."""
    if config.limit_gib is not None:
        return max(1, config.limit_gib) * GIB
    image = layout.volume_image
    own = image.stat().st_blocks * 512 if image.exists() else 0
    return max(GIB, min(_MOST_BYTES, (free_and_total(layout.home)[0] + own) * 8 // 10 // GIB * GIB))


def _make(layout: Layout, config: VolumeConfig) -> Ground:
    """Make the volume, and see whether it can be mounted here at all; if not, say why, and go without."""
    with _locked(layout):
        if layout.volume_image.exists():  # somebody else was faster
            return Ground("volume")
        try:
            loop.make_image(layout.volume_image, min(config.first_gib * GIB, _limit(layout, config)))
            loop.mount(layout.volume_image, layout.volume_place)
            return Ground("volume")
        except (Failed, Unsupported) as error:
            layout.volume_image.unlink(missing_ok=True)  # it is empty
            _log.warning("there is no volume, so memory and disks are copied", why=error.message)
            return Ground("plain", error.message)
        except OSError as error:
            raise _unwritable(layout, error) from error


def _unwritable(layout: Layout, error: OSError) -> TorporError:
    return Failed(f"the volume of {layout.home} cannot be made: {error}", hint="see whether that disk is full")


@contextmanager
def _mounted(layout: Layout, smallest: int) -> Iterator[None]:
    """Mount the volume unless it is, and unmount it after the block unless somebody else uses it.

    It is `smallest` bytes large then, or more.
    """
    image, place = layout.volume_image, layout.volume_place
    users = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _locked(layout):
            if not loop.is_mounted(image, place):
                loop.mount(image, place)
            fcntl.flock(users, fcntl.LOCK_SH)  # never waits: who has it alone has the other lock too
            loop.grow(image, place, smallest)  # also what a crash kept from growing
        yield
    finally:
        with _locked(layout):
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if loop.is_mounted(image, place):
                    loop.unmount(place)
            except BlockingIOError:
                _log.debug("somebody else uses the volume", place=str(place))
            except TorporError as error:
                _log.warning("the volume stays mounted", place=str(place), why=error.message)
            finally:
                os.close(users)


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """Hold the lock of who mounts, grows or unmounts; others wait for that, which takes about a second at most."""
    lock = os.open(layout.volume_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def ensure_room(layout: Layout, wanted: int) -> None:
    """See to it that `wanted` bytes can be written, and a reserve stays; a volume is grown if need be.

    Costs two system calls while there is enough, some tens of milliseconds when the volume grows. Raises OutOfSpace.
    """
    if layout.volume_limit is not None:
        demand_room(layout.home, wanted, layout.reserve)
        if _is_short(layout, wanted):
            _grow(layout, wanted)
    demand_room(layout.data, wanted, layout.data_reserve)


def _is_short(layout: Layout, wanted: int) -> bool:
    free, total = free_and_total(layout.data)
    return free < max(total // 4, wanted + VOLUME_RESERVE) and layout.volume_image.stat().st_size < (
        layout.volume_limit or 0
    )


def _grow(layout: Layout, wanted: int) -> None:
    with _locked(layout):
        while _is_short(layout, wanted):
            size = min(layout.volume_limit or 0, layout.volume_image.stat().st_size * 2)
            try:
                loop.grow(layout.volume_image, layout.volume_place, size)
            except (Failed, OSError) as error:
                # Whether that matters is for whoever counts what is free.
                _log.warning("the volume did not grow", error=str(error))
                return
            _log.info("the volume has grown", size_gib=size // GIB)
