"""Patterns of paths in a build context: those of COPY and ADD, and those of a .dockerignore.

`*` is any run of characters but `/`, `?` one of them, `[a-c]` one of a class, and `**` any run at all.
"""

from __future__ import annotations

import posixpath
import re

_MOST_LINES = 1000


# What crosses folders: any number of whole ones, or any characters.
_FOLDERS, _ANYTHING = "(?:[^/]+/)*", ".*"
# Wildcards that cross folders, and after each of them the texts between which `*` stands.
_Blocks = list[tuple[str, list[str]]]


def matcher(pattern: str) -> re.Pattern[str]:
    """Return what a pattern means, for whole paths relative to the context. Raises ValueError.

    Whoever wrote it may mean harm, so it takes a time that grows with the length of the path, not with the number of
    its wildcards: but for the last, each takes as little as it can, and never more afterwards. Nothing is missed by
    that, since what one wildcard leaves the next one can take.
    """
    *others, (wide, (head, *rest)) = _blocks(pattern)
    parts = [f"(?>{each}{'?' if each else ''}{_shortest(texts)})" for each, texts in others]
    tail = _shortest([head, *rest[:-1]]) + (f"[^/]*{rest[-1]}" if rest else "")
    return re.compile("".join([*parts, wide, tail]), re.DOTALL)


def _shortest(texts: list[str]) -> str:
    head, *rest = texts
    return head + "".join(f"(?>[^/]*?{text})" for text in rest)


def _blocks(pattern: str) -> _Blocks:
    blocks: _Blocks = [("", [""])]
    at = 0
    while at < len(pattern):
        texts = blocks[-1][1]
        if pattern.startswith("**/", at) and pattern[at - 1 : at] in {"", "/"}:
            blocks.append((_FOLDERS, [""]))
            at += 3
        elif pattern.startswith("**", at):
            blocks.append((_ANYTHING, [""]))
            at += 2
        elif pattern[at] == "*":
            texts.append("")
            at += 1
        elif pattern[at] == "[":
            text, at = _class(pattern, at)
            texts[-1] += text
        elif pattern[at] == "\\" and at + 1 < len(pattern):
            texts[-1] += re.escape(pattern[at + 1])
            at += 2
        else:
            texts[-1] += "[^/]" if pattern[at] == "?" else re.escape(pattern[at])
            at += 1
    return blocks


def _class(pattern: str, at: int) -> tuple[str, int]:
    end = pattern.find("]", at + 2)
    if end < 0:
        raise ValueError(f"the pattern {pattern[:100]!r} has a [ without its ]")
    inner = pattern[at + 1 : end]
    negated = inner[:1] in {"^", "!"}
    chosen = re.sub(r"[\[\]\\^&~|]", r"\\\g<0>", inner[1:] if negated else inner)
    try:
        re.compile(f"[{chosen}]")
    except re.error as error:
        raise ValueError(f"the pattern {pattern[:100]!r} has a class that makes no sense") from error
    return f"(?!/)[{'^' if negated else ''}{chosen}]", end + 1


def has_magic(pattern: str) -> bool:
    """Tell whether a text is a pattern, and not just a path."""
    return any(char in pattern for char in "*?[\\")


class Ignored:
    """What a .dockerignore leaves out. Raises ValueError for a text that makes no sense.

    A line is a pattern for paths, and what is below them; after `!` for paths that are not left out after all. The last
    one that matches decides.
    """

    def __init__(self, text: str = "") -> None:
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        lines = text.removeprefix("\ufeff").splitlines()
        if len(lines) > _MOST_LINES:
            raise ValueError(f"the .dockerignore has {len(lines)} lines, where {_MOST_LINES} are allowed")
        for line in lines:
            said = line.strip()
            if not said or said.startswith("#"):
                continue
            keeps = said.startswith("!")
            path = posixpath.normpath(said.removeprefix("!").strip()).lstrip("/")
            if path not in {"", "."}:
                self._rules.append((keeps, matcher(path)))

    def ignores(self, path: str) -> bool:
        """Tell whether a path, relative to the context, is left out."""
        found = False
        ways = [path]
        while (above := posixpath.dirname(ways[-1])) != "":
            ways.append(above)
        for keeps, rule in self._rules:
            if found == keeps and any(rule.fullmatch(way) for way in ways):
                found = not keeps
        return found

    @property
    def keeps_some(self) -> bool:
        """Whether something below what is left out may be kept after all."""
        return any(keeps for keeps, _ in self._rules)
