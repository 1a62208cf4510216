"""The host's Debian archive: its sources as apt has them, and packages fetched to be unpacked, never installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import Unsupported
from torpor.storage.programs import use

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TARGETS = "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"


@dataclass(frozen=True, slots=True)
class Archive:
    """Sources in apt's one-line form, for the host's own release, its updates and its security fixes."""

    codename: str
    sources: tuple[str, ...]


async def host_archive() -> Archive:
    """Return the archive this host is installed from.

    Raises Unsupported where that is not Debian, or apt knows none.
    """
    release = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=\"?([a-z]+)\"?$", release, re.MULTILINE)
    if not re.search(r"^ID=debian$", release, re.MULTILINE) or found is None:
        raise Unsupported(
            "templates are built from the host's own Debian archive, and this host is not Debian",
            hint="build templates on Debian 12 or newer, and copy the data directory",
        )
    lines = await _apt(["apt-get", "indextargets", "--format", _TARGETS, "Created-By: Packages"])
    sources = sources_of(found[1], lines, _KEYRING if _KEYRING.exists() else None)
    if not sources:
        raise Unsupported(f"apt knows no archive for {found[1]}", hint="run `apt-get update`, then try again")
    return Archive(found[1], sources)


def sources_of(codename: str, targets: str, keyring: Path | None) -> tuple[str, ...]:
    """Turn apt's index targets (`origin|uri|release|component` lines) into source lines for one release."""
    option = f"[signed-by={keyring}] " if keyring else ""
    wanted = {codename, f"{codename}-updates", f"{codename}-security"}
    lines: dict[str, None] = {}
    for target in targets.splitlines():
        fields = target.strip().split("|")
        if len(fields) == 4 and fields[0] == "Debian" and fields[2] in wanted:  # else it may be a warning of apt's
            lines[f"deb {option}{fields[1]} {fields[2]} {fields[3]}"] = None
    return tuple(lines)


async def newest_version(package: str) -> str:
    """Return the version apt would install. Raises Unsupported if apt's lists do not have the package."""
    text = await _apt(["apt-cache", "policy", package])
    found = re.search(r"^\s*Candidate: (\S+)$", text, re.MULTILINE)
    if found is None or found[1] == "(none)":
        raise Unsupported(f"apt knows no package {package}", hint="run `apt-get update`, then try again")
    return found[1]


async def cloud_kernel_package() -> str:
    """Return the name of the package that holds Debian's newest cloud kernel, which the meta package depends on."""
    text = await _apt(["apt-cache", "depends", "--important", "linux-image-cloud-amd64"])
    found = re.search(r"Depends: (linux-image-\S+)", text)
    if found is None:
        raise Unsupported("apt knows no package linux-image-cloud-amd64", hint="run `apt-get update`, then try again")
    return found[1]


async def unpack(package: str, into: Path, log: Path) -> None:
    """Download a package, verified by apt, and unpack its files into an existing folder."""
    download = into / ".download"
    download.mkdir()
    # apt works in its own folder; as its unprivileged user it could not write there.
    await _apt(["env", "-C", str(download), "apt-get", "download", "-o", "APT::Sandbox::User=root", package], log)
    (archive,) = download.glob("*.deb")
    await use(["dpkg-deb", "-x", str(archive), str(into)], "dpkg", f"{package} was not unpacked", log=log)
    archive.unlink()
    download.rmdir()


async def _apt(argv: list[str], log: Path | None = None) -> str:
    hint = "run `apt-get update` and look at its output"
    return await use(argv, "apt", "the host's package archive does not answer", hint=hint, log=log)
