"""The import rules: those the linter knows (.importlinter), and those it has no words for."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


def imports_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every module a file imports, in whichever block the import stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports by a relative name"
            assert node.module is not None
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_every_import_contract_is_kept() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    environment = {**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1", "COLUMNS": "200"}
    answer = subprocess.run(
        [linter, "--no-logo", "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert " 0 broken" in answer.stdout


def test_the_guest_agent_imports_the_standard_library_and_itself_only() -> None:
    allowed = sys.stdlib_module_names | {"torpor_guest"}
    strangers = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in (SRC / "torpor_guest").rglob("*.py")
        for line, name in imports_of(file)
        if name.partition(".")[0] not in allowed
    ]
    assert strangers == []


def test_the_interpreter_of_code_contexts_imports_the_standard_library_and_itself_only() -> None:
    allowed = sys.stdlib_module_names | {"torpor_kernel"}
    strangers = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in (SRC / "torpor_kernel").rglob("*.py")
        for line, name in imports_of(file)
        if name.partition(".")[0] not in allowed
    ]
    assert strangers == []


def test_the_interpreter_of_code_contexts_is_written_for_python_3_8() -> None:
    for file in (SRC / "torpor_kernel").rglob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))


def test_of_the_guest_agent_only_its_protocol_and_names_are_imported_from_outside() -> None:
    seen = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in (SRC / "torpor").rglob("*.py")
        for line, name in imports_of(file)
        if re.match(r"torpor_guest\.(?!(protocol|names)(\.|$))", name)
    ]
    assert seen == []


def test_only_the_command_line_prints_and_there_in_one_module() -> None:
    printing = {
        file.relative_to(SRC).as_posix()
        for file in (SRC / "torpor").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "typer.secho", "rich.print")
    }
    assert len(printing) <= 1, printing
    assert all(name.startswith("torpor/cli/") for name in printing)
