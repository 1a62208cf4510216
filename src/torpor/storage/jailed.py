"""Programs that read what strangers have made, in a jail of bubblewrap's: no network, no rights, one folder to write.

A program in it sees the system's own programs and libraries, read-only, and its folder, as `/work`. It ends with us.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torpor.storage.programs import require, use

WORK = "/work"
# What giving files to their owners takes.
OWNERS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETFCAP")

_SYSTEM = ("/bin", "/lib", "/lib64", "/lib32", "/sbin")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl", "/etc/mke2fs.conf")
_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Jailed:
    """`work`: the folder that is `/work`. `seen`: files or folders of the host that can be read, by their names there.

    `rights`: the capabilities that are kept. `env`: variables beside PATH.
    """

    work: Path
    seen: Mapping[str, Path] = field(default_factory=dict)
    rights: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def argv(self, inside: Sequence[str]) -> list[str]:
        """Return the command line that runs `inside` in the jail."""
        env = {"PATH": _PATH, "HOME": "/tmp", "TMPDIR": WORK, "LC_ALL": "C.UTF-8", **self.env}  # noqa: S108 - its own
        return [
            *("bwrap", *_NAMESPACES, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
            *(() if os.geteuid() == 0 else ("--unshare-user",)),
            *(word for right in self.rights for word in ("--cap-add", right)),
            *(word for name, value in env.items() for word in ("--setenv", name, value)),
            *("--ro-bind", "/usr", "/usr"),
            *(word for folder in _SYSTEM if Path(folder).exists() for word in _shown(folder)),
            *(word for path in (*_ETC, *_interpreter()) for word in ("--ro-bind-try", path, path)),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108 - its own
            *("--bind", str(self.work), WORK),
            *(word for name, path in self.seen.items() for word in ("--ro-bind", str(path), name)),
            *("--remount-ro", "/", "--chdir", WORK, "--", *inside),
        ]

    async def run(self, inside: Sequence[str], package: str, failure: str, log: Path | None = None) -> str:
        """Run a program to its end and return what it wrote.

        Raises Unsupported with the Debian `package` where it is missing, Failed with `failure` and its last words.
        """
        require(inside[0], package)
        return await use(self.argv(inside), "bubblewrap", failure, log=log)


def _shown(folder: str) -> tuple[str, str, str]:
    """Return the options for a folder of the system: where it is a link into /usr, the same link."""
    path = Path(folder)
    if path.is_symlink():
        return "--symlink", os.readlink(path), folder
    return "--ro-bind", folder, folder


def _interpreter() -> tuple[str, ...]:
    """Return where this Python is, if that is not in /usr."""
    return () if Path(sys.base_prefix).is_relative_to("/usr") else (sys.base_prefix,)


def interpreter() -> str:
    """Return this Python, as it is called in the jail: without what a virtual environment adds."""
    return str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
