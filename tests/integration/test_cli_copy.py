"""`torpor cp` as somebody at a terminal of 80 columns sees it, against the real control plane over a fake host."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from screen import Screen, on_screen
from torpor import Client, Sandbox
from torpor.testing.server import running_server

WIDTH = 80


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with running_server(tmp_path_factory.mktemp("server") / "home") as told:
        yield told


@pytest.fixture
def box(server: tuple[str, str]) -> Iterator[Sandbox]:
    with Client(*server) as client, Sandbox.create("agent", client=client) as sandbox:
        yield sandbox


def copying(server: tuple[str, str], *argv: str, **more: str) -> AbstractContextManager[Screen]:
    """Run `torpor cp` on a terminal."""
    told = {"TORPOR_API": server[0], "TORPOR_API_KEY": server[1], **more}
    return on_screen([sys.executable, "-m", "torpor.cli", "cp", *argv], WIDTH, told)


def test_a_person_sees_how_far_a_folder_has_come_and_what_came_of_it(
    server: tuple[str, str], box: Sandbox, tmp_path: Path
) -> None:
    folder = tmp_path / ("a-folder-with-a-name-that-is-much-too-long-for-a-line-of-a-terminal" + "\x1b[2J")
    (folder / "sub").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(4 << 20))
    (folder / "sub" / "small").write_text("x")
    with copying(server, str(folder), f"{box.id}:/work/there", NO_COLOR="1") as screen:
        assert screen.wait() == 0
    assert any(re.search(r"a-folder.*2/2.*4\.0/4\.0 MiB", line) for line in screen.lines()), screen.seen
    assert re.search(r"copied 2 files, 4\.0 MiB, in .*/s", screen.lines()[-2]), screen.seen
    assert max(map(len, screen.lines())) <= WIDTH
    assert "\x1b[2J" not in screen.seen
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", screen.seen), "there are colours"

    with copying(server, f"{box.id}:/work/there", str(tmp_path / "back")) as screen:
        assert screen.wait() == 0
    assert any(re.search(r"there.*4\.0/4\.0 MiB", line) for line in screen.lines()), screen.seen
    assert (tmp_path / "back" / "large").read_bytes() == (folder / "large").read_bytes()


def test_a_copy_that_is_broken_off_leaves_no_half_file_and_says_so(server: tuple[str, str], box: Sandbox) -> None:
    box.filesystem.write("/work/file", "as it was")
    with copying(server, "-", f"{box.id}:/work/file") as screen:
        assert screen.process.stdin is not None
        screen.process.stdin.write(b"x" * (1 << 20))
        screen.process.stdin.flush()
        screen.wait_for("MiB")
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 130
    assert "broken off" in screen.seen
    assert box.filesystem.read_text("/work/file") == "as it was"
    assert [entry.name for entry in box.filesystem.list("/work")] == ["file"]


def test_from_one_sandbox_to_another_the_way_is_told(server: tuple[str, str], box: Sandbox) -> None:
    with copying(server, f"{box.id}:/a", "other:/b") as screen:
        assert screen.wait() == 1
    assert f"torpor cp {box.id}:/a - | torpor cp - other:/b" in " ".join(screen.seen.split())
