"""The sizes and names of the house rules, measured on the sources as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "tools", "examples")
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "core", "base", "misc"}
FILE_LINES = 400
FUNCTION_LINES = 60
USUAL_FUNCTION_LINES = 25

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Measured(NamedTuple):
    """One function: where it is, its lines without its docstring, and whether it says why it is long."""

    where: str
    lines: int
    excused: bool


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def functions_of(file: Path) -> Iterator[Measured]:
    text = file.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            assert node.end_lineno is not None
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            above = lines[first - 2] if first > 1 else ""
            excused = "# long:" in above or "# long:" in lines[node.lineno - 1]
            size = node.end_lineno - node.lineno + 1 - docstring_lines(node)
            yield Measured(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", size, excused)


def docstring_lines(node: Function) -> int:
    if ast.get_docstring(node, clean=False) is None:
        return 0
    first = node.body[0]
    assert first.end_lineno is not None
    return first.end_lineno - first.lineno + 1


def test_nine_functions_in_ten_are_under_25_lines() -> None:
    sizes = [found for file in python_files("src") for found in functions_of(file)]
    longer = [found for found in sizes if found.lines >= USUAL_FUNCTION_LINES]
    assert len(longer) <= len(sizes) / 10, sorted(longer, key=lambda found: -found.lines)


def test_no_function_is_over_60_lines_without_a_stated_reason() -> None:
    too_long = [
        found
        for file in python_files(*FOLDERS)
        for found in functions_of(file)
        if found.lines > FUNCTION_LINES and not found.excused
    ]
    assert too_long == []


def test_no_file_is_over_400_lines() -> None:
    sizes = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in python_files(*FOLDERS)}
    assert {name: lines for name, lines in sizes.items() if lines > FILE_LINES} == {}


def test_no_module_or_folder_has_a_name_that_says_nothing() -> None:
    names = {
        part
        for file in python_files(*FOLDERS)
        for part in [*file.relative_to(ROOT).parent.parts, file.stem]
        if part in EMPTY_NAMES
    }
    assert names == set()


def test_every_module_and_everything_public_in_it_says_what_it_is() -> None:
    files = [file for file in python_files("src", "tools") if "migrations" not in file.parts]
    trees = {file: ast.parse(file.read_text()) for file in files}
    contracts = {name for tree in trees.values() for name in methods_of_contracts(tree)}
    silent = [f"{file.relative_to(ROOT)} {name}" for file, tree in trees.items() for name in undocumented(tree)]
    assert [name for name in silent if name.rpartition(".")[2] not in contracts] == []


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Yield what is public in a module and has no docstring: itself, functions, classes, methods."""
    if tree.body and ast.get_docstring(tree) is None:
        yield "(the module)"
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and is_silent(node):
            yield f"line {node.lineno} {node.name}"
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not node.bases:
            methods = (method for method in node.body if isinstance(method, Function) and not is_property(method))
            yield from (f"line {method.lineno} {node.name}.{method.name}" for method in methods if is_silent(method))


def methods_of_contracts(tree: ast.Module) -> Iterator[str]:
    """Yield the names of methods that a Protocol describes: whoever implements them need not say it again."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            yield from (method.name for method in node.body if isinstance(method, Function))


def is_silent(node: Function | ast.ClassDef) -> bool:
    return not node.name.startswith(("_", "test_")) and ast.get_docstring(node) is None


def is_property(node: Function) -> bool:
    return any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)
