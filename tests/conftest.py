"""What every test run shares: proof that it left nothing behind, and templates that are baked once.

A run is known by a word in its environment, and its temporary files have a folder of their own, so other work on the
machine is not mistaken for it.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from baked_home import bake
from litter import RUN_VARIABLE, litter_of, processes_of, shared_names
from running_server import home_sharing_templates

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever stands in tests/system is run against real guests."""
    for item in items:
        if (ROOT / "tests" / "system") in item.path.parents:
            item.add_marker(pytest.mark.guest)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run if it leaves a process, a mount, a network namespace or a temporary file behind."""
    folder, run, shared_before = tmp_path_factory.getbasetemp(), secrets.token_hex(8), shared_names()
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUN_VARIABLE, run)
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.setenv("TORPOR_NETWORK", "off")  # unless a test has given all that could be reached to a host of its own
        patch.setattr(tempfile, "tempdir", None)
        yield
    litter = litter_of(run, folder, shared_before)
    for pid in processes_of(run, folder):
        os.kill(pid, signal.SIGKILL)
    assert not litter, "the run left behind:\n" + "\n".join(litter)


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard() -> Iterator[None]:
    """Take the signals of a terminal as programs on one do, and so let those the tests start.

    A shell without job control has what it starts in the background ignore some of them, `nohup` another, and so would
    all that this run starts.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def logging_is_as_before() -> Iterator[None]:
    """Undo what a command that ran in this process has set up for its log."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def template_home() -> Path:
    """A data directory with the template `base` baked: TORPOR_TEST_HOME, or build/test-home, kept from run to run.

    Nothing else is to be changed in it; what needs a data directory of its own takes `fresh_home`.
    """
    return bake("base")


@pytest.fixture(scope="session")
def interpreter_home(template_home: Path) -> Path:
    """The same data directory, with the template `code-interpreter` baked, too."""
    del template_home
    return bake("code-interpreter")


@pytest.fixture
def fresh_home(template_home: Path, tmp_path: Path) -> Path:
    """An empty data directory that shares the baked templates."""
    return home_sharing_templates(template_home, tmp_path / "home")
