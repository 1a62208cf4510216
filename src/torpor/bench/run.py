"""One run: measure after measure, and everything that was made for it removed at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from torpor.bench.figures import Figure
from torpor.bench.plan import MEASURES, Plan
from torpor.bench.report import Report
from torpor.bench.subject import Subject
from torpor.errors import TorporError


@dataclass(frozen=True, slots=True)
class Step:
    """A measure began, or ended after `elapsed_s` seconds."""

    step: str
    detail: str
    done: bool = False
    elapsed_s: float = 0.0


def measure(subject: Subject, plan: Plan, report: Callable[[Step], None]) -> Report:
    """Take every measure of a plan and return what came out.

    One that fails is named in the report with its reason, and the others are taken. Whatever was made is deleted, also
    when the run is interrupted.
    """
    figures: list[Figure] = []
    failed: dict[str, str] = {}
    left_out: list[str] = []
    at, started = datetime.now(UTC), time.monotonic()
    try:
        for name, rounds in plan.rounds.items():
            if MEASURES[name].local and subject.local is None:
                left_out.append(name)
                continue
            begun = time.monotonic()
            report(Step(name, MEASURES[name].title))
            try:
                figures += MEASURES[name].take(subject, rounds)
            except TorporError as error:
                failed[name] = error.message
            report(Step(name, MEASURES[name].title, done=True, elapsed_s=time.monotonic() - begun))
    finally:
        subject.discard_all()
    machine = subject.local.machine if subject.local else None
    took_s = time.monotonic() - started
    return Report(tuple(figures), failed, tuple(left_out), subject.template, machine, at, took_s)
