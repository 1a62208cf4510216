"""What the set-up reads from programs and files of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

import packages
from torpor.host import doctor
from torpor.network import programs
from torpor.storage import loop
from torpor.vmm.qemu import jail
from torpor.vmm.qemu.driver import PROGRAM


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (" 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)", (10, 0)),
        ("1:7.2+dfsg-7+deb12u13", (7, 2)),
        ("8.2.2", (8, 2)),
        ("(none)", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_versions_are_read_as_qemu_and_debian_write_them(text: str, version: tuple[int, int]) -> None:
    assert packages.parse_version(text) == version


def test_a_program_that_says_no_version_counts_as_too_old(tmp_path: Path) -> None:
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    assert packages.qemu_version(str(program)) < packages.QEMU_OLDEST


def test_os_release_is_read_without_its_quotes(tmp_path: Path) -> None:
    file = tmp_path / "os-release"
    file.write_text("PRETTY_NAME=\"Some Linux 1 (one)\"\nVERSION_CODENAME=bookworm\nID='debian'\n")
    fields = packages.read_os_release(file)
    assert fields == {"PRETTY_NAME": "Some Linux 1 (one)", "VERSION_CODENAME": "bookworm", "ID": "debian"}


def test_without_an_os_release_nothing_is_claimed(tmp_path: Path) -> None:
    assert packages.read_os_release(tmp_path / "none") == {}


def test_a_missing_program_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.PROGRAMS, "no-such-program-xyz", "the-package")
    assert "no-such-program-xyz" in packages.missing_programs()
    assert "the-package" in packages.missing_packages()


def test_the_doctor_looks_at_every_program_that_is_installed_for_running() -> None:
    looked_for = {PROGRAM, jail.PROGRAM, *doctor.PROGRAMS, *loop.PROGRAMS, *programs.PACKAGES}
    assert set(packages.PROGRAMS) - {"git"} <= looked_for
