"""What the host tells of its things on the wire."""

from __future__ import annotations

from torpor.host.live import Incarnation
from torpor.model.template import Template
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


def incarnation_view(incarnation: Incarnation) -> wire.Incarnation:
    """Return an incarnation as the control plane sees it."""
    return wire.Incarnation(
        id=incarnation.id,
        template=incarnation.template.name,
        cpu=incarnation.template.cpu,
        memory_mb=incarnation.template.memory_mib,
        disk_gb=incarnation.template.disk_gib,
        boot_ms=incarnation.boot_ms,
        pid=incarnation.machine.pid,
        alive=incarnation.machine.alive,
        reason=incarnation.machine.end or None,
    )
