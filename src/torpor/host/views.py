"""What the host tells of its things on the wire."""

from __future__ import annotations

import dataclasses
from typing import TypedDict

from torpor.host.live import Incarnation, Sleeper
from torpor.model.ids import SandboxId
from torpor.model.snapshot import Snapshot
from torpor.model.template import Template
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


def incarnation_view(incarnation: Incarnation) -> wire.Incarnation:
    """Return an incarnation as the control plane sees it."""
    return wire.Incarnation(
        id=incarnation.id,
        boot_ms=incarnation.boot_ms,
        pid=incarnation.machine.pid,
        status="paused" if incarnation.paused else "running",
        alive=incarnation.machine.alive,
        reason=incarnation.machine.end or None,
        **_made_of(incarnation.base),
    )


def sleeper_view(sleeper: Sleeper) -> wire.Incarnation:
    """Return a sandbox that sleeps as the control plane sees it."""
    return wire.Incarnation(id=sleeper.id, boot_ms=0, status="asleep", **_made_of(sleeper.base))


def damaged_view(sandbox: SandboxId, reason: str) -> wire.Incarnation:
    """Return a sandbox whose folder cannot be read as the control plane sees it: nothing is known of its size."""
    return wire.Incarnation(
        id=sandbox,
        template="",
        cpu=0,
        memory_mb=0,
        disk_gb=0,
        boot_ms=0,
        status="asleep",
        alive=False,
        reason=f"what it slept in cannot be read: {reason}",
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


def snapshot_view(snapshot: Snapshot) -> wire.Frozen:
    """Return a snapshot as the control plane sees it."""
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
        **dataclasses.asdict(snapshot.cost),
    )
