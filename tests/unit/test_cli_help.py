"""What the command line says about itself, on a terminal of 80 columns."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cli_reference
from screen import on_screen
from torpor.cli.app import run

COMMANDS = [path.split()[1:] for path, _ in cli_reference.commands()]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.parametrize("words", [[], *COMMANDS], ids=" ".join)
def test_help_tells_what_it_does_within_80_columns(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage: torpor" in said
    assert max(map(len, said.splitlines())) <= 80


def test_commands_are_listed_by_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    said = capsys.readouterr().out
    panels = ["Sandboxes", "Sleep and wake", "Snapshots and copies", "What they do and cost", "The server"]
    places = [said.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)


def test_a_completion_waits_for_no_library_that_it_does_not_need() -> None:
    looked = (
        "import sys, torpor.cli.app; print([name for name in ('pydantic', 'httpx2', 'rich') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", looked], capture_output=True, check=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("width", [80, 50, 120])
def test_a_table_keeps_ids_and_figures_whole_however_narrow_the_terminal(width: int) -> None:
    names = ["sandbox", "name", "template", "there", "running", "active", "cpu time", "cost", "always on", "saved"]
    cells = [
        "sbx-q6qms1dznc7455vq",
        "demo",
        "code-interpreter",
        "2.9 min",
        "3.1 min",
        "100 %",
        "1.2 min",
        "1",
        "2",
        "0 %",
    ]
    shown = f"from torpor.cli import output; output.table({names}, [{cells}], empty='')"
    with on_screen([sys.executable, "-c", shown], width) as screen:
        assert screen.wait() == 0
    said = " ".join(screen.lines())
    assert [cell for cell in cells if cell not in said and cell != "code-interpreter"] == []
    assert "…" not in said
    assert all(word.upper() in said.split() for word in ["sandbox", "there", "running", "cpu", "always", "saved"])
