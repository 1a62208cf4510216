"""The files of a machine, as its QEMU gets them: opened by us, so that it needs the right to open nothing.

A disk is a set of descriptors that QEMU knows by a number. It opens memory images and kernels by name; these are shown
in the jail under another one.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import ExitStack
from pathlib import Path

from torpor.vmm.driver import Disk, Hardware
from torpor.vmm.qemu.argv import Accelerator
from torpor.vmm.qemu.jail import Bound, Jail

_KVM = Path("/dev/kvm")


class Files:
    """Opens files for one machine; `closing` closes them here, once it has its own."""

    def __init__(self, jail: Jail | None, user: int | None, closing: ExitStack) -> None:
        self.jail, self.user = jail, user
        self.passed: list[int] = []  # descriptors that it inherits
        self.words: list[str] = []  # by which QEMU knows of them
        self.bound: list[Bound] = []  # what it sees
        self._closing = closing

    def handed(self, path: Path, flags: int) -> Path:
        """Open a file and return the name under which QEMU has it opened. Raises OSError."""
        number = self._open(path, flags)
        found = sum(word == "-add-fd" for word in self.words) + 1
        self.words += ["-add-fd", f"fd={number},set={found}"]
        return Path(f"/dev/fdset/{found}")

    def shown(self, path: Path, name: str) -> Path:
        """Return the name under which QEMU can open a file for reading. Raises OSError."""
        if self.jail is None:
            return path
        number = self._open(path, os.O_RDONLY)
        self.jail.share(number)
        self.bound.append(Bound(number, Path("/", name)))
        return self.bound[-1].name

    def lent(self, path: Path, name: str) -> Path:
        """Make a new file, and return the name under which QEMU can open it for writing. Raises OSError.

        It belongs to the machine's user until `closing` closes it here.
        """
        number = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if self.jail is None:
            return path
        if self.user is not None:
            self._closing.callback(os.fchown, number, os.geteuid(), os.getegid())
            os.fchown(number, self.user, self.user)
        self.bound.append(Bound(number, Path("/", name), writable=True))
        return self.bound[-1].name

    def _open(self, path: Path, flags: int) -> int:
        number = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._closing.callback(os.close, number)
        self.passed.append(number)
        return number

    def hardware(self, hardware: Hardware, *, loading: bool) -> Hardware:
        """Return the hardware with its files named as QEMU gets them. Raises OSError."""
        disks = tuple(self._disk(disk) for disk in hardware.disks)
        bays = tuple(None if image is None else self.handed(image, os.O_RDWR) for image in hardware.bays)
        hardware = dataclasses.replace(hardware, disks=disks, bays=bays)
        if loading:  # its kernel is in its memory
            return hardware
        kernel, initrd = self.shown(hardware.kernel, "kernel"), self.shown(hardware.initrd, "initrd")
        return dataclasses.replace(hardware, kernel=kernel, initrd=initrd)

    def _disk(self, disk: Disk) -> Disk:
        overlay = None if disk.overlay is None else self.handed(disk.overlay, os.O_RDWR)
        return Disk(self.handed(disk.image, os.O_RDONLY), overlay)

    def accelerator(self, accelerator: Accelerator) -> Accelerator:
        """Return the accelerator with its device as QEMU gets it. Raises OSError."""
        if accelerator.name != "kvm":
            return accelerator
        return dataclasses.replace(accelerator, option=f"{accelerator.option},device={self.handed(_KVM, os.O_RDWR)}")
