"""Whose build is next, and what a template may be called."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from torpor.control.service.build_log import LONGEST_LINE, harmless
from torpor.model.builds import Build, in_turn, may_name_template
from torpor.model.ids import BuildId, TemplateName, WorkspaceId
from torpor.wire.templates import END_MARK, marked, unmarked

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
A, B, C = WorkspaceId("a"), WorkspaceId("b"), WorkspaceId("c")


def waiting(number: int, workspace: WorkspaceId) -> Build:
    name, at = TemplateName("tools"), NOON + timedelta(seconds=number)
    return Build(BuildId(f"bld-{number}"), workspace, name, False, "image", at, None)


def test_workspaces_take_turns_however_much_one_of_them_wants() -> None:
    queued = [*(waiting(number, A) for number in range(4)), waiting(7, B), waiting(8, B), waiting(9, C)]
    assert [build.id for build in in_turn(queued, {})] == [f"bld-{number}" for number in (0, 7, 9, 1, 8, 2, 3)]


def test_who_had_no_turn_for_the_longest_comes_first() -> None:
    queued = [waiting(1, A), waiting(2, B), waiting(3, C)]
    served = {A: NOON, B: NOON - timedelta(hours=1)}
    assert [build.workspace for build in in_turn(queued, served)] == [C, B, A]


@pytest.mark.parametrize("name", ["tools", "my.tools-2", "base"])
def test_templates_may_be_called(name: str) -> None:
    assert may_name_template(name)


@pytest.mark.parametrize("name", ["", "build", "builds", "scratch", "tpl-tools", "Tools", "../x", "a b", "-x"])
def test_templates_may_not_be_called(name: str) -> None:
    assert not may_name_template(name)


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("plain", ["plain"]),
        ("two\nlines\r\nthree", ["two", "lines", "three"]),
        ("10%\r20%\r100%\r", ["100%"]),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07text", ["red text"]),
        ("a\x0bb\u2028c\x85d\x00e", ["a b c d e"]),
        ("x" * (LONGEST_LINE + 1), ["x" * LONGEST_LINE + " ..."]),
    ],
)
def test_what_a_build_says_becomes_lines_of_printable_text(said: str, lines: list[str]) -> None:
    assert harmless(said) == lines


@pytest.mark.parametrize("line", ["", "end", " end ", "the end", "end" + END_MARK, "end" + END_MARK * 2, END_MARK])
def test_a_line_is_the_same_after_it_was_sent_and_never_takes_itself_for_the_end(line: str) -> None:
    assert unmarked(marked(line)) == line
    assert marked(line).strip() != "end"
