"""The check that a test run leaves nothing behind finds what was left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import litter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def orphan() -> Iterator[int]:
    """A process that its parent has left and that has closed everything, as a daemon does."""
    environment = {**os.environ, litter.RUN_VARIABLE: "a-run-of-this-test"}
    started = subprocess.run(
        ["setsid", "sh", "-c", "sleep 60 <&- >&- 2>&- & echo $!"], env=environment, capture_output=True, check=True
    )
    yield int(started.stdout)
    os.kill(int(started.stdout), 9)


def test_a_clean_run_has_no_litter(folder: Path) -> None:
    assert litter.litter_of("another-run", folder, litter.shared_names()) == []


def test_an_orphaned_process_is_found_with_its_command(folder: Path, orphan: int) -> None:
    found = litter.litter_of("a-run-of-this-test", folder, litter.shared_names())
    assert found == [f"process {orphan}: sleep 60 "]


def test_a_temporary_file_is_found(folder: Path) -> None:
    (folder / "tmp" / "left").write_text("")
    assert litter.litter_of("another-run", folder, litter.shared_names()) == [f"file {folder}/tmp/left"]


def test_a_machine_without_an_environment_is_found_by_what_it_has_open(folder: Path) -> None:
    program = folder / "qemu-system-left"
    program.symlink_to("/bin/sleep")
    with (folder / "disk").open("wb") as disk, subprocess.Popen([program, "60"], env={}, stdout=disk) as machine:
        try:
            found = litter.litter_of("another-run", folder, litter.shared_names())
            assert found == [f"process {machine.pid}: {program} 60 "]
        finally:
            machine.kill()


def test_a_control_group_that_a_data_directory_has_noted_is_found(folder: Path) -> None:
    (home := folder / "test_1" / "home").mkdir(parents=True)
    (group := folder / "torpor-0123").mkdir()
    (home / "cgroups").write_text(f"{group}\n{folder}/torpor-gone\n")
    assert litter.litter_of("another-run", folder, litter.shared_names()) == [f"control group {group}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_a_network_namespace_of_the_run_is_found_and_no_other(folder: Path) -> None:
    name, before = f"{litter.namespace_mark('a-run-of-this-test')}left", litter.shared_names()
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        assert litter.litter_of("a-run-of-this-test", folder, before)[-1] == f"network namespace {name}"
        assert litter.litter_of("another-run", folder, before) == []
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def test_a_name_that_was_not_there_before_is_found(folder: Path) -> None:
    before = litter.shared_names()
    (place := Path("/dev/shm") / f"torpor-litter-{os.getpid()}").touch()
    try:
        assert litter.litter_of("another-run", folder, before) == [f"name {place}"]
    finally:
        place.unlink()
