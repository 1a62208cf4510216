"""What the simple shell keeps from line to line, tried with this machine's own /bin/sh."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torpor.cli.shell import _STEP, _exit_code


@pytest.fixture
def memory(tmp_path: Path) -> str:
    return str(tmp_path / "memory")


def step(memory: str, line: str, last: int = 0) -> tuple[int, str]:
    argv = ["/bin/sh", "-c", _STEP, "sh", memory, line, str(last)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout


def test_the_code_of_the_line_before_is_known(memory: str) -> None:
    assert step(memory, "echo $?", last=3) == (0, "3\n")
    assert step(memory, "true", last=3) == (0, "")


@pytest.mark.parametrize(
    ("line", "code"), [("exit", 7), (" exit 3 ", 3), ("exit 256", 0), ("exit now", None), ("exits", None), ("", None)]
)
def test_exit_ends_the_shell_with_its_code_or_the_last_line_s(line: str, code: int | None) -> None:
    assert _exit_code(line, last=7) == code


def test_folder_and_exported_variables_are_kept(memory: str, tmp_path: Path) -> None:
    folder = tmp_path / "a 'b'"
    folder.mkdir()
    assert step(memory, f'cd "{folder}"; export A="x \'y\' $HOME"; B=local')[0] == 0
    code, out = step(memory, 'pwd; echo "$A|$B|$#"')
    assert (code, out.splitlines()[0]) == (0, str(folder))
    assert out.splitlines()[1].startswith("x 'y' /")
    assert out.splitlines()[1].endswith("||0")


def test_the_code_of_a_line_is_its_own_and_an_exit_keeps_what_came_before(memory: str, tmp_path: Path) -> None:
    assert step(memory, "false") == (1, "")
    assert step(memory, f"cd {tmp_path}; export C=kept; exit 42") == (42, "")
    assert step(memory, "echo $C; pwd") == (0, f"kept\n{tmp_path}\n")


def test_a_line_that_is_no_shell_does_not_forget(memory: str) -> None:
    step(memory, "export D=still")
    assert step(memory, "if then (")[0] != 0
    assert step(memory, "echo $D") == (0, "still\n")


def test_a_folder_that_is_gone_does_not_stop_the_next_line(memory: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    step(memory, f"cd {tmp_path}/gone")
    (tmp_path / "gone").rmdir()
    assert step(memory, "echo here")[1] == "here\n"
