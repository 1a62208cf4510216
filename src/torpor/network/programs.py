"""The programs that change the kernel's network: `nft`, `ip`, `tc`, `conntrack`. No other file starts them.

Each takes many orders at once on its standard input, and works in the network namespace of the thread that starts it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from torpor.errors import Failed, Unsupported

# Debian's packages for them.
PACKAGES = {"nft": "nftables", "ip": "iproute2", "tc": "iproute2", "conntrack": "conntrack"}
# Generous: a loaded host. What takes longer is not slow but stuck.
_PATIENCE_S = 30.0
_MAX_SHOWN = 500
# What conntrack says when there was nothing to forget, which it calls a failure.
_NOTHING = "0 flow entries"


def nft(text: str) -> None:
    """Change the firewall, as one transaction. Raises Failed, and then nothing is changed; Unsupported."""
    _run(["nft", "-f", "-"], text)


def nft_told(*words: str) -> list[dict[str, Any]]:
    """Return what `nft -j` lists. Raises Failed, Unsupported."""
    return list(_parsed(_run(["nft", "-j", "list", *words]), "nft")["nftables"])


def ip(*lines: str) -> None:
    """Do what the lines say, in order, up to the first that fails. Raises Failed, Unsupported."""
    _run(["ip", "-batch", "-"], "\n".join([*lines, ""]))


def ip_told(*words: str) -> list[dict[str, Any]]:
    """Return what `ip -j` shows. Raises Failed, Unsupported."""
    return list(_parsed(_run(["ip", "-j", *words]) or "[]", "ip"))


def tc(*lines: str) -> None:
    """Do what the lines say, in order, up to the first that fails. Raises Failed, Unsupported."""
    _run(["tc", "-batch", "-"], "\n".join([*lines, ""]))


def forget_flows_from(address: str) -> None:
    """Have the kernel forget every flow that began at an address. Raises Failed, Unsupported."""
    try:
        _run(["conntrack", "-D", "-f", "ipv4", "--orig-src", address])
    except Failed as error:
        if _NOTHING not in error.message:
            raise


def _run(argv: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except FileNotFoundError as error:
        raise missing(argv[0]) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"the program {argv[0]} could not be used: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:_MAX_SHOWN]
        raise Failed(f"{argv[0]} ended with code {done.returncode}: {said or 'no output'}")
    return done.stdout


def is_installed(program: str) -> bool:
    """Tell whether a program is on PATH."""
    return shutil.which(program) is not None


def missing(program: str) -> Unsupported:
    """Return the error for a program that is not installed."""
    return Unsupported(f"the program {program} is not installed", hint=f"install the package {PACKAGES[program]}")


def _parsed(text: str, program: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failed(f"{program} said nothing this program understands: {text[:80]!r}") from error
