"""The workspace that the examples begin with: the service of `material.py`, cloned and installed in a sandbox."""

from __future__ import annotations

import tempfile
from pathlib import Path

from material import make_repository, make_wheel
from story import timed
from torpor import Sandbox

RUN_TESTS = "cd /work && python3 -m unittest -v"
# All three streams go elsewhere, so the command ends at once and the server stays.
START_SERVER = "cd /work && nohup python3 service.py 8000 >/work/server.log 2>&1 </dev/null &"
CALL_SERVER = "curl --silent --show-error --retry 30 --retry-delay 1 --retry-connrefused http://127.0.0.1:8000/Ada"

# The sandbox is the environment: there is no other program on it that pip could break.
PIP_INSTALL = (
    "pip install --quiet --no-index --find-links /root/wheels --break-system-packages --root-user-action ignore"
    " -r /work/requirements.txt"
)
# What pip does with such a package, without pip itself, which takes some seconds to start under emulation.
UNPACK = "python3 -m zipfile -e /root/wheels/*.whl $(python3 -c 'import site; print(site.getsitepackages()[0])')"


def set_up(sandbox: Sandbox, install: str = UNPACK) -> None:
    """Do the expensive part once: the checkout and the dependencies stay for the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        with timed("make a repository and a package"):
            bundle, wheel = make_repository(Path(folder)), make_wheel(Path(folder))
        with timed("upload both") as words:
            sent = sandbox.filesystem.upload(bundle, "/root/service.bundle").bytes
            sent += sandbox.filesystem.upload(wheel, f"/root/wheels/{wheel.name}").bytes
            words.append(f"{sent} bytes")
    with timed("clone the repository"):
        sandbox.exec("git clone --quiet --branch main /root/service.bundle /work", check=True)
    with timed("install the dependencies"):
        sandbox.exec(install, check=True, timeout_seconds=300)
