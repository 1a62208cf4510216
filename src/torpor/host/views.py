"""What the host tells of its things on the wire."""

from __future__ import annotations

import dataclasses
from typing import TypedDict

from torpor.host.live import Incarnation, Sleeper
from torpor.host.unreachable import Unreachable
from torpor.model.ids import SandboxId
from torpor.model.network import Egress, Mode
from torpor.model.snapshot import Snapshot
from torpor.model.template import Template
from torpor.model.usage import Reading
from torpor.storage.frozen import Frozen
from torpor.wire import host as wire
from torpor.wire.public import TemplateView


def template_view(template: Template) -> TemplateView:
    """Return a template as clients see it."""
    return TemplateView(
        name=template.name,
        created_at=template.created_at,
        fingerprint=template.digest,
        cpu=template.cpu,
        memory_mb=template.memory_mib,
        disk_gb=template.disk_gib,
        accelerator=template.fingerprint.accelerator,
        size_bytes=template.size_bytes,
        cold_boot_ms=template.cold_boot_ms,
    )


class _MadeOf(TypedDict):
    template: str
    cpu: int
    memory_mb: int
    disk_gb: int
    base: str | None


_NOT_KNOWN: _MadeOf = {"template": "", "cpu": 0, "memory_mb": 0, "disk_gb": 0, "base": None}


def incarnation_view(incarnation: Incarnation) -> wire.Incarnation:
    """Return an incarnation as the control plane sees it."""
    return wire.Incarnation(
        id=incarnation.id,
        boot_ms=incarnation.boot_ms,
        pid=incarnation.machine.pid,
        status="paused" if incarnation.paused else "running",
        alive=incarnation.machine.alive,
        reason=incarnation.machine.end or None,
        usage=usage_view(incarnation.usage()),
        adopted=incarnation.adopted,
        network=network_view(incarnation.egress),
        guest_ip=guest_ip_of(incarnation),
        **_made_of(incarnation.base),
    )


def sleeper_view(sleeper: Sleeper) -> wire.Incarnation:
    """Return a sandbox that sleeps as the control plane sees it."""
    usage = usage_view(sleeper.usage())
    network = network_view(sleeper.egress)
    return wire.Incarnation(
        id=sleeper.id, boot_ms=0, status="asleep", usage=usage, network=network, **_made_of(sleeper.base)
    )


def network_view(egress: Egress) -> wire.Network:
    """Return what a sandbox may reach as the control plane sees it."""
    return wire.Network(mode=egress.mode.value, cidrs=list(egress.cidrs), names=list(egress.names))


def guest_ip_of(incarnation: Incarnation) -> str | None:
    """Return the address of a sandbox; None for one that has no network, or may reach nothing."""
    return None if incarnation.egress.mode is Mode.NONE else incarnation.slot.guest_ip


def usage_view(used: Reading) -> wire.Usage:
    """Return what a sandbox has used as the control plane sees it."""
    return wire.Usage(**dataclasses.asdict(used))


def damaged_view(sandbox: SandboxId, reason: str) -> wire.Incarnation:
    """Return a sandbox of which nothing can be used as the control plane sees it: nothing is known of its size."""
    return wire.Incarnation(id=sandbox, boot_ms=0, status="asleep", alive=False, reason=reason, **_NOT_KNOWN)


def unreachable_view(one: Unreachable) -> wire.Incarnation:
    """Return a sandbox that is out of reach as the control plane sees it: its machine lives. Of its size nothing is
    known where that cannot be read.
    """
    made_of = _made_of(one.base) if one.base is not None else _NOT_KNOWN
    return wire.Incarnation(
        id=one.id,
        boot_ms=0 if one.record is None else one.record.boot_ms,
        pid=one.pid,
        status="paused" if one.paused else "running",
        reason=one.reason,
        usage=usage_view(one.usage()),
        adopted=True,
        network=network_view(one.egress),
        **made_of,
    )


def _made_of(base: Frozen) -> _MadeOf:
    template = base.template
    return {
        "template": template.name,
        "cpu": template.cpu,
        "memory_mb": template.memory_mib,
        "disk_gb": template.disk_gib,
        "base": base.snapshot.id if base.snapshot is not None else None,
    }


def snapshot_view(snapshot: Snapshot, used: Reading | None = None) -> wire.Frozen:
    """Return a snapshot as the control plane sees it; `used`: what its sandbox had used, where it was just taken."""
    template = snapshot.template
    return wire.Frozen(
        id=snapshot.id,
        kind=snapshot.kind.value,
        sandbox=snapshot.sandbox,
        created_at=snapshot.created_at,
        template=template.name,
        cpu=template.cpu,
        memory_mb=template.memory_mib,
        disk_gb=template.disk_gib,
        accelerator=template.fingerprint.accelerator,
        parent=snapshot.parent,
        name=snapshot.name,
        size_bytes=snapshot.size_bytes,
        usage=None if used is None else usage_view(used),
        **dataclasses.asdict(snapshot.cost),
    )
