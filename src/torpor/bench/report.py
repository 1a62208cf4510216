"""What a run found: as a table for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torpor.bench.figures import Figure, Target
from torpor.bench.machine import Machine
from torpor.bench.targets import targets_of
from torpor.kit.installed import installed_version
from torpor.wire.public import TemplateView

# Of the JSON. Keys are added without a new number; one that changes its meaning gets one.
FORMAT = 1
COLUMNS = ("figure", "n", "p50", "p90", "p99", "unit", "floor", "ratio", "target", "verdict")
_WORDS = {True: "met", False: "missed", None: "too few"}


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run. `failed`: measure -> why; `left_out`: those for the server's own machine, from elsewhere.

    `machine` is the server's; None where the server is elsewhere.
    """

    figures: tuple[Figure, ...]
    failed: Mapping[str, str]
    left_out: tuple[str, ...]
    guest: TemplateView
    machine: Machine | None
    at: datetime
    took_s: float

    def circumstances(self) -> dict[str, str]:
        """Return what the figures were made with, in words."""
        guest, machine = self.guest, self.machine
        told = {
            "torpor": installed_version("torpor"),
            "guest": f"{guest.name}: {guest.cpu} cpu, {guest.memory_mb} MiB memory, {guest.disk_gb} GiB disk",
            "accelerator": guest.accelerator,
        }
        if machine is not None:
            told |= {
                "vmm": machine.vmm,
                "processor": f"{machine.cpu}, {machine.cores} cores",
                "memory": f"{machine.memory_gib:g} GiB",
                "kernel": f"Linux {machine.kernel}",
                "storage": machine.storage,
            }
        return told | {"taken": f"{self.at:%Y-%m-%d %H:%M} UTC, in {self.took_s:.0f} s"}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table, under COLUMNS."""
        return [_row(figure) for figure in self.figures]

    def remarks(self) -> list[tuple[str, str]]:
        """Return what has to be said of single figures and measures, with the name of each."""
        notes = [(figure.title, figure.note) for figure in self.figures if figure.note]
        failed = [(name, f"failed: {why}") for name, why in self.failed.items()]
        elsewhere = [(name, "is only measured on the server's own machine") for name in self.left_out]
        return [*notes, *failed, *elsewhere]

    def verdict(self) -> str:
        """Return in one sentence how many targets were met."""
        judged = [target.judge(figure) for figure in self.figures for target in targets_of(figure)]
        open_ones = f", {judged.count(None)} had too few rounds to say" if None in judged else ""
        return f"{judged.count(True)} of {len(judged)} targets are met, {judged.count(False)} missed{open_ones}."

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON has it. Units are those of each figure."""
        return {
            "format": FORMAT,
            "torpor": installed_version("torpor"),
            "taken_at": self.at.isoformat(),
            "took_s": round(self.took_s, 1),
            "machine": dataclasses.asdict(self.machine) if self.machine else None,
            "guest": self.guest.model_dump(mode="json"),
            "figures": {figure.key: _json_of(figure) for figure in self.figures},
            "failed": dict(self.failed),
            "left_out": list(self.left_out),
        }


def _row(figure: Figure) -> tuple[str, ...]:
    targets = targets_of(figure)
    floor, ratio = figure.floor, figure.statistic("ratio")
    return (
        figure.title,
        str(figure.n),
        _number(figure.statistic("p50")),
        _number(figure.statistic("p90")),
        _number(figure.statistic("p99")),
        figure.unit,
        f"{_number(_median(figure))} {floor.title}" if floor else "",
        f"{ratio:.2f}" if ratio is not None else "",
        ", ".join(map(str, targets)),
        ", ".join(_WORDS[target.judge(figure)] for target in targets),
    )


def _json_of(figure: Figure) -> dict[str, Any]:
    return {
        "title": figure.title,
        "unit": figure.unit,
        "n": figure.n,
        "p50": figure.statistic("p50"),
        "p90": figure.statistic("p90"),
        "p99": figure.statistic("p99"),
        "most": figure.statistic("most"),
        "at": figure.at,
        "floor": {"title": figure.floor.title, "p50": _median(figure)} if figure.floor else None,
        "ratio": figure.statistic("ratio"),
        "p99_ratio": figure.statistic("p99-ratio"),
        "targets": [_target_of(target, figure) for target in targets_of(figure)],
        "note": figure.note,
        "values": list(figure.values),
    }


def _target_of(target: Target, figure: Figure) -> dict[str, Any]:
    return {**dataclasses.asdict(target), "met": target.judge(figure)}


def _median(figure: Figure) -> float | None:
    if figure.floor is None or not figure.floor.values:
        return None
    return Figure("", "", "", figure.floor.values).statistic("p50")


def _number(value: float | None) -> str:
    """Return a value with about three digits; nothing for none."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"
