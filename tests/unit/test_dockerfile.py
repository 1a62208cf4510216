"""Dockerfiles: what is read, what it comes to, and what is refused by its name and line."""

from __future__ import annotations

import pytest

from torpor.errors import InvalidRequest
from torpor.model.dockerfile import parse
from torpor.model.steps import CopyStep, FolderStep, Ground, Plan, RunStep, base_of, plan
from torpor.model.template import Defaults


def planned(text: str, ground: Ground | None = None, **arguments: str) -> Plan:
    file = parse(text)
    base_of(file, arguments)
    return plan(file, arguments, ground or Ground(Defaults()))


def runs(text: str, **arguments: str) -> list[RunStep]:
    return [step for step in planned(text, None, **arguments).steps if isinstance(step, RunStep)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no FROM"),
        ("# nothing\n\n", "no FROM"),
        ("RUN true", "no FROM"),
        ("RUN true\nFROM base", "line 1: RUN comes before FROM"),
        ("FROM base\nFROM agent", "line 2: FROM begins a second stage"),
        ("FROM", "line 1: FROM says nothing more"),
        ("FROM a b", "line 1: FROM names one"),
        ("FROM --platform=linux/arm64 base", "line 1: FROM --platform=linux/arm64"),
        ("FROM base\nEXPOSE 80", "line 2: EXPOSE is not known here"),
        ("FROM base\n\n# x\nVOLUME /a", "line 4: VOLUME is not known here"),
        ("FROM base\nLABEL a=b", "line 2: LABEL is not known here"),
        ("FROM base\nONBUILD RUN true", "line 2: ONBUILD is not known here"),
        ("FROM base\nHEALTHCHECK NONE", "line 2: HEALTHCHECK"),
        ('FROM base\nSHELL ["/bin/bash"]', "line 2: SHELL"),
        ("FROM base\nRUN --mount=type=cache,target=/x true", "line 2: RUN --mount is not known here"),
        ("FROM base\nRUN <<EOF\ntrue\nEOF", "line 2: RUN with a here-document"),
        ("FROM base\nCOPY <<EOF /a\nx\nEOF", "line 2: COPY with a here-document"),
        ("FROM base\nCOPY --from=other /a /b", "line 2: COPY --from is not known here"),
        ("FROM base\nCOPY --link a /b", "line 2: COPY --link is not known here"),
        ("FROM base\nCOPY a", "line 2: COPY needs one source or more"),
        ("FROM base\nCOPY a b c", "line 2: COPY brings several files"),
        ("FROM base\nCOPY ../a /b", "line 2: COPY of '../a' leads out"),
        ("FROM base\nCOPY x/../../a /b", "leads out"),
        ("FROM base\nCOPY --chmod=9 a /b", "line 2: COPY --chmod=9 makes no sense"),
        ("FROM base\nCOPY --chown='a b' a /b", "line 2: "),
        ("FROM base\nADD https://example.com/a /b", "line 2: ADD from 'https://example.com/a'"),
        ("FROM base\nADD git@example.com:a.git /b", "line 2: ADD from"),
        ("FROM base\nENV A", "line 2: ENV"),
        ("FROM base\nENV =b", "line 2: ENV"),
        ("FROM base\nENV A=1 b", "line 2: ENV has 'b'"),
        ("FROM base\nENV A='open", "line 2: ENV: the quote ' is not closed"),
        ("FROM base\nENV A=${B:?x}", "line 2: ENV: ${B...} is written with ':?'"),
        ("FROM base\nENV A=${B", "line 2: ENV: "),
        ("FROM base\nUSER a b", "line 2: USER"),
        ("FROM base\nARG", "line 2: ARG says nothing more"),
        ("FROM base\nARG a b", "line 2: ARG is NAME"),
        ("# escape=x\nFROM base", "line 1: escape can be"),
        ("FROM base\nRUN a\0b", "a NUL"),
        ("FROM base\n" + "RUN true\n" * 1001, "1002 instructions"),
    ],
)
def test_what_is_not_known_is_refused_by_name_and_line(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        planned(text)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_a_command_is_a_shell_s_or_a_list_and_continues_over_comments() -> None:
    first, second, third = runs(
        "FROM base\nRUN apt-get update && \\\n  # why\n\n  apt-get install -y jq\n"
        'run ["echo", "$A b"]\nRUN [ -f /x ] || true'
    )
    assert first.words == ("/bin/sh", "-c", "apt-get update &&   apt-get install -y jq")
    assert (first.line, second.line, third.line) == (2, 6, 7)
    assert second.words == ("echo", "$A b")
    assert third.words == ("/bin/sh", "-c", "[ -f /x ] || true")


def test_another_escape_character_can_be_chosen() -> None:
    (step,) = runs("# syntax=x/y\n# escape=`\nFROM base\nRUN dir `\n  c:\\")
    assert step.words[2] == "dir   c:\\"


def test_variables_are_replaced_with_defaults_and_never_in_single_quotes() -> None:
    text = (
        "FROM base\n"
        "ARG WHO=world\nARG EMPTY\n"
        "ENV A=$WHO B=${EMPTY:-none} C=${WHO:+some} D='$WHO' E=\"${WHO}!\" F=\\$WHO G=${X:-${WHO}s} H=$ I=a\\ b\n"
        "ENV OLD form of $WHO\n"
    )
    env = planned(text).defaults.env
    assert env == {
        "A": "world",
        "B": "none",
        "C": "some",
        "D": "$WHO",
        "E": "world!",
        "F": "$WHO",
        "G": "worlds",
        "H": "$",
        "I": "a b",
        "OLD": "form of world",
    }
    assert planned(text, WHO="you").defaults.env["A"] == "you"


def test_arguments_are_a_command_s_variables_and_what_env_sets_comes_before_them() -> None:
    first, second = runs("FROM base\nARG A=1\nARG B=2\nRUN one\nENV A=3\nRUN two", B="9")
    assert dict(first.env) == {"A": "1", "B": "9"}
    assert (dict(second.env), dict(second.defaults.env)) == ({"B": "9"}, {"A": "3"})


def test_an_argument_before_from_is_for_from_and_for_who_asks_for_it() -> None:
    text = "ARG TAG=1\nFROM example.com/a:$TAG AS x\nRUN one\nARG TAG\nRUN two"
    assert base_of(parse(text), {}) == "example.com/a:1"
    assert base_of(parse(text), {"TAG": "2"}) == "example.com/a:2"
    first, second = runs(text)
    assert (dict(first.env), dict(second.env)) == ({}, {"TAG": "1"})


def test_an_argument_that_nothing_asks_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no ARG of the Dockerfile is called 'X'"):
        planned("FROM base", X="1")


def test_paths_are_from_the_working_folder_on() -> None:
    steps = planned(
        "FROM base\nWORKDIR /a\nWORKDIR b\nCOPY x y/\nCOPY x .\nADD --chmod=750 --chown=u:g x /z\nCOPY x ../q"
    ).steps
    folders = [step.path for step in steps if isinstance(step, FolderStep)]
    copies = [step for step in steps if isinstance(step, CopyStep)]
    assert folders == ["/a", "/a/b"]
    assert [step.target for step in copies] == ["/a/b/y/", "/a/b/", "/z", "/a/q"]
    assert (copies[2].mode, copies[2].owner, copies[2].unpacks) == (0o750, "u:g", True)
    assert planned('FROM base\nCOPY ["a b", "/c d/"]').steps[0].shown == 'COPY ["a b", "/c d/"]'


def test_user_and_folder_hold_for_what_comes_after() -> None:
    first, second = runs("FROM base\nRUN one\nWORKDIR /w\nUSER app:staff\nRUN two")
    assert (first.defaults.user, second.defaults.user, second.defaults.cwd) == (None, "app:staff", "/w")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("", ()),
        ('CMD ["a", "b"]', ("base-entry", "a", "b")),
        ('ENTRYPOINT ["e"]', ("e",)),
        ('ENTRYPOINT ["e"]\nCMD ["a"]', ("e", "a")),
        ('CMD ["a"]\nENTRYPOINT ["e"]', ("e", "a")),
        ('ENTRYPOINT e x\nCMD ["a"]', ("/bin/sh", "-c", "e x")),
        ("CMD a b", ("base-entry", "/bin/sh", "-c", "a b")),
    ],
)
def test_a_command_of_its_own_is_started_and_the_base_s_is_not(text: str, start: tuple[str, ...]) -> None:
    ground = Ground(Defaults(), ("base-entry",), ("base-command",))
    assert planned(f"FROM x\n{text}", ground).start == start


@pytest.mark.parametrize("line", ["ENV X=$X$X", "ARG X=$X$X", "ENV X ${X:-a}$X$X", "WORKDIR $X$X"])
def test_values_that_double_with_every_line_are_refused_before_they_fill_the_host_s_memory(line: str) -> None:
    with pytest.raises(InvalidRequest, match=r"line \d+: .*(more|longer) than 65536 characters"):
        planned("FROM base\nENV X=aaaaaaaa\nARG X=aaaaaaaa\n" + f"{line}\nENV X=$X$X$X\n" * 400)


def test_all_variables_together_have_a_bound() -> None:
    with pytest.raises(InvalidRequest, match="line 4: ENV makes the variables longer than 65536"):
        planned("FROM base\n" + "".join(f"ENV X{number}={'a' * 25_000}\n" for number in range(3)))
