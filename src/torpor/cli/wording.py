"""How lengths of time, sizes and amounts are worded for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torpor.sdk.volumes import AttachedVolume

# Stands in the place of what cannot be shown.
_STRANGE = "\N{REPLACEMENT CHARACTER}"


def ago(moment: datetime) -> str:
    """Return how long ago, or until, a moment is: `3 min`."""
    return span(abs((datetime.now(UTC) - moment).total_seconds()))


def span(seconds: float) -> str:
    """Return a length of time in its largest unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            count = seconds / length
            return (f"{count:.0f}" if count >= 10 else f"{count:.1f}".removesuffix(".0")) + f" {unit}"
    return f"{seconds:.0f} s"


def taken(seconds: float) -> str:
    """Return how long something took: `85 ms`, `1.2 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """Return a number of bytes in its largest unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def cut(text: str, width: int) -> str:
    """Return a text without its end if it is longer than `width`."""
    return text if len(text) <= width else f"{text[: width - 1]}\N{HORIZONTAL ELLIPSIS}"


def pairs(values: Mapping[str, str]) -> str:
    """Return names and values in one line."""
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


def attached(volume: AttachedVolume) -> str:
    """Return a sandbox's volume in one line: `data at /data, read-only`."""
    how = ", a copy" if volume.is_copy else ", read-only" if volume.read_only else ""
    return f"{volume.name} at {volume.path}{how}"


def share(part: float) -> str:
    """Return a part of a whole: `12 %`."""
    return f"{part * 100:.0f} %"


def money(amount: float) -> str:
    """Return an amount of money with as many digits as tell something: `1.25`, `0.0031`."""
    return f"{amount:.2f}" if amount >= 1 else f"{amount:.4f}"


def instant(moment: datetime) -> str:
    """Return a moment as the reader's clock shows it."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def shown(text: str) -> str:
    """Return a text that came from elsewhere with its lines as they are, but without what a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else _STRANGE for letter in text)


def plain(text: str) -> str:
    """Return a text that came from elsewhere on one line, and without what a terminal would obey."""
    return shown(" ".join(text.split()))
