from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from torpor.errors import Unsupported
from torpor.model.template import Fingerprint
from torpor.vmm.bounded_log import CHUNK_BYTES, BoundedLog, read_log
from torpor.vmm.driver import Disk, Hardware, Nic, Place
from torpor.vmm.qemu import probe
from torpor.vmm.qemu.argv import Descriptors, kvm, qemu_argv, tcg
from torpor.vmm.qemu.driver import QemuDriver, qemu_version
from torpor.vmm.qemu.machine import listen_to_log, log_pipe
from torpor.vmm.qemu.processor import processor_name
from torpor.vmm.qemu.tsc import _from_cpuinfo, tsc_khz

HARDWARE = Hardware(
    cpu=1,
    memory_mib=256,
    kernel=Path("/k/vmlinuz"),
    initrd=Path("/k/initrd"),
    command_line="quiet",
    disks=(Disk(Path("/i/root.img"), Path("/s/disk.qcow2")), Disk(Path("/i/runtime.img"))),
)


def option(argv: list[str], name: str) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == name]


def test_a_load_maps_its_memory_image_without_the_right_to_write_it() -> None:
    argv = qemu_argv("qemu", tcg(2_000_000), HARDWARE, Path("/t/memory"), Descriptors(3, 4, 5, 6))
    (memory,) = option(argv, "-object")
    assert memory == "memory-backend-file,id=ram,size=256M,mem-path=/t/memory,share=off,readonly=on,rom=off"
    assert option(argv, "-incoming") == ["defer"]
    assert "-S" in argv
    assert option(argv, "-kernel") == []


def test_a_boot_shares_its_memory_image_and_loads_nothing() -> None:
    argv = qemu_argv("qemu", tcg(2_000_000), HARDWARE, Path("/t/mem,ory"), Descriptors(3, 4, 5))
    assert option(argv, "-object")[0].endswith("mem-path=/t/mem,,ory,share=on")
    assert option(argv, "-incoming") == []


def test_emulated_kernels_are_told_the_rate_of_the_time_stamp_counter() -> None:
    argv = qemu_argv("qemu", tcg(2_596_146), HARDWARE, Path("/m"), Descriptors(3, 4, 5))
    assert option(argv, "-append") == ["quiet tsc_early_khz=2596146 lpj=10384584 no_timer_check mitigations=off"]
    assert (
        "tsc_early_khz" not in option(qemu_argv("q", kvm(), HARDWARE, Path("/m"), Descriptors(3, 4, 5)), "-append")[0]
    )


def test_a_machine_that_has_the_host_s_processor_is_told_by_its_name() -> None:
    driver = QemuDriver(kvm(), "10.0.2")
    assert driver.fingerprint == Fingerprint("qemu", "10.0.2", "kvm", f"host:{processor_name()}", "microvm")
    assert option(qemu_argv("q", kvm(), HARDWARE, Path("/m"), Descriptors(3, 4, 5)), "-cpu") == ["host"]
    assert QemuDriver(tcg(1), "10.0.2").fingerprint.cpu_model == tcg(1).cpu_model


def test_a_network_card_is_the_same_device_with_a_tap_and_without() -> None:
    hardware = dataclasses.replace(HARDWARE, nic=Nic("02:00:00:00:00:07"))
    cards = []
    for tap, behind in ((9, "tap,id=network,fd=9,vhost=off"), (None, "hubport,id=network,hubid=0")):
        descriptors = Descriptors(3, 4, 5, 6, tap)
        argv = qemu_argv("q", kvm(), hardware, Path("/m"), descriptors)
        assert option(argv, "-netdev") == [behind]
        assert list(descriptors) == [3, 4, 5, 6, *([] if tap is None else [tap])]
        cards.append([each for each in option(argv, "-device") if "virtio-net" in each])
    assert cards[0] == cards[1]
    assert "mac=02:00:00:00:00:07" in cards[0][0]
    assert "csum=off" in cards[0][0]
    assert option(qemu_argv("q", kvm(), HARDWARE, Path("/m"), Descriptors(3, 4, 5, 6, 9)), "-netdev") == []


def test_only_the_overlay_is_writable() -> None:
    nodes = [
        json.loads(text)
        for text in option(qemu_argv("q", kvm(), HARDWARE, Path("/m"), Descriptors(3, 4, 5)), "-blockdev")
    ]
    assert [node["node-name"] for node in nodes] == ["disk0-image", "disk0", "disk1"]
    assert nodes[0]["read-only"]
    assert nodes[0]["file"]["read-only"]
    assert nodes[1]["file"]["filename"] == "/s/disk.qcow2"
    assert "read-only" not in nodes[1]
    assert nodes[2]["read-only"]


def test_qemu_may_not_start_programs_or_gain_rights() -> None:
    (filter_,) = option(qemu_argv("q", kvm(), HARDWARE, Path("/m"), Descriptors(3, 4, 5)), "-sandbox")
    assert {"on", "spawn=deny", "elevateprivileges=deny"} <= set(filter_.split(","))


