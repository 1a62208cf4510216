"""The programs Torpor starts, and the Debian packages they come from."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import apt_source
from running import LOG, SetupFailed, run, say

# Only from this version on can an unprivileged QEMU map a memory image that it may not write.
QEMU_OLDEST = (8, 2)
QEMU = "qemu-system-x86_64"
QEMU_PACKAGES = ("qemu-system-x86", "qemu-utils")
# Program -> Debian package.
PROGRAMS = {
    QEMU: "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "losetup": "mount",
    "dpkg-deb": "dpkg",
    "setpriv": "util-linux",
    "bwrap": "bubblewrap",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "conntrack": "conntrack",
    "cpio": "cpio",
    "skopeo": "skopeo",
    "umoci": "umoci",
    "zstd": "zstd",
    "git": "git",
}
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
APT_DIR = Path("/etc/apt")
# Says that this checkout has brought the package lists up to date.
LISTS_READ = LOG.with_name("apt-lists-read")
APT_GET = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-o", "Dpkg::Use-Pty=0")
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def ensure() -> bool:
    """Install what is missing and tell whether anything was done. Raises SetupFailed if something stays missing."""
    missing = missing_packages()
    if not missing:
        return _read_lists_once()
    if shutil.which("apt-get") is None:
        raise SetupFailed(f"this system has no apt-get; install what provides: {', '.join(missing_programs())}")
    if os.geteuid() != 0:
        raise SetupFailed(
            "some packages are missing and only root may install them; run\n"
            f"    sudo apt-get install --no-install-recommends {' '.join(missing)}\n"
            f"and then this again. QEMU has to be {_dotted(QEMU_OLDEST)} or newer (Debian 12: from bookworm-backports)."
        )
    say(f"system packages to install: {' '.join(missing)}")
    _install(missing)
    if still := missing_packages():
        raise SetupFailed(f"apt-get installed the packages, but these still do not do: {' '.join(still)}")
    return True


def missing_packages() -> list[str]:
    """Return the Debian packages whose program, file or module is not here (or, QEMU, too old)."""
    found = [PROGRAMS[name] for name in missing_programs()]
    if not CA_BUNDLE.exists():
        found.append("ca-certificates")
    # Debian splits this part of Python's standard library off.
    if importlib.util.find_spec("ensurepip") is None:
        found.append(f"python3.{sys.version_info.minor}-venv")
    return found


def missing_programs() -> list[str]:
    """Return the programs that are not on PATH (nor in the system folders), with QEMU if it is too old."""
    found = [name for name in PROGRAMS if find_program(name) is None]
    qemu = find_program(QEMU)
    if qemu is not None and qemu_version(qemu) < QEMU_OLDEST:
        found.insert(0, QEMU)
    return found


def find_program(name: str) -> str | None:
    """Return where a program is. Some system programs are in folders that a user's PATH leaves out."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def qemu_version(program: str) -> tuple[int, int]:
    """Return QEMU's own version, (0, 0) if it does not say one."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return parse_version(answer.stdout.partition("version")[2])


def parse_version(text: str) -> tuple[int, int]:
    """Return major and minor of a version as QEMU or Debian write it (`10.0.2 (Debian ...)`, `1:7.2+dfsg-7`)."""
    match = re.match(r"\s*(?:\d+:)?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _read_lists_once() -> bool:
    """Bring apt's lists up to date once per checkout, for the bakes, which need them. Tell whether it was done."""
    if LISTS_READ.exists() or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    try:
        _read_lists()
    except SetupFailed as failed:
        # Nothing is missing here, and a template may be baked already: this is not the place to give up.
        say(f"going on with the package lists as they are: {failed}")
    return True


def _read_lists() -> None:
    run("reading the package lists", [*APT_GET, "update"], QUIET)
    LISTS_READ.touch()


def _install(missing: Iterable[str]) -> None:
    _read_lists()
    plain = [name for name in missing if name not in QEMU_PACKAGES]
    if plain:
        run("installing system packages", [*APT_GET, "install", "--no-install-recommends", *plain], QUIET)
    if any(name in QEMU_PACKAGES for name in missing):
        from_suite = _suite_with_new_qemu()
        title = f"installing QEMU{' from ' + from_suite[1] if from_suite else ''}"
        run(title, [*APT_GET, "install", "--no-install-recommends", *from_suite, *QEMU_PACKAGES], QUIET)


def _suite_with_new_qemu() -> tuple[str, ...]:
    """Return apt-get's option for the suite to take QEMU from: none if the system's own is new enough."""
    if candidate_version(QEMU_PACKAGES[0]) >= QEMU_OLDEST:
        return ()
    codename = read_os_release(Path("/etc/os-release")).get("VERSION_CODENAME", "")
    suite = f"{codename}-backports"
    entries = apt_source.read_all(APT_DIR)
    ours = APT_DIR / "sources.list.d" / "torpor-backports.sources"
    if not apt_source.provides(entries, suite) or ours.exists():
        _write_entry(ours, apt_source.backports_stanza(entries, codename), suite)
        run(f"reading the package list of {suite}", [*APT_GET, "update"], QUIET)
    return ("-t", suite)


def _write_entry(file: Path, text: str | None, suite: str) -> None:
    if text is None:
        raise SetupFailed(
            f"QEMU {_dotted(QEMU_OLDEST)} or newer is needed, the system's own is older, and no apt entry is there"
            f" to make the one for {suite} from; add it and run this again"
        )
    if not file.exists() or file.read_text(errors="replace") != text:
        say(f"writing {file}")
        file.write_text(text, errors="surrogateescape")


def candidate_version(package: str) -> tuple[int, int]:
    """Return the version that `apt-get install` would take, (0, 0) if there is none."""
    answer = subprocess.run(
        ["apt-cache", "policy", package], capture_output=True, text=True, check=False, env={**os.environ, **QUIET}
    )
    match = re.search(r"Candidate: (\S+)", answer.stdout)
    return parse_version(match[1]) if match else (0, 0)


def read_os_release(file: Path) -> Mapping[str, str]:
    """Return the fields of an os-release file, quotes taken off; empty if there is no such file."""
    if not file.exists():
        return {}
    pairs = (line.partition("=") for line in file.read_text().splitlines() if "=" in line)
    return {name: value.strip("\"'") for name, _, value in pairs}


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
