"""What the guest of a template is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torpor.model.template import Template
from torpor.storage.images import Images
from torpor.vmm.driver import Disk, Hardware, Nic


def hardware_of(images: Images, template: Template, overlay: Path, volumes: Sequence[Path] = ()) -> Hardware:
    """Return a template's hardware, with `overlay` taking the writes to its root disk, and files in its first bays."""
    kernel, root, runtime = (images.path(template.images[kind]) for kind in ("kernel", "root", "runtime"))
    return Hardware(
        cpu=template.cpu,
        memory_mib=template.memory_mib,
        kernel=kernel / "vmlinuz",
        initrd=kernel / "initrd",
        command_line=template.command_line,
        disks=(Disk(root / "root.img", overlay), Disk(runtime / "runtime.img")),
        nic=None if template.mac is None else Nic(template.mac),
        bays=(*volumes, *[None] * (template.bays - len(volumes))),
    )
