"""Runs command lines in this process, against a server that answers by a script."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripted_server import Reply, Script
from torpor.cli import output
from torpor.cli.app import run

# Returns code, stdout, stderr and the script.
Torpor = Callable[..., tuple[int, str, str, Script]]


def command_line(monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> Torpor:
    """Return what runs one command line against a server that gives the answers in order, and no other."""

    def call(argv: list[str], *answers: Reply) -> tuple[int, str, str, Script]:
        script = Script(list(answers))
        with script.listening() as url:
            monkeypatch.setenv("TORPOR_API", url)
            monkeypatch.setenv("TORPOR_API_KEY", "secret-key")
            captured.readouterr()
            code = run(argv)
        output.use_json(False)
        assert script.answers == []
        return (code, *captured.readouterr(), script)

    return call


def asked(script: Script) -> list[str]:
    """Return the requests that came, without the API's version."""
    return [f"{one.method} {one.path.removeprefix('/v1/')}" for one in script.received]
