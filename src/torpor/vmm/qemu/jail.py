"""The jail of a VMM: bubblewrap, and what is asked of it.

A machine's QEMU has a user, mounts, process numbers, a network, a host name and shared memory of its own, and no
capability. What it sees is its own program, its libraries and firmware, its memory image and /dev/null; everything else
it has is an open descriptor. So a guest that breaks out of QEMU finds nothing, and nobody.

bubblewrap stays outside as the *guard*: the parent of QEMU, without any capability, which ends with it and tells its
exit code. QEMU is the first process of its own numbers, so nothing else is in there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import Unsupported
from torpor.kit.proc import ProgramFailed, ProgramMissing, run
from torpor.vmm.qemu.tree import ENTRY, gather, links

PROGRAM = "bwrap"
INSTALL = "install the package bubblewrap; TORPOR_JAIL=off runs machines without a jail, as the user of the server"
REMAINS = "a guest that breaks out of QEMU is the server's user then, held by QEMU's seccomp filter alone"
# How many users there are to choose from, above the group of all of them.
USERS = 1 << 20
# What the entry needs to become the machine's user, and gives away then.
_FOR_ENTRY = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net")
_STDIN, _STDERR = 0, 2


@dataclass(frozen=True, slots=True)
class Bound:
    """A file that is seen in the jail: an open descriptor of it, its name there, and whether it may be written."""

    descriptor: int
    name: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """What is one machine's in the jail: its user (None: this program's own), and the files that it sees.

    Unless it is `lasting` it ends with its guard, and that with the program that started it.
    """

    user: int | None
    files: tuple[Bound, ...]
    lasting: bool


@dataclass(frozen=True, slots=True)
class Jail:
    """`tree`: the files that QEMU needs, as they stand in /usr. `group`: the group of all machines, and the number
    below the first one of their users; None where this program is not root, and machines run as its own user.
    """

    tree: Path
    group: int | None

    def user(self) -> int | None:
        """Return a user for one machine, whom no process of this host has."""
        if self.group is None:
            return None
        taken = _users_of_processes()
        while (user := self.group + 1 + secrets.randbelow(USERS)) in taken:
            pass
        return user

    def argv(self, cell: Cell, inside: Sequence[str], *, told: int, held: int) -> list[str]:
        """Return the command line that runs `inside` in a cell.

        Which process that is gets written to the descriptor `told`, as JSON. It begins when there is something to read
        at the descriptor `held`, or nobody is left who could write it.
        """
        return [
            *(PROGRAM, *_NAMESPACES, *(("--unshare-user",) if cell.user is None else ())),
            *("--hostname", "vmm", "--clearenv", "--cap-drop", "ALL"),
            *(() if cell.user is None else (word for name in _FOR_ENTRY for word in ("--cap-add", name))),
            *("--info-fd", str(told), "--block-fd", str(held)),
            *("--ro-bind", str(self.tree), "/usr"),
            *(word for target, name in links() for word in ("--symlink", target, name)),
            *("--perms", "0755", "--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null"),
            *(word for each in cell.files for word in _bind(each)),
            *("--remount-ro", "/", "--chdir", "/"),
            "--as-pid-1" if cell.lasting else "--die-with-parent",
            *("--", *self._entry(cell.user), *inside),
        ]

    def _entry(self, user: int | None) -> list[str]:
        if user is None:
            return []  # bubblewrap has taken every right already
        return [
            *(f"/usr/bin/{ENTRY}", "--reuid", str(user), "--regid", str(user), "--groups", str(self.group)),
            *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
        ]

    def share(self, descriptor: int) -> None:
        """Let machines read a file that is shown to them, and nobody else. Raises OSError."""
        if self.group is None:
            return
        status = os.fstat(descriptor)
        if status.st_gid != self.group:
            os.fchown(descriptor, -1, self.group)
        if status.st_mode & 0o777 != 0o440:
            os.fchmod(descriptor, 0o440)


def within(program: str) -> str:
    """Return where a program of the system stands in the jail."""
    return f"/usr/bin/{Path(program).name}"


def _bind(file: Bound) -> tuple[str, str, str]:
    return ("--bind-fd" if file.writable else "--ro-bind-fd", str(file.descriptor), str(file.name))


def _users_of_processes() -> set[int]:
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(FileNotFoundError):  # it has ended
                found.add(os.stat(f"/proc/{name}").st_uid)
    return found


@dataclass(frozen=True, slots=True)
class Walls:
    """The jail of machines, if there is one, and in a sentence for people what there is and what is not."""

    jail: Jail | None
    why: str


async def build(program: str, folder: Path, group: int) -> Walls:
    """Return the jail for machines that run `program`, with what it needs gathered below `folder`, after a trial.

    `group`: see Jail. Root has one, or Unsupported is raised. Another user has one where the kernel lets bubblewrap
    make it. Raises Failed if the files cannot be gathered.
    """
    is_root = os.geteuid() == 0
    try:
        jail = Jail(await gather(program, folder), group if is_root else None)
        await run(
            jail.argv(Cell(jail.user(), (), lasting=True), [within(program), "--version"], told=_STDERR, held=_STDIN)
        )
    except (Unsupported, ProgramMissing, ProgramFailed) as error:
        why = str(error).strip().splitlines()[-1]
        if is_root:
            raise Unsupported(f"machines cannot be put into a jail: {why}", hint=INSTALL) from error
        return Walls(None, f"no jail, as {why}: {REMAINS}")
    if is_root:
        return Walls(jail, "each machine in a jail, as a user of its own")
    return Walls(
        jail, "each machine in a jail, all as the user of the server, who is not root and can give them no other"
    )
