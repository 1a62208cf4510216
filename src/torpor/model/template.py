"""Templates: prepared starting points, each with a snapshot that is ready to be restored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from torpor.model.ids import TemplateName

# The parts of a template's meaning that live in code: raise it when a bake of equal inputs would come out different.
BAKE_FORMAT = 4
MANIFEST_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a template is made from: Debian packages on top of the essential ones, and the machine's size.

    `memory_mib` in MiB, `disk_gib` (the root disk, which is also the quota of a sandbox) in GiB.
    """

    name: TemplateName
    packages: tuple[str, ...]
    cpu: int
    memory_mib: int
    disk_gib: int


_BASE = ("ca-certificates", "curl", "git", "python3")
_AGENT = (
    *_BASE,
    *("build-essential", "iproute2", "jq", "procps", "python3-pip", "python3-venv", "ripgrep", "sqlite3"),
)

RECIPES: dict[TemplateName, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(TemplateName("base"), _BASE, cpu=1, memory_mib=256, disk_gib=4),
        Recipe(TemplateName("agent"), _AGENT, cpu=1, memory_mib=512, disk_gib=8),
    )
}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a machine state depends on. A snapshot is loaded only where all of it is as it was when it was saved."""

    vmm: str
    version: str
    accelerator: str
    cpu_model: str
    machine: str


@dataclass(frozen=True, slots=True)
class Template:
    """A baked template. `digest` is of its inputs; `images` names the folders of the immutable images it stands on.

    `mac`: the address of its network card; None for one that was baked without.

    `cold_boot_ms`: what the boot took from the order to the agent's first answer, in milliseconds. `size_bytes`: what
    the snapshot takes up on disk, without its images. These two are filled in by the bake.
    """

    name: TemplateName
    digest: str
    created_at: datetime
    cpu: int
    memory_mib: int
    disk_gib: int
    command_line: str
    images: dict[str, str]
    fingerprint: Fingerprint
    cold_boot_ms: int = 0
    size_bytes: int = 0
    mac: str | None = None