def test_the_counter_s_rate_is_read_from_cpuinfo_where_the_kernel_does_not_tell() -> None:
    assert _from_cpuinfo("processor\t: 0\ncpu MHz\t\t: 2596.146\n") == 2_596_146
    assert _from_cpuinfo("processor\t: 0\n") is None
    assert tsc_khz() > 100_000


async def test_a_missing_qemu_is_named_with_the_package_that_mends_it() -> None:
    with pytest.raises(Unsupported, match="not installed") as caught:
        await qemu_version("qemu-system-none")
    assert "qemu-system-x86" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("says", "complaint"), [("QEMU emulator version 7.2.22 (Debian)", "too old"), ("hello", "nothing this program")]
)
async def test_an_unfit_qemu_is_refused(tmp_path: Path, says: str, complaint: str) -> None:
    program = tmp_path / "qemu"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    with pytest.raises(Unsupported, match=complaint):
        await qemu_version(str(program))


async def test_a_flooded_console_keeps_its_newest_part_within_bounds(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    console = BoundedLog(ours, tmp_path / "console.log")
    line = b"x" * 1023 + b"\n"
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    for _ in range(3 * CHUNK_BYTES // len(line)):
        await loop.sock_sendall(theirs, line)
    await loop.sock_sendall(theirs, b"the end\n")
    theirs.close()
    await console.ended.wait()
    console.close()
    assert read_log(tmp_path / "console.log").endswith(b"the end\n")
    assert CHUNK_BYTES <= len(read_log(tmp_path / "console.log")) <= 2 * CHUNK_BYTES


async def test_closing_a_log_keeps_what_had_arrived(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    log = BoundedLog(ours, tmp_path / "vmm.log")
    theirs.sendall(b"last words\n")
    log.close()
    theirs.close()
    assert read_log(tmp_path / "vmm.log") == b"last words\n"


def fill(pipe: int) -> None:
    """Write until it takes no more."""
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 1024)


async def test_a_pipe_that_nobody_listens_to_neither_blocks_nor_breaks_and_is_read_on_by_the_next(
    tmp_path: Path,
) -> None:
    place = Place("place", tmp_path)
    os.mkfifo(log_pipe(place))
    theirs = os.open(log_pipe(place), os.O_RDWR | os.O_NONBLOCK)
    first = listen_to_log(place)
    os.write(theirs, b"heard\n")
    first.close()
    os.write(theirs, b"kept for the next\n")
    fill(theirs)
    next_one = listen_to_log(place)
    next_one.close()
    os.close(theirs)
    assert read_log(place.log).startswith(b"heard\nkept for the next\nxxx")


def test_a_console_that_never_spoke_reads_as_nothing(tmp_path: Path) -> None:
    assert read_log(tmp_path / "console.log") == b""


def a_qemu(folder: Path, script: str) -> str:
    program = folder / "fake-qemu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(probe, "_DEVICE", device)
    monkeypatch.setattr(probe, "_PATIENCE_S", 1.0)
    return device


BOOT = (Path("/images/kernel-1/vmlinuz"), Path("/images/kernel-1/probe"))


@pytest.mark.parametrize(
    ("script", "accelerator", "why"),
    [
        (f"echo {probe.MARK}", "kvm", "a guest boots with it"),
        ("echo 'error: failed to set MSR 0x38d'; kill -ABRT $$", "tcg", "failed to set MSR"),
        ("echo Kernel panic", "tcg", "kernel dies"),
        ("exec sleep 1000", "tcg", "did not come up"),
    ],
)
async def test_kvm_is_used_only_where_a_guest_boots_with_it(
    tmp_path: Path, device: Path, script: str, accelerator: str, why: str
) -> None:
    verdict = await probe.decide("auto", a_qemu(tmp_path, script), "10.0", BOOT, tmp_path / "memo")
    assert verdict.accelerator == accelerator
    assert why in verdict.why


async def test_the_verdict_is_remembered_for_the_same_host_qemu_and_kernel_only(tmp_path: Path, device: Path) -> None:
    works, fails = a_qemu(tmp_path, f"echo {probe.MARK}"), tmp_path / "never-started"
    memo = tmp_path / "memo"
    assert (await probe.decide("auto", works, "10.0", BOOT, memo)).accelerator == "kvm"
    assert (await probe.decide("auto", str(fails), "10.0", BOOT, memo)).accelerator == "kvm"
    a_qemu(tmp_path, "exit 1")
    assert (await probe.decide("auto", works, "10.1", BOOT, memo)).accelerator == "tcg"


async def test_without_a_device_or_by_configuration_nothing_is_started(tmp_path: Path, device: Path) -> None:
    never = str(tmp_path / "never-started")
    assert (await probe.decide("kvm", never, "10.0", BOOT, tmp_path / "memo")).accelerator == "kvm"
    device.unlink()
    verdict = await probe.decide("auto", never, "10.0", BOOT, tmp_path / "memo")
    assert (verdict.accelerator, verdict.why) == ("tcg", "this host has no /dev/kvm")


def test_a_damaged_memo_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "memo").write_text("{")
    assert probe.recall(tmp_path / "memo") is None
