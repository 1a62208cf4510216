"""Dockerfiles: the part of their language that templates are made with, read into instructions.

Known are FROM (once), RUN, COPY, ADD, ENV, WORKDIR, USER, ARG, ENTRYPOINT and CMD. Anything else is refused by its name
and line, so that nothing is silently not done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from torpor.errors import InvalidRequest

KNOWN = ("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "WORKDIR")
_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S+)\s*")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")
_HEREDOC = re.compile(r"(?:^|\s|\d)<<-?(['\"]?)[A-Za-z_]\w*\1(?:\s|$)")
_FLAGS = {"COPY": {"chown", "chmod"}, "ADD": {"chown", "chmod"}, "FROM": {"platform"}}
_MOST_INSTRUCTIONS = 1000


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name in capitals, the line it begins at, its flags, and the rest of its text.

    `words` is the list where the rest is a list in JSON (the exec form).
    """

    line: int
    name: str
    rest: str
    flags: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] | None = None

    def __str__(self) -> str:
        flags = "".join(f" --{name}={value}" for name, value in self.flags.items())
        return f"{self.name}{flags} {self.rest}"


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """`before`: the ARGs before FROM; `after`: all after it. `escape`: the character that takes a meaning away."""

    before: tuple[Instruction, ...]
    base: Instruction
    after: tuple[Instruction, ...]
    escape: str


def refused(line: int, why: str, hint: str | None = None) -> InvalidRequest:
    """Return the error for a line of a Dockerfile."""
    return InvalidRequest(f"Dockerfile, line {line}: {why}", hint=hint)


def parse(text: str) -> Dockerfile:
    """Read a Dockerfile. Raises InvalidRequest, with the line."""
    if "\0" in text:
        raise InvalidRequest("the Dockerfile has a NUL in it, so it is no text")
    lines = text.removeprefix("\ufeff").splitlines()
    escape = _escape_of(lines)
    found = [_instruction(line, said) for line, said in _joined(lines, escape)]
    if len(found) > _MOST_INSTRUCTIONS:
        raise InvalidRequest(f"the Dockerfile has {len(found)} instructions, where {_MOST_INSTRUCTIONS} are allowed")
    froms = [number for number, each in enumerate(found) if each.name == "FROM"]
    if not froms:
        raise InvalidRequest("the Dockerfile has no FROM, so there is nothing to begin with")
    if len(froms) > 1:
        raise refused(found[froms[1]].line, "FROM begins a second stage; one is allowed")
    first = froms[0]
    for each in found[:first]:
        if each.name != "ARG":
            raise refused(each.line, f"{each.name} comes before FROM, where only ARG can be")
    return Dockerfile(tuple(found[:first]), found[first], tuple(found[first + 1 :]), escape)


def _escape_of(lines: list[str]) -> str:
    """Return the escape character that directives at the very beginning choose."""
    for number, line in enumerate(lines, start=1):
        directive = _DIRECTIVE.fullmatch(line.strip())
        if directive is None:
            break
        if directive[1].lower() == "escape":
            if directive[2] not in {"\\", "`"}:
                raise refused(number, f"escape can be \\ or `, not {directive[2][:10]!r}")
            return directive[2]
    return "\\"


def _joined(lines: list[str], escape: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with its line, continued lines put together and comments left out."""
    held, began = "", 0
    for number, line in enumerate(lines, start=1):
        text = line.strip() if not held else line.rstrip()
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        began = began or number
        if text.endswith(escape):
            held += text[: -len(escape)]
            continue
        yield began, (held + text).strip()
        held, began = "", 0
    if held.strip():
        yield began, held.strip()


def _instruction(line: int, text: str) -> Instruction:
    name, _, rest = text.replace("\t", " ", 1).partition(" ")
    name, rest = name.upper(), rest.strip()
    if name not in KNOWN:
        raise refused(line, f"{name[:40]} is not known here", hint=f"known are {', '.join(KNOWN)}")
    flags, rest = _flags_of(line, name, rest)
    if name in {"RUN", "COPY", "ADD"} and _HEREDOC.search(rest):
        raise refused(line, f"{name} with a here-document (<<) is not known here", hint="write the lines into a file")
    if not rest:
        raise refused(line, f"{name} says nothing more")
    return Instruction(line, name, rest, flags, _words_of(rest))


def _flags_of(line: int, name: str, rest: str) -> tuple[dict[str, str], str]:
    flags: dict[str, str] = {}
    while (found := _FLAG.match(rest)) is not None:
        if found[1] not in _FLAGS.get(name, set()) or found[2] is None:
            raise refused(line, f"{name} --{found[1]} is not known here")
        flags[found[1]] = found[2]
        rest = rest[found.end() :]
    return flags, rest


def _words_of(rest: str) -> tuple[str, ...] | None:
    """Return the exec form's words; what is no list of texts in JSON is a shell's, as `[ -f x ]` is."""
    if not rest.startswith("["):
        return None
    try:
        said = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, list) or not said or not all(isinstance(word, str) for word in said):
        return None
    return tuple(said)
