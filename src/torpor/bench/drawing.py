"""Shapes and text as SVG, and scales that say where on the page a value lies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

Point = tuple[float, float]

_FONT = "system-ui, 'DejaVu Sans', Arial, sans-serif"
INK, FAINT, GRID = "#1f2933", "#66727f", "#e4e8ec"


@dataclass(frozen=True, slots=True)
class Stroke:
    """How a line looks. `dash`: SVG's pattern of dashes, none for a whole line."""

    colour: str = INK
    width: float = 1.0
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Writing:
    """How text looks. `anchor`: what of it is at its place: start, middle or end. `turned`: it reads upwards."""

    size: int = 12
    colour: str = INK
    anchor: str = "start"
    bold: bool = False
    turned: bool = False


@dataclass
class Drawing:
    """A page of shapes, the later ones over the earlier ones. Lengths are in pixels, from the upper left corner."""

    width: float
    height: float
    _parts: list[str] = field(default_factory=list)

    def line(self, begin: Point, end: Point, stroke: Stroke) -> None:
        """Draw a straight line."""
        self.path([begin, end], stroke)

    def path(self, points: Iterable[Point], stroke: Stroke) -> None:
        """Draw a line through points."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{stroke.dash}"' if stroke.dash else ""
        style = f'fill="none" stroke="{stroke.colour}" stroke-width="{stroke.width:g}"{dash}'
        self._parts.append(f'<polyline points="{places}" {style}/>')

    def box(self, corner: Point, size: tuple[float, float], colour: str, says: str = "") -> None:
        """Draw a filled box, with a text for who points at it."""
        (x, y), (width, height) = corner, size
        shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{colour}"'
        self._parts.append(f"{shape}>{_title(says)}</rect>")

    def dot(self, place: Point, colour: str, says: str = "") -> None:
        """Draw a dot, with a text for who points at it."""
        x, y = place
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{_title(says)}</circle>')

    def text(self, place: Point, words: str, writing: Writing) -> None:
        """Write words on one line."""
        x, y = place
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if writing.turned else ""
        weight = ' font-weight="600"' if writing.bold else ""
        style = f'font-size="{writing.size}" fill="{writing.colour}" text-anchor="{writing.anchor}"{weight}{turned}'
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>')

    def svg(self, title: str) -> str:
        """Return the page as an SVG document."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{self.height:.0f}" '
            f'viewBox="0 0 {self.width:.0f} {self.height:.0f}" font-family={quoteattr(_FONT)}>'
        )
        back = '<rect width="100%" height="100%" fill="#ffffff"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", back, *self._parts, "</svg>", ""])


def _title(says: str) -> str:
    return f"<title>{escape(says)}</title>" if says else ""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where values lie: `low` at the pixel `begin`, `high` at `end`. `log`: equal distances are equal factors."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return the pixel of a value; what lies outside is moved to the nearer end."""
        held = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(held / self.low) / math.log(self.high / self.low)
        else:
            share = (held - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Return round values to label the scale with."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        step = _round_step((self.high - self.low) / 5)
        return [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def linear(values: Sequence[float], begin: float, end: float) -> Scale:
    """Return a scale from 0 to a little more than the largest value."""
    return Scale(0.0, max(*values, 1.0, 0.0) * 1.08, begin, end)


def logarithmic(values: Sequence[float], begin: float, end: float) -> Scale:
    """Return a scale of whole decades, from 1 on, that holds all values above that."""
    return Scale(1.0, 10.0 ** max(1, math.ceil(math.log10(max(*values, 1.0, 1.0)))), begin, end, log=True)


def _round_step(about: float) -> float:
    """Return 1, 2 or 5 times a power of ten, the nearest above."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= about)
