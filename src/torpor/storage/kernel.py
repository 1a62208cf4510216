"""The guest's kernel, unpacked from Debian's cloud kernel package, and an initramfs that finds the disks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from torpor.errors import Failed, Unsupported
from torpor.storage.debian import unpack
from torpor.storage.programs import use

# What the kernel has as modules and a guest needs before its root disk, or cannot load itself later.
MODULES = ("virtio_mmio", "virtio_blk", "virtio_console", "virtio-rng", "virtio_net")

RUNTIME = "/run/torpor/runtime"

# The loader and the interpreter are named in full: the guest's own root may have neither.
AGENT_ARGV = (
    f"{RUNTIME}/lib64/ld-linux-x86-64.so.2",
    *("--library-path", f"{RUNTIME}/usr/lib/x86_64-linux-gnu:{RUNTIME}/lib/x86_64-linux-gnu"),
    *(f"{RUNTIME}/usr/bin/python3", "-I", "-S", f"{RUNTIME}/agent"),
)

INIT = """#!/bin/sh
# First program of the guest: load what the disks need, mount them, hand over to the guest agent.
set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $(cat /modules/order); do insmod "/modules/$module"; done
mount -t ext4 -o rw,relatime,discard /dev/vda /root
for folder in proc sys dev run tmp; do mkdir -p "/root/$folder"; done
mount -t tmpfs -o mode=0755,nosuid,nodev tmpfs /root/run
mkdir -p {runtime}
mount -t ext4 -o ro /dev/vdb {runtime}
mount --move /proc /root/proc
mount --move /sys /root/sys
mount --move /dev /root/dev
exec switch_root /root {argv}
"""


# The probe's whole guest: say that it came up, and end.
_PROBE_INIT = """#!/bin/sh
echo {mark}
reboot -f
"""


# All that the image is made from, beside the packages and the probe's mark.
INGREDIENTS = (MODULES, AGENT_ARGV, INIT, _PROBE_INIT)


async def make_kernel(package: str, probe_mark: str, into: Path, log: Path) -> None:
    """Fill a folder with `vmlinuz` and `initrd` from a kernel package (and a static busybox).

    `probe` is a second initramfs that prints `probe_mark` and ends, to find out whether guests boot here at all.
    """
    unpacked = into / "unpacked"
    unpacked.mkdir()
    for name in (package, "busybox-static"):
        await unpack(name, unpacked, log)
    kernels = list((unpacked / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise Failed(f"the package {package} holds {len(kernels)} kernels, not one")
    kernels[0].rename(into / "vmlinuz")
    tree = into / "tree"
    _lay_out(unpacked, tree)
    await _pack(tree, into / "initrd")
    _write_init(tree, _PROBE_INIT.format(mark=probe_mark))
    shutil.rmtree(tree / "modules")
    await _pack(tree, into / "probe")
    for done in (unpacked, tree):
        shutil.rmtree(done)


def _lay_out(unpacked: Path, tree: Path) -> None:
    for folder in ("bin", "dev", "modules", "proc", "root", "sys"):
        (tree / folder).mkdir(parents=True)
    busybox = next(path for path in (unpacked / "bin/busybox", unpacked / "usr/bin/busybox") if path.is_file())
    (tree / "bin/busybox").write_bytes(busybox.read_bytes())
    (tree / "bin/busybox").chmod(0o755)
    for applet in ("sh", "mount", "mkdir", "insmod", "cat", "switch_root", "reboot"):
        (tree / "bin" / applet).symlink_to("busybox")
    order = in_loading_order(MODULES, {_module_name(path): path for path in unpacked.rglob("*.ko")})
    for path in order:
        (tree / "modules" / path.name).write_bytes(path.read_bytes())
    (tree / "modules/order").write_text("".join(f"{path.name}\n" for path in order))
    _write_init(tree, INIT.format(runtime=f"/root{RUNTIME}", argv=" ".join(AGENT_ARGV)))


def _write_init(tree: Path, script: str) -> None:
    (tree / "init").write_text(script)
    (tree / "init").chmod(0o755)


def in_loading_order(wanted: Iterable[str], modules: dict[str, Path]) -> list[Path]:
    """Return the files of the wanted modules and of all they depend on, each after its own.

    What a module depends on is in its own information section, as `depends=a,b`. Raises Failed for one that is not
    there.
    """
    order: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in order:
            return
        if name not in modules:
            raise Failed(f"the kernel package has no module {name}")
        found = re.search(rb"\0depends=([^\0]*)\0", modules[name].read_bytes())
        for needed in found[1].decode().split(",") if found and found[1] else ():
            add(needed.replace("-", "_"))
        order[name] = modules[name]

    for name in wanted:
        add(name.replace("-", "_"))
    return list(order.values())


def _module_name(path: Path) -> str:
    return path.name.removesuffix(".ko").replace("-", "_")


async def _pack(tree: Path, target: Path) -> None:
    # Fixed argv; the paths are positional parameters, so nothing of them is read as shell.
    script = (
        'cd "$1" && find . -print0 | LC_ALL=C sort -z | cpio --null --create --format=newc --quiet --owner=0:0 > "$2"'
    )
    if shutil.which("cpio") is None:  # the shell would only say that something was not found
        raise Unsupported("the program cpio is not installed", hint="install the package cpio")
    await use(["sh", "-c", script, "pack", str(tree), str(target)], "dash", "the initramfs was not packed")
