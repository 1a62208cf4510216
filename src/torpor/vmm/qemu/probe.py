"""KVM or emulation: decided by booting a guest, because a /dev/kvm that opens proves nothing.

On some hosts KVM creates machines in which a stock kernel dies. It shows in three ways: QEMU aborts, QEMU reports an
internal error and stays, or there is silence. So success is only the guest's own word on its console, in time.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from torpor.kit.files import write_whole
from torpor.kit.proc import ProgramFailed, run
from torpor.vmm.qemu.argv import Accelerator, kvm, tcg
from torpor.vmm.qemu.processor import processor_name
from torpor.vmm.qemu.tsc import tsc_khz

# Printed by the initramfs of the probe; under KVM a boot to there takes well under a second.
MARK = "torpor-probe-boots"
_PATIENCE_S = 8.0
_DEVICE = Path("/dev/kvm")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided, and why, in words for a person.

    `subject` is what it holds for: host, kernel, QEMU, guest kernel.
    """

    accelerator: str
    why: str
    subject: str


async def decide(wanted: str, qemu: str, version: str, boot: tuple[Path, Path], memo: Path) -> Verdict:
    """Decide the accelerator: as `wanted` ("kvm" or "tcg"), or for "auto" by a boot, remembered in the file `memo`.

    `boot` is the kernel and the probe's initramfs.
    """
    subject = f"{processor_name()}; Linux {platform.release()}; QEMU {version}; guest {boot[0].parent.name}"
    if wanted != "auto":
        return Verdict(wanted, "chosen by configuration", subject)
    if (missing := _why_no_device()) is not None:
        return Verdict("tcg", missing, subject)
    remembered = recall(memo)
    if remembered is not None and remembered.subject == subject:
        return remembered
    verdict = await _try_boot(qemu, boot, subject)
    write_whole(memo, json.dumps(asdict(verdict), indent=2).encode() + b"\n")
    return verdict


def recall(memo: Path) -> Verdict | None:
    """Return the verdict remembered in a file; None if there is none, or none that can be read."""
    try:
        return Verdict(**json.loads(memo.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def accelerator_of(verdict: Verdict) -> Accelerator:
    """Return how machines are to be run."""
    return kvm() if verdict.accelerator == "kvm" else tcg(tsc_khz())


def _why_no_device() -> str | None:
    if not _DEVICE.exists():
        return "this host has no /dev/kvm"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "this user may not open /dev/kvm"
    return None


async def _try_boot(qemu: str, boot: tuple[Path, Path], subject: str) -> Verdict:
    kernel, initrd = boot
    argv = [
        *(qemu, "-M", "microvm,rtc=on", "-accel", "kvm", "-cpu", "host", "-m", "128M", "-smp", "1"),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-nographic", "-serial", "stdio"),
        *("-kernel", str(kernel), "-initrd", str(initrd), "-append", "console=ttyS0 reboot=t panic=-1 quiet"),
    ]
    try:
        async with asyncio.timeout(_PATIENCE_S):
            said = await run(argv)
    except TimeoutError:
        return Verdict("tcg", f"/dev/kvm is there, but a guest did not come up with it in {_PATIENCE_S:.0f} s", subject)
    except ProgramFailed as error:
        last = (error.output.strip().splitlines() or ["QEMU said nothing"])[-1]
        return Verdict("tcg", f"/dev/kvm is there, but QEMU fails with it: {last[:200]}", subject)
    if MARK not in said:
        return Verdict("tcg", "/dev/kvm is there, but a guest's kernel dies with it", subject)
    return Verdict("kvm", "a guest boots with it", subject)
