"""The doctor looks at made-up hosts and says what they lack."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from torpor.host import doctor
from torpor.host.doctor import Finding, Sight
from torpor.model.ids import TemplateName
from torpor.model.template import Fingerprint, Template
from torpor.storage.layout import Layout
from torpor.storage.templates import MANIFEST, Templates, write_manifest


@pytest.fixture
def sight(tmp_path: Path) -> Sight:
    """A host with nothing on it: an empty root, an empty PATH, a home that is not there yet."""
    root, programs = tmp_path / "root", tmp_path / "bin"
    root.mkdir()
    programs.mkdir()
    return Sight(tmp_path / "data" / "torpor", root=root, search_path=str(programs))


def install(sight: Sight, name: str, says: str = "") -> None:
    """Put a program that prints `says` on the host's PATH."""
    program = Path(sight.search_path) / name
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    program.chmod(0o755)


def write(sight: Sight, path: str, text: str) -> None:
    file = sight.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_this_host_gets_a_sentence_on_everything_and_never_an_exception(tmp_path: Path) -> None:
    found = doctor.examine(tmp_path / "not" / "there" / "yet")
    assert len(found) == len(doctor.CHECKS)
    assert len({finding.name for finding in found}) == len(found)
    assert all(finding.says and finding.verdict in ("ok", "warn", "bad") for finding in found)
    assert all(finding.mend for finding in found if finding.verdict == "bad")
    assert not (tmp_path / "not").exists()


def test_looking_leaves_nothing_in_the_data_directory(tmp_path: Path) -> None:
    doctor.examine(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_fails_is_a_finding_with_the_reason(sight: Sight) -> None:
    def look_at_the_moon(sight: Sight) -> Finding:
        raise OSError("clouds")

    (finding,) = doctor.findings(sight, [look_at_the_moon])
    assert (finding.name, finding.verdict) == ("the moon", "warn")
    assert "clouds" in finding.says


def test_what_the_user_may_not_see_is_said_so(sight: Sight) -> None:
    def look_at_secrets(sight: Sight) -> Finding:
        raise PermissionError(13, "Permission denied", "/secrets")

    (finding,) = doctor.findings(sight, [look_at_secrets])
    assert finding.says == "this user may not look at /secrets"


def remember(sight: Sight, accelerator: str, why: str) -> None:
    sight.home.mkdir(parents=True, exist_ok=True)
    record = {"accelerator": accelerator, "why": why, "subject": "this host"}
    (sight.home / "accelerator.json").write_text(json.dumps(record))


def test_a_host_without_kvm_is_told_that_guests_are_emulated(sight: Sight) -> None:
    finding = doctor.look_at_kvm(sight)
    assert finding.verdict == "warn"
    assert "no /dev/kvm" in finding.says
    assert "emulation" in finding.says


def test_a_kvm_device_that_was_not_tried_is_not_called_good(sight: Sight) -> None:
    write(sight, "dev/kvm", "")
    finding = doctor.look_at_kvm(sight)
    assert finding.verdict == "warn"
    assert "does not prove" in finding.says


def test_kvm_that_failed_its_probe_is_explained_by_how_it_failed(sight: Sight) -> None:
    write(sight, "dev/kvm", "")
    remember(sight, "tcg", "a guest's kernel dies with it")
    finding = doctor.look_at_kvm(sight)
    assert finding.verdict == "warn"
    assert finding.says.startswith("a guest's kernel dies with it; so guests run under emulation")


def test_kvm_that_a_guest_booted_with_is_good(sight: Sight) -> None:
    write(sight, "dev/kvm", "")
    remember(sight, "kvm", "a guest boots with it")
    assert doctor.look_at_kvm(sight).verdict == "ok"


def test_a_running_server_is_found_by_the_lock_it_holds(sight: Sight) -> None:
    assert "none has run" in doctor.look_at_server(sight).says
    sight.home.mkdir(parents=True)
    lock = sight.home / "lock"
    lock.write_text("77\n")
    assert "none runs" in doctor.look_at_server(sight).says
    write(
        sight,
        "proc/locks",
        f"1: POSIX  ADVISORY  WRITE 5 fe:00:1 0 EOF\n2: FLOCK  ADVISORY  WRITE 77 fe:00:{lock.stat().st_ino} 0 EOF\n",
    )
    assert doctor.look_at_server(sight).says == f"process 77 serves {sight.home}"


def publish(sight: Sight, name: str, version: str) -> None:
    layout = Layout(sight.home)
    layout.make()
    with Templates(layout).publish(TemplateName(name)) as draft:
        for part in ("memory", "state", "disk.qcow2"):
            (draft / part).write_text("")
        write_manifest(
            draft,
            Template(
                name=TemplateName(name),
                digest="0" * 16,
                created_at=datetime(2026, 1, 1, tzinfo=UTC),
                cpu=1,
                memory_mib=256,
                disk_gib=4,
                command_line="",
                images={},
                fingerprint=Fingerprint("qemu", version, "tcg", "max"),
            ),
        )


def test_no_template_is_a_lack_with_a_step(sight: Sight) -> None:
    finding = doctor.look_at_templates(sight)
    assert (finding.verdict, finding.mend) == ("warn", "run `torpor template build base`")


def test_templates_of_another_qemu_are_named_with_the_step_that_mends_them(sight: Sight) -> None:
    install(sight, "qemu-system-x86_64", "QEMU emulator version 10.0.2 (Debian)")
    publish(sight, "base", "10.0.2")
    assert doctor.look_at_templates(sight) == Finding("templates", "ok", "base")
    publish(sight, "old", "9.1.0")
    finding = doctor.look_at_templates(sight)
    assert finding.verdict == "bad"
    assert finding.says.startswith("old cannot be loaded")
    assert finding.mend == "run `torpor template build old`"


def test_a_damaged_template_is_named_with_the_step_that_mends_it(sight: Sight) -> None:
    publish(sight, "base", "10.0.2")
    (Templates(Layout(sight.home)).path(TemplateName("base")) / MANIFEST).write_text("{")
    finding = doctor.look_at_templates(sight)
    assert (finding.verdict, finding.mend) == ("bad", "run `torpor template build base`")
    assert finding.says == "the manifest of the template 'base' is damaged"


def test_a_missing_qemu_is_bad_and_its_package_is_named(sight: Sight) -> None:
    finding = doctor.look_at_qemu(sight)
    assert finding.verdict == "bad"
    assert "qemu-system-x86" in finding.mend


@pytest.mark.parametrize(
    ("says", "verdict"),
    [
        ("QEMU emulator version 7.2.17 (Debian 1:7.2+dfsg-7+deb12u13)", "bad"),
        ("QEMU emulator version 8.1.0", "bad"),
        ("QEMU emulator version 8.2.2", "ok"),
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2)", "ok"),
        ("gibberish", "bad"),
    ],
)
def test_qemu_has_to_be_new_enough(sight: Sight, says: str, verdict: str) -> None:
    install(sight, "qemu-system-x86_64", says)
    finding = doctor.look_at_qemu(sight)
    assert finding.verdict == verdict
    assert bool(finding.mend) == (verdict == "bad")


