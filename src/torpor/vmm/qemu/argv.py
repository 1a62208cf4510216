"""QEMU's command line, as a pure function of what a machine is made of.

Facts of QEMU behind the choices (its manual, pages "microvm" and "VM templating", and measurement):
- `memory-backend-file` with share=off,readonly=on,rom=off maps an image that QEMU may not write (QEMU 8.2 and newer);
- machine state without RAM loads only with the configuration section off on both sides;
- no balloon and no free-page reporting: a discard on a privately mapped file would punch holes into the image itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.vmm.driver import Disk, Hardware, Nic

AGENT_PORT = "agent"
MACHINE = "microvm"

# What QEMU itself may not do once it runs (its seccomp filter).
_SECCOMP = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

# Translated code that is kept, at the most. Left to itself QEMU keeps up to 1 GiB, which any guest can fill in minutes;
# a Python and a git at work use 70 MiB.
_TRANSLATIONS_MIB = 128

# What a bay without a volume shows.
_EMPTY_BAY_BYTES = 4096
_BAY_QUEUE = 64

# What a card offers depends on what it is connected to, and a state that was saved with an offer is loaded only where
# that is made again; so nothing is offered that a tap can do and a hub cannot.
_OFFLOADS = (
    *("csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo"),
    *("host_tso4", "host_tso6", "host_ecn", "host_ufo", "guest_uso4", "guest_uso6", "host_uso"),
    *("ctrl_guest_offloads", "guest_announce", "mq"),
)
_NO_OFFLOADS = ",".join(f"{offer}=off" for offer in _OFFLOADS)


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors that QEMU inherits: listening sockets, the state to load, and the tap of the network card."""

    monitor: int
    agent: int
    console: int
    state: int | None = None
    tap: int | None = None

    def __iter__(self) -> Iterator[int]:
        yield from (self.monitor, self.agent, self.console)
        yield from (number for number in (self.state, self.tap) if number is not None)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """How instructions are run. `boot_arguments` go to the guest's kernel."""

    name: str
    option: str
    cpu_model: str
    boot_arguments: str


def tcg(tsc_khz: int) -> Accelerator:
    """Emulation. The kernel is told the TSC's rate: calibrating it against an emulated timer hangs one boot in three.

    lpj is TSC Hz / HZ, and HZ is 250 in Debian's kernels, so four times the kHz figure. Speculation is not emulated, so
    what protects a kernel from it is only slow.
    """
    arguments = f"tsc_early_khz={tsc_khz} lpj={tsc_khz * 4} no_timer_check mitigations=off"
    # Without the "fast string" features a guest copies by vector instructions, which the emulator translates four times
    # faster than `rep movsb`.
    return Accelerator("tcg", f"tcg,thread=multi,tb-size={_TRANSLATIONS_MIB}", "max,-erms,-fsrm", arguments)


def kvm() -> Accelerator:
    """The processor's own virtualisation."""
    return Accelerator("kvm", "kvm", "host", "no_timer_check")


