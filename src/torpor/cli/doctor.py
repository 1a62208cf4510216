"""What this machine can do for Torpor."""

from __future__ import annotations

import dataclasses

from torpor.cli import output
from torpor.cli.options import Home, Json, home_folder, server_parts


def doctor(home: Home = None, json: Json = False) -> int:
    """Say what this machine can do, and what to do about each lack. Exits with 1 if sandboxes cannot run here.

    Examples:

    * the first thing to run on a new machine: `torpor doctor`
    """
    with server_parts():
        from torpor.host.doctor import examine  # noqa: PLC0415

    findings = examine(home_folder(home))
    bad = sum(finding.verdict == "bad" for finding in findings)
    if json:
        output.show_json([dataclasses.asdict(finding) for finding in findings])
    else:
        rows = [(finding.name, finding.verdict, finding.says) for finding in findings]
        output.table(("check", "verdict", "finding"), rows, empty="Nothing was looked at.")
        output.advice([(finding.name, finding.mend) for finding in findings if finding.mend])
        output.say(_verdict(bad))
    return 1 if bad else 0


def _verdict(bad: int) -> str:
    if not bad:
        return "Sandboxes can run here."
    return (
        "One thing keeps sandboxes from running here."
        if bad == 1
        else f"{bad} things keep sandboxes from running here."
    )
