"""Priorities: of a process, and of the session that the kernel weighs it in."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.kit import priority as kit_priority
from torpor.kit.priority import priority

SESSION = Path("/proc/self/autogroup")
TELL = """
import os, pathlib
from torpor.kit.priority import set_priority
set_priority(5)
told = pathlib.Path("/proc/self/autogroup")
print(os.getpriority(os.PRIO_PROCESS, 0), told.read_text().split()[-1] if told.exists() else "none")
"""


@pytest.mark.parametrize(("leads", "sessions"), [(True, "5"), (False, "0")])
def test_a_program_that_leads_a_session_sets_that_ones_priority_too(leads: bool, sessions: str) -> None:
    argv = [sys.executable, "-c", TELL] if leads else ["setsid", "sh", "-c", '"$0" -c "$1"; true', sys.executable, TELL]
    told = subprocess.run(argv, capture_output=True, text=True, check=True, start_new_session=leads).stdout.split()
    assert told == ["5", sessions if SESSION.exists() else "none"]


def test_a_priority_for_a_while_is_as_before_after_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may come first")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with priority(before - 3):
        assert os.getpriority(os.PRIO_PROCESS, 0) == before - 3
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EAGAIN, errno.ENOENT])
def test_a_session_that_takes_no_priority_leaves_the_programs_own(
    refusal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def write_text(self, text: str) -> None:
            raise OSError(refusal, f"{text} is refused")

    monkeypatch.setattr(kit_priority, "_SESSION", Refusing())
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with priority(before - (os.geteuid() == 0)):
        assert os.getpriority(os.PRIO_PROCESS, 0) == before - (os.geteuid() == 0)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
