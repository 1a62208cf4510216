"""File names as text, and back without loss.

A name in Linux is any bytes but "/" and NUL, and need not be UTF-8; JSON and the libraries on the way carry only
Unicode without lone surrogates. So a name is read as UTF-8, and each byte that is not part of valid UTF-8 becomes one
character of a private range: byte 0xNN is U+10FENN. Where a name really holds characters of that range they are
written as their four bytes, each in the same way, so every name has exactly one text and every such text leads back
to its name.
"""

from __future__ import annotations

import re

_BASE = 0x10FE00
_ESCAPED = re.compile(f"[{chr(_BASE)}-{chr(_BASE + 0xFF)}]")
_TO_PRIVATE = {0xDC00 + byte: _BASE + byte for byte in range(0x80, 0x100)}
_TO_SURROGATE = {_BASE + byte: 0xDC00 + byte for byte in range(0x80, 0x100)}


def to_text(name: bytes) -> str:
    """Return a file name or path as text that survives JSON and UTF-8."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = name.decode("utf-8", "surrogateescape")
    if text.isascii():
        return text
    escaped = _ESCAPED.sub(lambda match: "".join(chr(_BASE + byte) for byte in match[0].encode()), text)
    return escaped.translate(_TO_PRIVATE)


def to_bytes(text: str) -> bytes:
    """Return the file name that `text` stands for. Raises UnicodeEncodeError for a lone surrogate."""
    if text.isascii():
        return text.encode()
    # A surrogate that came from outside must not slip through as an escape of ours.
    text.encode()
    return text.translate(_TO_SURROGATE).encode("utf-8", "surrogateescape")
