"""The programs that a measure has a guest run, run here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.bench.in_guest import TICKER, WRITER
from torpor.bench.processes import own_memory_mib

MIB = 1024 * 1024


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[int]:
    """The process id of a running writer."""
    for name in ("in", "out"):
        os.mkfifo(tmp_path / name)
    with subprocess.Popen([sys.executable, "-c", WRITER], cwd=tmp_path) as process:
        yield process.pid
        process.kill()


def order(folder: Path, mib: int) -> str:
    (folder / "in").write_text(f"{mib}\n")
    return (folder / "out").read_text()


def held(pid: int) -> bytes:
    """The largest piece of memory that a process has written."""
    spans = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " rw-p " in line)
    begin, end = max((tuple(int(edge, 16) for edge in span[0].split("-")) for span in spans), key=lambda s: s[1] - s[0])
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(begin)
        return memory.read(end - begin)


def test_the_writer_holds_as_much_as_it_is_told_and_changes_every_page(tmp_path: Path, writer: int) -> None:
    assert order(tmp_path, 1) == "written"
    small = own_memory_mib(writer)
    assert order(tmp_path, 33) == "written"
    assert own_memory_mib(writer) - small == pytest.approx(32, abs=1)
    before = held(writer)
    assert order(tmp_path, 33) == "written"
    after = held(writer)
    assert len(after) == len(before) >= 33 * MIB
    changed = sum(before[at : at + 4096] != after[at : at + 4096] for at in range(0, len(after), 4096))
    assert changed >= 33 * MIB // 4096
    assert own_memory_mib(writer) - small == pytest.approx(32, abs=1)


def test_the_ticker_gives_signs_of_life_until_it_is_told_to_end(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", TICKER], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"....."
        (tmp_path / "stop").touch()
        assert set(process.stdout.read()) <= {ord(".")}
        assert process.wait() == 0
