"""A report as a picture: durations side by side, freezes by their size, and checkpoints in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.bench.drawing import FAINT, GRID, INK, Drawing, Scale, Stroke, Writing, linear, logarithmic
from torpor.bench.figures import Figure, percentile
from torpor.bench.report import Report
from torpor.bench.targets import targets_of
from torpor.errors import InvalidRequest

_WIDTH, _MARGIN, _LABELS = 960.0, 28.0, 330.0
_ROW, _BAR = 22.0, 12.0
_HEAD, _GAP, _CHART = 96.0, 56.0, 260.0
_BLUE, _LIGHT, _RED, _GREEN = "#2f6fb2", "#b9d2ec", "#c8442f", "#2e8b57"
_FLOOR = Stroke(_RED, 1.6, "5 3")
_AIM = Stroke(_GREEN, 2.2)
_SMALL, _RIGHT = Writing(11, FAINT), Writing(11, FAINT, "end")
_FROZEN = {"hibernate": _BLUE, "snapshot": "#8a5fb0"}


def check_name(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is measured. Raises InvalidRequest."""
    if path.suffix.lower() != ".svg":
        raise InvalidRequest(
            f"--plot draws SVG, and {path.name!r} does not end in .svg", hint="any browser shows and prints it"
        )
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"there is no folder {str(path.parent)!r} for the plot")


def draw(report: Report) -> str:
    """Return the picture of a report as an SVG document."""
    durations = [each for each in report.figures if each.unit == "ms" and each.at is None and each.key != "checkpoints"]
    sized = {verb: [each for each in report.figures if _is_of(each, verb)] for verb in _FROZEN}
    row = next((each for each in report.figures if each.key == "checkpoints"), None)
    charts = int(any(sized.values())) + int(row is not None)
    height = _HEAD + (len(durations) * _ROW + _GAP + 30 if durations else 0) + charts * (_CHART + _GAP) + _MARGIN
    page = Drawing(_WIDTH, height)
    _head(page, report)
    top = _HEAD
    if durations:
        top = _durations(page, durations, top)
    if any(sized.values()):
        _freezes(page, sized, top)
        top += _CHART + _GAP
    if row is not None:
        _row(page, row, top)
    return page.svg("Torpor's benchmarks")


def _is_of(figure: Figure, verb: str) -> bool:
    return figure.at is not None and figure.key.startswith(f"{verb}-")


def _head(page: Drawing, report: Report) -> None:
    told = report.circumstances()
    page.text((_MARGIN, 34), f"Torpor {told['torpor']}: {told['guest']}", Writing(17, INK, bold=True))
    for y, names in ((54, ("accelerator", "processor", "memory", "storage")), (70, ("kernel", "vmm", "taken"))):
        page.text((_MARGIN, y), "; ".join(told[name] for name in names if name in told), _SMALL)


def _durations(page: Drawing, figures: Sequence[Figure], top: float) -> float:
    """Draw a bar for each figure and return where the next thing may begin."""
    scale = logarithmic([max(each.values) for each in figures], _MARGIN + _LABELS, _WIDTH - _MARGIN - 70)
    bottom = top + 30 + len(figures) * _ROW
    _legend(page, top + 4)
    for tick in scale.ticks():
        x = scale.place(tick)
        page.line((x, top + 20), (x, bottom), Stroke(GRID))
        page.text((x, bottom + 16), f"{tick:g}", Writing(11, FAINT, "middle"))
    page.text((_WIDTH - _MARGIN, top + 4), "p50 in ms", _RIGHT)
    page.text((_MARGIN + _LABELS - 10, bottom + 16), "milliseconds", _RIGHT)
    for number, figure in enumerate(figures):
        _bar(page, figure, top + 26 + number * _ROW, scale)
    return bottom + _GAP


def _legend(page: Drawing, y: float) -> None:
    x = _MARGIN + _LABELS
    page.box((x, y - 9), (18, 10), _BLUE)
    page.text((x + 24, y), "p50", _SMALL)
    page.box((x + 60, y - 9), (18, 10), _LIGHT)
    page.text((x + 84, y), "p90, or the most of fewer than 10", _SMALL)
    page.line((x + 290, y - 10), (x + 290, y + 2), _FLOOR)
    page.text((x + 298, y), "floor", _SMALL)
    page.line((x + 342, y - 10), (x + 342, y + 2), _AIM)
    page.text((x + 350, y), "target of p50", _SMALL)


