"""The doctor looks at made-up hosts and says what they lack."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from frozen_parts import a_template, publish_snapshot, publish_template
from reflinks import reflink_volume
from torpor.errors import InvalidRequest
from torpor.host import doctor
from torpor.host.config import HostConfig
from torpor.host.containment import ContainmentConfig
from torpor.host.doctor_containment import look_at_cgroups, look_at_jail
from torpor.host.doctor_network import look_at_network
from torpor.host.sight import Finding, Sight
from torpor.kit.files import can_reflink
from torpor.kit.mounts import mounted_below
from torpor.model.ids import TemplateName
from torpor.network.config import network_from_environment
from torpor.storage import loop
from torpor.storage.frozen import MANIFEST
from torpor.storage.layout import Layout
from torpor.storage.templates import Templates
from torpor.storage.volume import VolumeConfig, use_volume

CONTROLLERS = ("cpu", "memory", "pids")


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
    publish_template(layout, a_template(name, version))


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
    manifest = Templates(Layout(sight.home)).path(TemplateName("base")) / MANIFEST
    manifest.chmod(0o600)
    manifest.write_text("{")
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
    assert "no control groups can be made" in look_at_cgroups(sight).says
    write(sight, "proc/self/cgroup", "3:memory:/\n2:pids:/\n1:cpu:/\n0::/\n")
    mounted = [f"3{at} 1 0:3{at} / /groups/{name} rw - cgroup cgroup rw,{name}" for at, name in enumerate(CONTROLLERS)]
    write(sight, "proc/self/mountinfo", "".join(f"{line}\n" for line in mounted))
    for name in CONTROLLERS:
        write(sight, f"groups/{name}/tasks", "")
    assert look_at_cgroups(sight).says == "version 1: limited: processors, memory, processes"
    write(sight, "proc/self/mountinfo", "30 1 0:30 / /groups rw - cgroup2 cgroup2 rw\n")
    write(sight, "groups/cgroup.controllers", "cpu pids\n")
    told = look_at_cgroups(sight)
    assert (told.verdict, told.says) == (
        "warn",
        "version 2: limited: processors, processes; not, as this host cannot: memory",
    )
    off = dataclasses.replace(sight, containment=lambda: ContainmentConfig(cgroups="off"))
    assert "TORPOR_CGROUPS is off" in look_at_cgroups(off).says


def test_what_walls_a_machine_in_is_told_and_what_is_left_without(sight: Sight) -> None:
    assert look_at_jail(sight).verdict == "warn"
    assert look_at_jail(dataclasses.replace(sight, is_root=True)).verdict == "bad"
    assert "bubblewrap" in look_at_jail(sight).mend
    install(sight, "bwrap")
    assert "user of its own" in look_at_jail(dataclasses.replace(sight, is_root=True)).says
    assert "server's own user" in look_at_jail(sight).says
    write(sight, "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    assert "only root may make namespaces" in look_at_jail(sight).says
    off = dataclasses.replace(sight, is_root=True, containment=lambda: ContainmentConfig(jail="off"))
    assert (look_at_jail(off).verdict, "seccomp filter alone" in look_at_jail(off).says) == ("warn", True)


def test_a_setting_that_says_nothing_is_named(sight: Sight, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_JAIL", "yes")
    named = dataclasses.replace(sight, containment=ContainmentConfig.from_environment)
    for look_at in (look_at_jail, look_at_cgroups):
        assert "TORPOR_JAIL is 'yes'; it can be auto or off" in look_at(named).says


def test_a_user_who_is_not_root_is_told_what_that_means(sight: Sight) -> None:
    assert doctor.look_at_rights(sight).verdict == "warn"
    assert doctor.look_at_rights(Sight(sight.home, is_root=True)).verdict == "ok"


def test_a_data_directory_that_cannot_be_written_is_bad() -> None:
    finding = doctor.look_at_data_directory(Sight(Path("/proc/self/torpor")))  # not even root makes files there
    assert finding.verdict == "bad"
    assert "TORPOR_HOME" in finding.mend


def test_a_data_directory_without_reflinks_is_told_why_snapshots_are_full_copies(sight: Sight) -> None:
    skip_where_files_share_blocks(sight)
    finding = doctor.look_at_data_directory(sight)
    assert finding.verdict == "warn"
    assert "no volume (only root can mount a volume)" in finding.says
    assert "XFS or btrfs" in finding.mend


def test_a_data_directory_that_will_get_a_volume_is_good(sight: Sight) -> None:
    skip_where_files_share_blocks(sight)
    for name in loop.PROGRAMS:
        install(sight, name)
    rooted = dataclasses.replace(sight, is_root=True)
    finding = doctor.look_at_data_directory(rooted)
    assert (finding.verdict, finding.mend) == ("ok", "")
    assert "made at the first start" in finding.says
    assert not sight.home.exists()


def test_a_data_directory_whose_own_files_share_blocks_is_good(tmp_path: Path) -> None:
    with reflink_volume(tmp_path) as native:
        finding = doctor.look_at_data_directory(Sight(native / "home"))
    assert finding == Finding("data directory", "ok", f"{native / 'home'}: files can share blocks (reflink)")


def test_a_volume_is_told_with_its_room_and_not_mounted_for_it(sight: Sight) -> None:
    skip_where_files_share_blocks(sight)
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        pytest.skip("only root can mount a volume, which mkfs.xfs makes (package xfsprogs)")
    rooted = dataclasses.replace(sight, is_root=True)
    with use_volume(sight.home, VolumeConfig(limit_gib=1)) as layout:
        publish_template(layout)
        publish_snapshot(layout)
        assert re.search(r"/volume: a volume with reflinks, \d+ MiB of ", doctor.look_at_data_directory(rooted).says)
        assert re.fullmatch(r"1, \d+ MiB beyond what they share", doctor.look_at_snapshots(rooted).says)
        assert doctor.look_at_templates(rooted).says == "base"
    assert "mounted while a server runs" in doctor.look_at_data_directory(rooted).says
    assert "mounted only while" in doctor.look_at_snapshots(rooted).says
    assert "mounted only while" in doctor.look_at_templates(rooted).says
    assert doctor.look_at_data_directory(sight).verdict == "bad"  # only root can mount it
    off = dataclasses.replace(rooted, volume=lambda: VolumeConfig("off"))
    assert doctor.look_at_data_directory(off).verdict == "bad"
    assert mounted_below(sight.home) == []


def skip_where_files_share_blocks(sight: Sight) -> None:
    if can_reflink(sight.root):
        pytest.skip("the file system of the tests has reflinks")


def test_a_wrong_setting_of_the_volume_is_bad(sight: Sight) -> None:
    def wrong() -> VolumeConfig:
        raise InvalidRequest("TORPOR_VOLUME is 'maybe'; it can be auto or off")

    finding = doctor.look_at_data_directory(dataclasses.replace(sight, volume=wrong))
    assert (finding.verdict, finding.says) == ("bad", "TORPOR_VOLUME is 'maybe'; it can be auto or off")


def test_snapshots_are_counted_and_damaged_ones_do_no_harm(sight: Sight) -> None:
    assert doctor.look_at_snapshots(sight).says == "none"
    layout = Layout(sight.home)
    layout.make()
    for number in (1, 2):
        publish_snapshot(layout, number)
    assert doctor.look_at_snapshots(sight).says.startswith("2, ")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TORPOR_VOLUME", "maybe", "it can be auto or off"),
        ("TORPOR_VOLUME_GIB", "0", "1 or more"),
        ("TORPOR_VOLUME_GIB", "many", "1 or more"),
    ],
)
def test_settings_of_the_volume_that_make_no_sense_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=f"{name} is '{value}'; .*{says}"):
        HostConfig.from_environment(Path("home"))


def test_settings_of_the_volume_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORPOR_VOLUME", raising=False)
    monkeypatch.delenv("TORPOR_VOLUME_GIB", raising=False)
    assert HostConfig.from_environment(Path("home")).volume == VolumeConfig()
    monkeypatch.setenv("TORPOR_VOLUME", "off")
    monkeypatch.setenv("TORPOR_VOLUME_GIB", "20")
    assert HostConfig.from_environment(Path("home")).volume == VolumeConfig("off", 20)


def test_the_network_is_described_with_what_it_lacks(sight: Sight) -> None:
    assert "root" in look_at_network(sight).says
    root = dataclasses.replace(sight, is_root=True)
    assert "/dev/net/tun" in look_at_network(root).says
    write(root, "dev/net/tun", "")
    install(root, "ip")
    install(root, "tc")
    assert look_at_network(root).mend == "install conntrack nftables"
    install(root, "nft")
    install(root, "conntrack")
    good = look_at_network(root)
    assert good.verdict == "ok"
    assert "switches that on" in good.says
    write(root, "proc/sys/net/ipv4/ip_forward", "1\n")
    assert "switches" not in look_at_network(root).says


def test_a_network_that_is_off_or_set_wrongly_is_told(sight: Sight, monkeypatch: pytest.MonkeyPatch) -> None:
    told = dataclasses.replace(sight, is_root=True, network=network_from_environment)
    monkeypatch.setenv("TORPOR_NETWORK", "off")
    assert "TORPOR_NETWORK is off" in look_at_network(told).says
    monkeypatch.setenv("TORPOR_NETWORK_MBIT", "much")
    assert look_at_network(told).verdict == "bad"
