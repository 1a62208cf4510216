"""What every test run shares: proof that it left nothing behind, and templates that are baked once.

A run is known by a word in its environment, which every process started from it inherits, whoever its parent is by now,
and its temporary files have a folder of their own. So other work on the machine is not mistaken for it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from running_server import home_sharing_templates

ROOT = Path(__file__).resolve().parents[1]
RUN_VARIABLE = "TORPOR_TEST_RUN"
# Folders where programs of this project could leave named things, with what their names begin with.
SHARED_PLACES = {Path("/run/netns"): "", Path("/run"): "torpor", Path("/tmp"): "torpor", Path("/dev/shm"): "torpor"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever stands in tests/system is run against real guests."""
    for item in items:
        if (ROOT / "tests" / "system") in item.path.parents:
            item.add_marker(pytest.mark.guest)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run if it leaves a process, a mount, a network namespace or a temporary file behind."""
    folder = tmp_path_factory.getbasetemp()
    temporary = folder / "tmp"
    temporary.mkdir()
    word = secrets.token_hex(8)
    shared_before = shared_names()
    patch = pytest.MonkeyPatch()
    patch.setenv(RUN_VARIABLE, word)
    patch.setenv("TMPDIR", str(temporary))
    patch.setattr(tempfile, "tempdir", None)
    yield
    patch.undo()
    litter = [f"process {pid}: {command}" for pid, command in processes_of(word).items()]
    litter += [f"mount {place}" for place in mounts_below(folder)]
    litter += [f"file {path}" for path in temporary.iterdir()]
    litter += [f"name {name}" for name in sorted(shared_names() - shared_before)]
    for pid in processes_of(word):
        os.kill(pid, signal.SIGKILL)
    assert not litter, "the run left behind:\n" + "\n".join(litter)


@pytest.fixture(scope="session")
def template_home() -> Path:
    """A data directory with the template `base` baked: TORPOR_TEST_HOME, or build/test-home, kept from run to run.

    Nothing else is to be changed in it; what needs a data directory of its own takes `fresh_home`.
    """
    from torpor.host.bake import build_template

    home = Path(os.environ.get("TORPOR_TEST_HOME") or ROOT / "build" / "test-home")
    asyncio.run(build_template(home, "base"))
    return home


@pytest.fixture
def fresh_home(template_home: Path, tmp_path: Path) -> Path:
    """An empty data directory that shares the baked templates."""
    return home_sharing_templates(template_home, tmp_path / "home")


def processes_of(word: str) -> dict[int, str]:
    """Return the processes that inherited this run's environment (not the run itself), by id, with their command."""
    mark = f"{RUN_VARIABLE}={word}".encode()
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
            except OSError:
                continue  # it ended meanwhile, or is another user's
    return found


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points in a folder."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{folder}/")]


def shared_names() -> set[str]:
    """Return the named things in places that the whole machine shares."""
    return {
        str(entry)
        for place, beginning in SHARED_PLACES.items()
        if place.is_dir()
        for entry in place.iterdir()
        if entry.name.startswith(beginning)
    }
