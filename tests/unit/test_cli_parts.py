"""The command line where parts of it are not installed, and what it does with an idle pipe and with progress."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from torpor.cli import exec as exec_module
from torpor.cli import output
from torpor.cli.exec import piped_stdin
from torpor.errors import InvalidRequest

Captured = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Event:
    step: str
    detail: str
    done: bool
    elapsed_s: float


def without(module: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command line as if `module` were not installed."""
    program = f"import sys; sys.modules[{module!r}] = None; from torpor.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_its_extra_the_command_line_says_how_to_install_it(module: str) -> None:
    ran = without(module, "list")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"error: the command line needs {module}, which is not installed. pip install 'torpor[cli]'\n"


@pytest.mark.parametrize("argv", [["serve", "--port", "0"], ["template", "build", "base"]])
def test_without_the_servers_parts_only_what_needs_them_says_so(argv: list[str], tmp_path: Path) -> None:
    ran = without("structlog", *argv, "--home", str(tmp_path / "home"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "error: this needs the server's parts, and structlog is not installed. pip install 'torpor[server]'\n"
    )
    assert without("structlog", "version").returncode == 0


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> int:
    """stdin is the reading end of a pipe; this is the writing end."""
    reading, writing = os.pipe()
    stdin = open(reading)  # noqa: SIM115 - it is stdin for the whole test
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(exec_module, "_SILENT_PIPE_S", 0.01)
    return writing


def test_a_pipe_that_stays_silent_is_named_and_not_waited_for(pipe: int) -> None:
    with pytest.raises(InvalidRequest, match="stdin is a pipe") as caught:
        piped_stdin()
    os.close(pipe)
    assert "-n runs the command without it" in str(caught.value.hint)
    sys.stdin.close()


def test_what_comes_through_a_pipe_is_read_to_its_end(pipe: int) -> None:
    os.write(pipe, b"\xff\x00 all")
    os.close(pipe)
    assert piped_stdin() == b"\xff\x00 all"
    sys.stdin.close()


def test_a_closed_pipe_is_empty_input(pipe: int) -> None:
    os.close(pipe)
    assert piped_stdin() == b""
    sys.stdin.close()


def test_progress_is_plain_lines_where_no_person_looks(capsys: Captured) -> None:
    with output.progress() as report:
        report(Event("root", "Debian bookworm", False, 0.0))
        report(Event("root", "Debian bookworm", True, 61.25))
    assert capsys.readouterr() == ("", "root: Debian bookworm\nroot: done in 61.2 s\n")
