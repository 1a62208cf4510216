"""How this host's machines are contained: a jail for each, and a control group, as far as the host lets us."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from torpor.errors import InvalidRequest
from torpor.kit.cgroups import PREFIX, Groups, Tree, sweep, trees_here
from torpor.kit.environment import positive
from torpor.kit.files import write_whole
from torpor.storage.layout import Layout
from torpor.vmm.qemu.jail import REMAINS, USERS, Walls, build

_log = structlog.get_logger(__name__)

# The kernel has 2^32 users, of which programs that count with a sign know the lower half.
_LAST_USER = (1 << 31) - 1
_HEAVIEST, _USUAL = 10_000, 100
# What a machine needs limited to hurt none but itself.
_LIMITED = {"cpu": "processors", "memory": "memory", "pids": "processes"}
_UNLIMITED = "a machine can take all of this host's processors and memory"


@dataclass(frozen=True, slots=True)
class ContainmentConfig:
    """`jail` and `cgroups`: "auto" or "off". `uid_base`: the group of all machines, above which their users are, 2^20
    of them. `cpu_weight`: what all machines together weigh when processors are short, 1 to 10000, where a process
    outside of them weighs 100 (None: as much as one such process for each processor).
    """

    jail: str = "auto"
    cgroups: str = "auto"
    uid_base: int = 1_700_000_000
    cpu_weight: int | None = None

    @property
    def weight(self) -> int:
        """What all machines together weigh."""
        return self.cpu_weight or min(_HEAVIEST, _USUAL * (os.cpu_count() or 1))

    @classmethod
    def from_environment(cls) -> ContainmentConfig:
        """Return what TORPOR_JAIL, TORPOR_CGROUPS, TORPOR_UID_BASE and TORPOR_CPU_WEIGHT set. Raises InvalidRequest."""
        usual = cls()
        base = positive("TORPOR_UID_BASE", usual.uid_base)
        if base + USERS > _LAST_USER:
            raise InvalidRequest(f"TORPOR_UID_BASE is {base}; it is a number from 1 to {_LAST_USER - USERS}")
        weight = positive("TORPOR_CPU_WEIGHT", usual.weight)
        if weight > _HEAVIEST:
            raise InvalidRequest(f"TORPOR_CPU_WEIGHT is {weight}; it is a number from 1 to {_HEAVIEST}")
        return cls(_auto_or_off("TORPOR_JAIL"), _auto_or_off("TORPOR_CGROUPS"), base, weight)


def _auto_or_off(name: str) -> str:
    value = os.environ.get(name, "auto")
    if value not in ("auto", "off"):
        raise InvalidRequest(f"{name} is {value!r}; it can be auto or off")
    return value


@dataclass(frozen=True, slots=True)
class Containment:
    """What contains machines here: their jail, and where their control groups are made; None where there are none.

    `limits` says for people what the groups limit.
    """

    walls: Walls
    groups: Groups | None
    limits: str


async def contain(config: ContainmentConfig, layout: Layout, program: str) -> Containment:
    """Return what contains machines that run `program`, made ready.

    Raises Unsupported for root without what a jail needs, Failed, OSError.
    """
    if config.jail == "off":
        walls = Walls(None, f"no jail, as TORPOR_JAIL is off: {REMAINS}")
    else:
        walls = await build(program, layout.jail, config.uid_base)
    groups, limits = find_groups(config, layout.home)
    if groups is not None:
        _note(layout.cgroups, groups.tops)
    tell = _log.warning if walls.jail is None or groups is None else _log.info
    tell("how machines are contained", jail=walls.why, limits=limits)
    return Containment(walls, groups, limits)


def find_groups(config: ContainmentConfig, home: Path, root: Path = Path("/")) -> tuple[Groups | None, str]:
    """Return where a data directory's control groups are made, if anywhere, and in a sentence what they limit.

    `root`: see `trees_here`.
    """
    if config.cgroups == "off":
        return None, f"no limits, as TORPOR_CGROUPS is off: {_UNLIMITED}"
    name = f"{PREFIX}{hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]}"
    groups = Groups(name, _trees(root), config.weight)
    if not groups.controllers:
        return None, f"no limits, as no control groups can be made here: {_UNLIMITED}"
    can = ", ".join(said for name, said in _LIMITED.items() if name in groups.controllers) or "nothing"
    cannot = ", ".join(said for name, said in _LIMITED.items() if name not in groups.controllers)
    return groups, f"limited: {can}" + (f"; not, as this host cannot: {cannot}" if cannot else "")


def _trees(root: Path) -> tuple[Tree, ...]:
    try:
        return tuple(trees_here(root))
    except OSError:  # no /proc, or none of this kernel's
        return ()


def sweep_groups(layout: Layout) -> None:
    """Remove the control groups that nothing is in any more, wherever a server of this data directory made them."""
    sweep(_noted(layout.cgroups))


def _noted(file: Path) -> list[Path]:
    try:
        return [Path(line) for line in file.read_text().splitlines() if Path(line).name.startswith(PREFIX)]
    except FileNotFoundError:
        return []


def _note(file: Path, tops: list[Path]) -> None:
    """Note tops before there are groups below them, so that they are found whatever becomes of who made them."""
    noted = _noted(file)
    if not set(tops) <= set(noted):
        write_whole(file, "".join(f"{top}\n" for top in sorted({*noted, *tops})).encode())
