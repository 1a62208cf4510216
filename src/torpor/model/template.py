"""Templates: prepared starting points, each with a snapshot that is ready to be restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from torpor.model.ids import TemplateName

# The parts of a template's meaning that live in code: raise it when a bake of equal inputs would come out different.
BAKE_FORMAT = 5
MANIFEST_FORMAT = 3
# How many volumes a sandbox of a template that is baked now can have.
BAYS = 4


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a template is made from: Debian packages on top of the essential ones, and the machine's size.

    `memory_mib` in MiB, `disk_gib` (the root disk, which is also the quota of a sandbox) in GiB. `rehearsal`: commands
    that are run before the guest is frozen, so that what they read is in every sandbox's memory from the start.
    """

    name: TemplateName
    packages: tuple[str, ...]
    cpu: int
    memory_mib: int
    disk_gib: int
    rehearsal: tuple[tuple[str, ...], ...] = ()


_BASE = ("ca-certificates", "curl", "git", "python3")
_AGENT = (
    *_BASE,
    *("build-essential", "iproute2", "jq", "procps", "python3-pip", "python3-venv", "ripgrep", "sqlite3"),
)
_PLOT = """
import ast, asyncio, base64, codecs, inspect, json, linecache, selectors, socket, tokenize, traceback
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy, pandas
pandas.DataFrame({"x": numpy.arange(3)})._repr_html_()
plt.plot([1, 2, 3])
plt.title("text")
plt.savefig("/dev/null", format="png", bbox_inches="tight")
"""

RECIPES: dict[TemplateName, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(TemplateName("base"), _BASE, cpu=1, memory_mib=256, disk_gib=4),
        Recipe(TemplateName("agent"), _AGENT, cpu=1, memory_mib=512, disk_gib=8),
        Recipe(
            TemplateName("code-interpreter"),
            (*_BASE, "python3-matplotlib", "python3-numpy", "python3-pandas"),
            cpu=1,
            memory_mib=1024,
            disk_gib=8,
            rehearsal=(("python3", "-c", _PLOT),),
        ),
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
class Defaults:
    """What commands get that do not say it themselves: variables, the folder they start in, and the user they run as.

    `user`: a name or a number, or either with `:group`; None is root.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A baked template. `digest` is of its inputs; `images` names the folders of the immutable images it stands on.

    `mac`: the address of its network card; None for one that was baked without. `bays`: how many volumes it can have.
    `defaults`: what its commands get. `start`: the command that runs in it from the first moment on, if there is one.
    `snapshot`: the snapshot that it was made from, if it was.

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
    bays: int = 0
    defaults: Defaults = field(default_factory=Defaults)
    start: tuple[str, ...] = ()
    snapshot: str | None = None

    @property
    def lives(self) -> bool:
        """Whether processes of the user's are in it, which are not to run before they have their sandbox's identity."""
        return bool(self.start) or self.snapshot is not None