def test_missing_programs_are_named_with_their_purpose_and_package(sight: Sight) -> None:
    for name in set(doctor.PROGRAMS) - {"mmdebstrap"}:
        install(sight, name)
    finding = doctor.look_at_programs(sight)
    assert finding.verdict == "bad"
    assert finding.says == "mmdebstrap is missing (makes the templates' root file systems)"
    assert finding.mend == "apt-get install --no-install-recommends mmdebstrap"
    install(sight, "mmdebstrap")
    assert doctor.look_at_programs(sight).verdict == "ok"


@pytest.mark.parametrize(("mebibytes", "verdict"), [(500, "bad"), (1500, "warn"), (9000, "ok")])
def test_memory_is_judged_by_what_is_available(sight: Sight, mebibytes: int, verdict: str) -> None:
    write(sight, "proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable:   {mebibytes * 1024} kB\n")
    assert doctor.look_at_memory(sight).verdict == verdict


def test_memory_that_is_not_told_is_a_warning(sight: Sight) -> None:
    assert doctor.look_at_memory(sight).verdict == "warn"


def test_processors_are_counted(sight: Sight) -> None:
    write(sight, "proc/cpuinfo", "processor\t: 0\n\nprocessor\t: 1\n\nprocessor\t: 2\n")
    assert "3 processors" in doctor.look_at_processor(sight).says
    write(sight, "proc/cpuinfo", "processor\t: 0\n")
    assert doctor.look_at_processor(sight).verdict == "warn"


def test_both_versions_of_cgroups_and_none_are_told_apart(sight: Sight) -> None:
    assert "none" in doctor.look_at_cgroups(sight).says
    write(sight, "sys/fs/cgroup/memory/tasks", "")
    assert "version 1" in doctor.look_at_cgroups(sight).says
    write(sight, "sys/fs/cgroup/cgroup.controllers", "cpu memory")
    assert doctor.look_at_cgroups(sight).says == "version 2"


def test_a_user_who_is_not_root_is_told_what_that_means(sight: Sight) -> None:
    assert doctor.look_at_rights(sight).verdict == "warn"
    assert doctor.look_at_rights(Sight(sight.home, is_root=True)).verdict == "ok"


def test_a_data_directory_that_cannot_be_written_is_bad() -> None:
    finding = doctor.look_at_data_directory(Sight(Path("/proc/self/torpor")))  # not even root makes files there
    assert finding.verdict == "bad"
    assert "TORPOR_HOME" in finding.mend


def test_the_network_is_described_as_it_is(sight: Sight) -> None:
    assert "no network" in doctor.look_at_network(sight).says