def _bar(page: Drawing, figure: Figure, y: float, scale: Scale) -> None:
    middle, high = percentile(figure.values, 50), figure.statistic("p90") or max(figure.values)
    page.text((_MARGIN + _LABELS - 10, y + 10), figure.title, Writing(12, INK, "end"))
    begin, end, far = scale.begin, scale.place(middle), scale.place(high)
    page.box((begin, y), (far - begin, _BAR), _LIGHT, f"p90 or most {high:.1f} ms, n {figure.n}")
    page.box((begin, y), (end - begin, _BAR), _BLUE, f"p50 {middle:.1f} ms, n {figure.n}")
    if figure.floor and figure.floor.values:
        x = scale.place(percentile(figure.floor.values, 50))
        page.line((x, y - 3), (x, y + _BAR + 3), _FLOOR)
    for target in targets_of(figure):
        if target.statistic == "p50":
            x = scale.place(target.limit)
            page.line((x, y - 3), (x, y + _BAR + 3), _AIM)
    page.text(
        (_WIDTH - _MARGIN, y + 10), f"{middle:.0f}" if middle >= 100 else f"{middle:.1f}", Writing(12, INK, "end")
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """A chart's two scales: `across` to the right, `up` from its bottom."""

    across: Scale
    up: Scale


def _frame(page: Drawing, top: float, title: str, across: tuple[str, Sequence[float]], up: Sequence[float]) -> _Frame:
    """Draw axes in milliseconds over `across`, and return the scales."""
    words, values = across
    left, bottom = _MARGIN + 52, top + _CHART
    frame = _Frame(linear(values, left, _WIDTH - _MARGIN), linear(up, bottom, top + 24))
    page.text((_MARGIN, top + 4), title, Writing(14, INK, bold=True))
    for tick in frame.up.ticks():
        y = frame.up.place(tick)
        page.line((left, y), (_WIDTH - _MARGIN, y), Stroke(GRID))
        page.text((left - 8, y + 4), f"{tick:g}", _RIGHT)
    for tick in frame.across.ticks():
        x = frame.across.place(tick)
        page.line((x, bottom), (x, bottom + 4), Stroke(FAINT))
        page.text((x, bottom + 18), f"{tick:g}", Writing(11, FAINT, "middle"))
    page.line((left, bottom), (_WIDTH - _MARGIN, bottom), Stroke(FAINT))
    page.text((_WIDTH - _MARGIN, bottom + 34), words, _RIGHT)
    page.text((_MARGIN + 8, (top + bottom) / 2), "milliseconds", Writing(11, FAINT, "middle", turned=True))
    return frame


def _freezes(page: Drawing, sized: dict[str, list[Figure]], top: float) -> None:
    every = [figure for figures in sized.values() for figure in figures]
    tops = [value for figure in every for value in (*figure.values, *(figure.floor.values if figure.floor else ()))]
    sizes = [figure.at or 0.0 for figure in every]
    frame = _frame(page, top, "Freezing, by what was written", ("MiB written, the guest's own included", sizes), tops)
    for number, (verb, figures) in enumerate(sized.items()):
        if figures:
            _curve(page, frame, figures, _FROZEN[verb])
            x = _MARGIN + 300 + number * 130
            page.line((x, top), (x + 24, top), Stroke(_FROZEN[verb], 2))
            page.text((x + 30, top + 4), f"{verb}, p50", _SMALL)
    floors = sorted((each.at or 0.0, percentile(each.floor.values, 50)) for each in every if each.floor)
    page.path([(frame.across.place(at), frame.up.place(value)) for at, value in floors], _FLOOR)
    page.line((_MARGIN + 560, top), (_MARGIN + 584, top), _FLOOR)
    page.text((_MARGIN + 590, top + 4), "floor: write + fsync of the same bytes", _SMALL)


def _curve(page: Drawing, frame: _Frame, figures: Sequence[Figure], colour: str) -> None:
    points = []
    for figure in sorted(figures, key=lambda each: each.at or 0.0):
        x, middle = frame.across.place(figure.at or 0.0), percentile(figure.values, 50)
        low, high = min(figure.values), max(figure.values)
        page.line((x, frame.up.place(low)), (x, frame.up.place(high)), Stroke(colour, 1.2))
        points.append((x, frame.up.place(middle)))
        page.dot(points[-1], colour, f"{figure.title}: p50 {middle:.0f} ms, {low:.0f} to {high:.0f}, n {figure.n}")
    page.path(points, Stroke(colour, 2))


def _row(page: Drawing, figure: Figure, top: float) -> None:
    numbers = [float(number + 1) for number in range(figure.n)]
    frame = _frame(page, top, figure.title, ("number of the checkpoint", numbers), figure.values)
    middle = frame.up.place(percentile(figure.values, 50))
    page.line((frame.across.begin, middle), (frame.across.end, middle), Stroke(FAINT, 1, "2 3"))
    points = [(frame.across.place(at), frame.up.place(value)) for at, value in zip(numbers, figure.values, strict=True)]
    page.path(points, Stroke(_BLUE, 1.5))
    for number, point in enumerate(points):
        page.dot(point, _BLUE, f"checkpoint {number + 1}: {figure.values[number]:.0f} ms")
