"""Reading a request's JSON: every field has the type and bounds it must have, or the call is refused by the field's
name.
"""

from __future__ import annotations

import math
from typing import Any

from torpor_guest import names
from torpor_guest.refusal import invalid

_MAX_PATH = 4095


class Request:
    """The JSON object of one OPEN."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return a text that must be there."""
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise invalid(f"{name} must be a text")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None where it is absent or null."""
        return None if self._fields.get(name) is None else self.text(name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value, or the default where it is absent."""
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false")
        return value

    def optional_whole(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number within bounds, or None where it is absent or null."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise invalid(f"{name} must be a whole number from {least} to {most}")
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        """Return a whole number within bounds that must be there."""
        value = self.optional_whole(name, least, most)
        if value is None:
            raise invalid(f"{name} is missing")
        return value

    def optional_seconds(self, name: str) -> float | None:
        """Return a positive number of seconds, or None where it is absent or null."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value < math.inf):
            raise invalid(f"{name} must be a number of seconds above 0")
        return float(value)

    def is_empty(self, name: str) -> bool:
        """Tell whether a field is absent, null or empty."""
        return not self._fields.get(name)

    def optional_object(self, name: str) -> Request | None:
        """Return an object's fields, or None where it is absent or null."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid(f"{name} must be an object")
        return Request(value)

    def words(self, name: str) -> list[bytes]:
        """Return a list of one text or more, none with a NUL, as the bytes a program gets."""
        value = self._fields.get(name)
        if not isinstance(value, list) or not value:
            raise invalid(f"{name} must be a list with at least one text")
        return [_plain(word, name) for word in value]

    def environment(self, name: str) -> dict[bytes, bytes]:
        """Return a mapping of variable names to values, empty where it is absent."""
        return self.optional_environment(name) or {}

    def optional_environment(self, name: str) -> dict[bytes, bytes] | None:
        """Return a mapping of variable names to values, or None where it is absent or null."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid(f"{name} must be an object of texts")
        pairs = {_plain(key, name): _plain(text, name) for key, text in value.items()}
        if any(not key or b"=" in key for key in pairs):
            raise invalid(f"a variable's name in {name} is empty or has an equals sign")
        return pairs

    def path(self, name: str) -> bytes:
        """Return an absolute path, without slashes at its end."""
        text = self.text(name)
        try:
            path = names.to_bytes(text)
        except UnicodeEncodeError:
            raise invalid(f"{name} is not valid Unicode") from None
        if not path.startswith(b"/"):
            raise invalid(f"{name} must be an absolute path, not {text[:300]!r}")
        if b"\0" in path:
            raise invalid(f"{name} has a NUL in it")
        if len(path) > _MAX_PATH:
            raise invalid(f"{name} is longer than {_MAX_PATH} bytes")
        return path.rstrip(b"/") or b"/"


def _plain(value: object, name: str) -> bytes:
    if not isinstance(value, str):
        raise invalid(f"{name} may hold only texts")
    if "\0" in value:
        raise invalid(f"a text in {name} has a NUL in it")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise invalid(f"a text in {name} is not valid Unicode") from None