def qemu_argv(
    program: str, accelerator: Accelerator, hardware: Hardware, memory: Path, descriptors: Descriptors
) -> list[str]:
    """Return the command line: a cold boot, or with `descriptors.state` a machine that waits to be told to load it."""
    loading = descriptors.state is not None
    backing = "share=off,readonly=on,rom=off" if loading else "share=on"
    return [
        program,
        *("-M", f"{MACHINE},rtc=on,memory-backend=ram", "-accel", accelerator.option, "-cpu", accelerator.cpu_model),
        *("-smp", str(hardware.cpu), "-m", f"{hardware.memory_mib}M"),
        *("-object", f"memory-backend-file,id=ram,size={hardware.memory_mib}M,mem-path={_escape(memory)},{backing}"),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-nographic", "-sandbox", _SECCOMP),
        *("-global", "migration.send-configuration=off"),
        *(() if loading else _kernel(hardware, accelerator)),
        *_disks(hardware.disks),
        *_bays(hardware.bays),
        *("-device", "virtio-serial-device"),
        *("-chardev", f"socket,id=agent,fd={descriptors.agent},server=on,wait=off"),
        *("-device", f"virtserialport,chardev=agent,name={AGENT_PORT}"),
        *("-device", "virtio-rng-device"),
        *_network(hardware.nic, descriptors.tap),
        *("-chardev", f"socket,id=console,fd={descriptors.console},server=on,wait=off", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=monitor,fd={descriptors.monitor},server=on,wait=off"),
        *("-mon", "chardev=monitor,mode=control"),
        *(("-incoming", "defer", "-S") if loading else ()),
    ]


def _kernel(hardware: Hardware, accelerator: Accelerator) -> list[str]:
    # For a boot only: a guest that is loaded has its kernel in memory, and QEMU would read both files for nothing.
    arguments = f"{hardware.command_line} {accelerator.boot_arguments}"
    return ["-kernel", str(hardware.kernel), "-initrd", str(hardware.initrd), "-append", arguments]


def _escape(path: Path) -> str:
    # In QEMU's key=value lists a comma ends the value unless it is doubled.
    return str(path).replace(",", ",,")


def _disks(disks: Sequence[Disk]) -> list[str]:
    argv: list[str] = []
    for number, disk in enumerate(disks):
        for node in _nodes(f"disk{number}", disk):
            argv += ["-blockdev", json.dumps(node, ensure_ascii=False)]  # so that a name is found in it as it is
        argv += ["-device", f"virtio-blk-device,drive=disk{number}"]
    return argv


def _bays(bays: Sequence[Path | None]) -> list[str]:
    """Return the options of the bays. A queue is short, as each costs the guest memory."""
    argv: list[str] = []
    for number, image in enumerate(bays):
        name, content = f"bay{number}", f"bay{number}-content"
        if image is None:
            content = f"{name}-empty"
            node: dict[str, object] = {"node-name": content, "driver": "null-co", "size": _EMPTY_BAY_BYTES}
            node["read-zeroes"] = True
        else:
            node = content_node(content, str(image))
        for each in (node, bay_node(name, content)):
            argv += ["-blockdev", json.dumps(each, ensure_ascii=False)]
        argv += ["-device", f"virtio-blk-device,drive={name},serial={name},queue-size={_BAY_QUEUE}"]
    return argv


def bay_node(name: str, content: str) -> dict[str, object]:
    """Return the node of a bay that shows the content of another node."""
    return {"node-name": name, "driver": "raw", "file": content, "discard": "unmap"}


def content_node(name: str, file: str) -> dict[str, object]:
    """Return the node of a file that a bay is to show. What its guest flushes is durable: it outlives the machine."""
    return {"node-name": name, "driver": "file", "filename": file, "discard": "unmap"}


def _network(nic: Nic | None, tap: int | None) -> list[str]:
    """Return the options of the network card, which is the same device whatever it is connected to."""
    if nic is None:
        return []
    # A hub with one port: a place to be connected to that leads nowhere.
    behind = "hubport,id=network,hubid=0" if tap is None else f"tap,id=network,fd={tap},vhost=off"
    return ["-netdev", behind, "-device", f"virtio-net-device,netdev=network,mac={nic.mac},{_NO_OFFLOADS}"]


def _nodes(name: str, disk: Disk) -> list[dict[str, object]]:
    image = {"driver": "file", "filename": str(disk.image), "read-only": True}
    if disk.overlay is None:
        return [{"node-name": name, "driver": "raw", "read-only": True, "file": image}]
    # The backing image is named here and never read from the overlay's header. Flushes stop at the host's page cache:
    # a running machine's disk is durable only through a snapshot, which makes it so itself.
    overlay = {"driver": "file", "filename": str(disk.overlay), "discard": "unmap"}
    cache = {"no-flush": True}
    return [
        {"node-name": f"{name}-image", "driver": "raw", "read-only": True, "file": image},
        {
            "node-name": name,
            "driver": "qcow2",
            "file": overlay,
            "backing": f"{name}-image",
            "discard": "unmap",
            "cache": cache,
        },
    ]
