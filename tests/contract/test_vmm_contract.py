"""Both drivers keep the machine contract: the fake one in memory, and QEMU with a real guest."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mounted import mounted
from torpor.host.choice import DriverChoice
from torpor.host.config import HostConfig
from torpor.host.hardware import hardware_of
from torpor.model.ids import TemplateName
from torpor.storage.disks import make_overlay
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import Templates
from torpor.testing.vmm import fake_driver
from torpor.testing.vmm_contract import VmmContract
from torpor.testing.vmm_rig import LoadOrder, Rig
from torpor.vmm.driver import Disk, Driver, Hardware, Survivors, Trace
from torpor.vmm.fake import FakeDriver
from torpor.vmm.qemu.survivors import QemuSurvivors

_CRAMPED = "size=256k"


class TestFakeDriver(VmmContract):
    """The fake driver, whose guests speak the agent's protocol."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        for name in ("vmlinuz", "initrd", "root.img", "overlay"):
            (tmp_path / name).write_text(name)
        hardware = Hardware(
            cpu=1,
            memory_mib=64,
            kernel=tmp_path / "vmlinuz",
            initrd=tmp_path / "initrd",
            command_line="quiet",
            disks=(Disk(tmp_path / "root.img"),),
            bays=(None, None),
        )
        with mounted(tmp_path / "cramped", "tmpfs", _CRAMPED) as cramped:
            driver = fake_driver()
            parts = (driver, driver, _abandoned_in_memory, hardware, tmp_path / "overlay", tmp_path)
            yield Rig(*parts, real=False, cramped=cramped)


async def _abandoned_in_memory(driver: Driver, order: LoadOrder) -> tuple[Trace, Survivors]:
    """What lives in memory is left to another driver, which stands for that of another program."""
    assert isinstance(driver, FakeDriver)
    machine = await order.carry_out(driver)
    assert machine.trace is not None
    another = FakeDriver(driver.new_guest, driver.leave_all())
    await machine.leave()
    return machine.trace, another


@pytest.mark.guest
class TestQemuDriver(VmmContract):
    """QEMU, on the images of a baked template."""

    @pytest.fixture
    def rig(self, qemu_rig: Rig) -> Rig:
        return qemu_rig


@pytest.fixture(scope="module")
def qemu_rig(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One rig for all, so that the guest that the suite saves is booted once."""
    folder = tmp_path_factory.mktemp("qemu")
    with mounted(folder / "cramped", "tmpfs", _CRAMPED) as cramped:
        yield asyncio.run(_qemu_rig(Layout(template_home.resolve()), folder, cramped))


async def _qemu_rig(layout: Layout, folder: Path, cramped: Path | None) -> Rig:
    template = Templates(layout).open(TemplateName("base")).template
    driver = await DriverChoice(HostConfig.from_environment(layout.home), layout)()
    hardware = hardware_of(Images(layout), template, folder / "unused")
    await make_overlay(hardware.disks[0].image, folder / "empty.qcow2")
    parts = (driver, QemuSurvivors(), _abandoned_by_a_process, hardware, folder / "empty.qcow2", folder)
    return Rig(*parts, real=True, cramped=cramped)


# Carries out what it reads from stdin, tells the trace, and dies as by kill -9 with its lines open.
_LOADER = """
import asyncio, os, pickle, signal, sys

async def main():
    driver, order = pickle.load(sys.stdin.buffer)
    machine = await order.carry_out(driver)
    line = machine.open_channel()
    os.write(1, pickle.dumps(machine.trace))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def _abandoned_by_a_process(driver: Driver, order: LoadOrder) -> tuple[Trace, Survivors]:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _LOADER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    told, complaint = await program.communicate(pickle.dumps((driver, order)))
    assert program.returncode == -signal.SIGKILL, complaint.decode()
    trace = pickle.loads(told)
    assert isinstance(trace, Trace)
    return trace, QemuSurvivors()
