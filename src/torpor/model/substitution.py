"""Words of a Dockerfile: quotes, escapes, and variables."""

from __future__ import annotations

from collections.abc import Mapping

_NAME_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_NAME = _NAME_START | frozenset("0123456789")
_DEEPEST = 16
# So many characters may come of one instruction: values that are made of values double with every line.
MOST_CHARACTERS = 64 * 1024


class BadWord(ValueError):
    """A word that makes no sense; the text says why."""


class Words:
    """Reads words as a Dockerfile has them, with values for variables in their place.

    `$X` and `${X}` are the value, or nothing; `${X:-word}` is `word` where it is nothing, `${X:+word}` is `word` where
    it is not. Nothing is replaced between single quotes, nor after an escape. All that one of these returns has at most
    MOST_CHARACTERS.
    """

    def __init__(self, variables: Mapping[str, str], escape: str = "\\") -> None:
        self._variables, self._escape = variables, escape
        self._left = MOST_CHARACTERS

    def split(self, text: str) -> list[str]:
        """Return the words of a text, at white space that is not quoted. Raises BadWord."""
        words: list[str] = []
        at = 0
        while at < len(text):
            if text[at] in " \t":
                at += 1
                continue
            word, at = self._read(text, at, " \t", 0)
            words.append(word)
        return words

    def whole(self, text: str) -> str:
        """Return a text as one word. Raises BadWord."""
        return self._read(text, 0, "", 0)[0]

    def _read(self, text: str, at: int, ends: str, depth: int) -> tuple[str, int]:
        """Return a word that begins at an offset, and the offset of the character in `ends` that ends it."""
        if depth > _DEEPEST:
            raise BadWord("its variables are nested too deeply")
        parts: list[str] = []
        quote = ""
        while at < len(text):
            char = text[at]
            if char in ends and not quote:
                break
            if char == quote or (not quote and char in "'\""):
                quote = "" if quote else char
                at += 1
            elif char == self._escape and quote != "'" and at + 1 < len(text):
                kept = char if quote and text[at + 1] not in f'$"{self._escape}' else ""
                parts.append(self._counted(kept + text[at + 1]))
                at += 2
            elif char == "$" and quote != "'":
                value, at = self._variable(text, at + 1, depth)
                parts.append(self._counted(value))
            else:
                parts.append(self._counted(char))
                at += 1
        if quote:
            raise BadWord(f"the quote {quote} is not closed")
        return "".join(parts), at

    def _counted(self, part: str) -> str:
        self._left -= len(part)
        if self._left < 0:
            raise BadWord(f"with its variables in their place it has more than {MOST_CHARACTERS} characters")
        return part

    def _variable(self, text: str, at: int, depth: int) -> tuple[str, int]:
        """Return the value of a variable whose name begins at an offset, and the offset after it."""
        if text[at : at + 1] == "{":
            return self._braced(text, at + 1, depth)
        end = _end_of_name(text, at)
        return ("$", at) if end == at else (self._variables.get(text[at:end], ""), end)

    def _braced(self, text: str, at: int, depth: int) -> tuple[str, int]:
        end = _end_of_name(text, at)
        name, value = text[at:end], self._variables.get(text[at:end], "")
        if not name:
            raise BadWord("a variable in braces has no name")
        if text[end : end + 1] == "}":
            return value, end + 1
        kind = text[end : end + 2]
        if kind not in {":-", ":+"}:
            raise BadWord(
                f"${{{name}...}} is written with {kind!r}; only ${{X}}, ${{X:-word}} and ${{X:+word}} are known"
            )
        word, end = self._read(text, end + 2, "}", depth + 1)
        if text[end : end + 1] != "}":
            raise BadWord(f"the brace of ${{{name} is not closed")
        chosen = (value or word) if kind == ":-" else (word if value else "")
        return chosen, end + 1


def _end_of_name(text: str, at: int) -> int:
    end = at
    while end < len(text) and text[end] in (_NAME if end > at else _NAME_START):
        end += 1
    return end
