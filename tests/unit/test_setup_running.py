"""A step of the set-up runs without input, leaves its output in a log, and fails with the end of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import running
from running import SetupFailed


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "LOG", tmp_path / "build" / "setup.log")
        yield running.LOG


def test_a_step_that_works_says_what_it_is_and_logs_what_was_said(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running.run("greeting", ["sh", "-c", "echo $WORD; cat"], {"WORD": "hello"})
    assert log.read_text() == "$ sh -c echo $WORD; cat\nhello\n"
    assert capsys.readouterr().out.startswith("setup: greeting\nsetup:   took 0 s")


def test_a_step_that_fails_says_how_with_the_end_of_its_output(log: Path) -> None:
    with pytest.raises(SetupFailed, match="exit status 3") as caught:
        running.run("trying", ["sh", "-c", "seq 100; echo the reason >&2; exit 3"])
    assert "  | the reason" in str(caught.value)
    assert "  | 1\n" not in str(caught.value)
    assert str(log) in str(caught.value)


def test_a_step_whose_program_is_missing_says_so(log: Path) -> None:
    with pytest.raises(SetupFailed, match="could not start no-such-program: No such file"):
        running.run("trying", ["no-such-program"])
