"""The project's virtual environment, .venv, with Torpor installed from the sources here."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from running import ROOT, run, say

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def ensure(extra: str) -> bool:
    """Make .venv hold the project with an extra ("server" or "dev") and tell whether anything was done.

    A stamp in .venv says for which inputs it was made. "dev" holds all that "server" does.
    """
    wanted = fingerprint()
    if any(_stamp(name).exists() and _stamp(name).read_text() == wanted for name in {extra, "dev"}) and _works():
        return False
    if not _works():
        run("making the virtual environment .venv", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    say(f"the Python packages of the extra [{extra}] go into .venv")
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    run("installing Python packages (a minute or two the first time)", [*pip, "--editable", f"{ROOT}[{extra}]"])
    _stamp(extra).write_text(wanted)
    return True


def fingerprint() -> str:
    """Return a digest of what the environment is made from: the project file, where it is, and the Python."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    digest.update(f"{ROOT} {sys.version_info[:2]} {sys.implementation.cache_tag}".encode())
    return digest.hexdigest()


def _works() -> bool:
    """Tell whether the environment's interpreter starts: it dies with the Python that it was made from."""
    return (
        PYTHON.exists()
        and subprocess.run([PYTHON, "-c", "import pip"], check=False, capture_output=True).returncode == 0
    )


def _stamp(extra: str) -> Path:
    return VENV / f".torpor-{extra}"
