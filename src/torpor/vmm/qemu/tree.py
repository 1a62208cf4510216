"""The files that a QEMU in a jail sees: its program, its libraries, its firmware. Gathered once, as one folder.

They are copies, of some 60 MB: as links to the system's own files they would be changed with everything else when
somebody changes the rights of a whole data directory. What is gathered is named by a digest of what the system's files
are, so an update of QEMU, or of one of its libraries, makes another.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from torpor.errors import Failed, Unsupported
from torpor.kit.files import clone, draft_folder, remove_tree
from torpor.kit.proc import ProgramFailed, ProgramMissing, run

# What changes users, limits rights, and is left behind before QEMU begins.
ENTRY = "setpriv"
# `pthread_exit` loads this one by its name.
_UNTOLD = "libgcc_s.so.1"
# Firmware of the machine type that we use, and of the way in which its kernel is booted; at one of these places.
_FIRMWARE = ("bios-microvm.bin", "linuxboot_dma.bin")
_FIRMWARE_PLACES = (Path("/usr/share/seabios"), Path("/usr/share/qemu"))
# How they are gathered: part of the name.
_FORMAT = "copies"
_LINKED = {"lib": "usr/lib", "lib64": "usr/lib64"}


async def gather(program: str, folder: Path) -> Path:
    """Return a folder below `folder` that holds what `program` needs, as it would stand in `/usr`; made if need be.

    Raises Unsupported if a program is missing, Failed.
    """
    programs = [_installed(name) for name in (program, ENTRY)]
    wanted = {Path(f"bin/{path.name}"): path for path in programs}
    for path in programs:
        wanted |= {_below_usr(library): library for library in await _libraries(path)}
    wanted |= {_below_usr(path): path for path in _firmware()}
    tree = folder / _digest(wanted)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not tree.is_dir():
        await asyncio.to_thread(_fill, tree, wanted)
    return tree


def keep_only(tree: Path) -> None:
    """Remove what was gathered for others, which does no harm to machines that run from it already. Raises OSError."""
    for entry in tree.parent.iterdir():
        if entry != tree:
            remove_tree(entry)


def links() -> list[tuple[str, str]]:
    """Return the links that stand beside `/usr`: what each leads to, and its name."""
    return [(target, f"/{name}") for name, target in _LINKED.items()]


def _installed(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise Unsupported(f"the program {name} is not installed", hint="run `make setup` in the checkout")
    return Path(found)


async def _libraries(program: Path) -> set[Path]:
    """Return the libraries that a program is started with, and what is loaded later without being told."""
    try:
        told = await run(["ldd", str(program.resolve())])
    except (ProgramMissing, ProgramFailed) as error:
        raise Failed(f"what {program.name} needs could not be told: {error}") from error
    found = {Path(word) for line in told.splitlines() for word in line.split() if word.startswith("/")}
    untold = {path.with_name(_UNTOLD) for path in found if path.with_name(_UNTOLD).exists()}
    return found | untold


def _firmware() -> Iterable[Path]:
    for name in _FIRMWARE:
        here = [place / name for place in _FIRMWARE_PLACES if (place / name).exists()]
        if not here:
            raise Unsupported(f"the firmware {name} of QEMU is not installed", hint="run `make setup` in the checkout")
        yield here[0]


def _below_usr(path: Path) -> Path:
    """Return where a file stands below /usr, where everything is on a system whose /lib is a link."""
    parts = path.parts[1:]
    return Path(*parts[1:] if parts[0] == "usr" else parts)


def _digest(wanted: dict[Path, Path]) -> str:
    lines = [_FORMAT]
    for name, path in sorted(wanted.items()):
        status = path.stat()
        lines.append(f"{name} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _fill(tree: Path, wanted: dict[Path, Path]) -> None:
    try:
        with draft_folder(tree) as draft:
            for name, path in wanted.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                clone(path.resolve(), draft / name)
                (draft / name).chmod(0o555)
            for folder in (draft, *(entry for entry in draft.rglob("*") if entry.is_dir())):
                folder.chmod(0o755)  # every machine looks into them
    except OSError as error:
        if not tree.is_dir():  # else somebody else was faster
            raise Failed(f"the files that QEMU needs could not be gathered: {error}") from error
