"""What the documentation shows is run: every program and every command of every page, on a real server.

They live on a host of their own (tests/support/outside_world.py): the server has its usual address there, its
sandboxes have a network, and nothing they send leaves the machine. How a page says what is run is in
tests/support/doc_pages.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doc_pages import ROOT, Block, pages, programs_of, session_of, source_of
from doc_shell import DocShell
from outside_world import NAME_SERVER, outside_world
from running_server import home_sharing_templates
from torpor import Client, Sandbox, Snapshot

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a host of its own, and bakes templates")

TORPOR = (sys.executable, "-m", "torpor.cli")
PATIENCE_S = 300
PROGRAMS = [program for page in pages() for program in programs_of(page)]
SESSIONS = [page for page in pages() if session_of(page)]


@pytest.fixture(scope="module")
def documented_home(interpreter_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of the documentation's server, which is stopped in the end."""
    home = tmp_path_factory.mktemp("documented") / "home"
    home_sharing_templates(interpreter_home, home, names=["base", "code-interpreter"])
    with outside_world() as world, pytest.MonkeyPatch.context() as patch:
        world.names.update({name: ["20.0.0.1"] for name in ("code.example.com", "git.example.com")})
        patch.setenv("TORPOR_NETWORK", "auto")
        patch.setenv("TORPOR_DNS", NAME_SERVER)
        patch.setenv("TORPOR_HOME", str(home))
        patch.delenv("TORPOR_API", raising=False)
        patch.delenv("TORPOR_API_KEY", raising=False)
        try:
            yield home
        finally:
            subprocess.run([*TORPOR, "down"], check=True, capture_output=True)


@pytest.fixture
def folder(documented_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in, beside a server that runs and holds nothing. What is made there is removed."""
    subprocess.run([*TORPOR, "up"], check=True, capture_output=True)
    monkeypatch.setenv("PANDASTACK_API", "http://127.0.0.1:7070")
    monkeypatch.setenv("PANDASTACK_API_KEY", (documented_home / "key").read_text().strip())
    yield tmp_path
    with Client() as client:
        for sandbox in Sandbox.iterate(client=client):
            sandbox.delete()
        for snapshot in Snapshot.iterate(client=client):
            snapshot.delete()
        for volume in client.volumes.list():
            client.volumes.delete(volume.name)


@pytest.fixture
def own_server(folder: Path) -> Iterator[None]:
    """Whatever the test starts as the server, and however it listens, the next one has the usual one."""
    yield
    subprocess.run([*TORPOR, "down"], check=True, capture_output=True)
    subprocess.run([*TORPOR, "up"], check=True, capture_output=True)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program[0]))
def test_a_program_runs_as_it_stands_there(program: list[Block], folder: Path) -> None:
    file = folder / f"{Path(program[0].page).stem}.md.py"  # whose lines are where they are in the page
    file.write_text(source_of(program))
    ran = subprocess.run(
        [sys.executable, "-W", "error", file.name],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_print_what_it_shows(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    commands = session_of(page)
    if any(command.text.startswith("torpor up") for command in commands):
        request.getfixturevalue("own_server")
    with DocShell(folder, {"HOME": str(folder)}) as shell:
        for command, following in zip(commands, [*commands[1:], None], strict=True):
            if page.name == "cli.md":
                furnish()
            shell.run(command, asks_code=following is not None and following.text.startswith("echo $?"))


def furnish() -> None:
    """Let there be what the examples of the reference stand on: a sandbox `demo` with a snapshot `ready`."""
    with Client() as client:
        demo = next((one for one in Sandbox.iterate(client=client) if one.name == "demo"), None)
        if demo is None:
            demo = Sandbox.create(name="demo", persistent=True, client=client)
        stale = [one for one in Snapshot.iterate(client=client) if one.name == "ready" and one.sandbox_id != demo.id]
        for snapshot in stale:
            snapshot.delete()
        if not any(one.name == "ready" for one in demo.snapshots()):
            demo.wake()
            demo.snapshot("ready")
        if not any(one.name == "other" for one in Sandbox.iterate(client=client)):
            Sandbox.create(name="other", persistent=True, client=client)
