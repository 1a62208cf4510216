"""Settings from the environment."""

from __future__ import annotations

import os

from torpor.errors import InvalidRequest


def is_set(variable: str) -> bool:
    """Tell whether an environment variable has a value."""
    return bool(os.environ.get(variable))


def positive(variable: str, default: int) -> int:
    """Return the whole number, 1 or more, that an environment variable holds. Raises InvalidRequest."""
    text = os.environ.get(variable, "") or str(default)
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) >= 1):
        raise InvalidRequest(f"{variable} is {text[:40]!r}; it is a whole number, 1 or more")
    return int(text)
