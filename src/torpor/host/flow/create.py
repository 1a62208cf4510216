"""create: restore the template's snapshot under a new identity."""

from __future__ import annotations

from collections.abc import Mapping

from torpor.errors import Conflict
from torpor.host.flow.restore import restore
from torpor.host.host import Host
from torpor.host.live import Incarnation
from torpor.model.identity import Identity
from torpor.model.ids import SandboxId, TemplateName


async def create(host: Host, sandbox: SandboxId, template: TemplateName, env: Mapping[str, str]) -> Incarnation:
    """Make a sandbox. `env` is what each of its commands starts from. On error nothing of it is left on the host."""
    async with host.live.lock(sandbox):
        if host.live.find(sandbox) is not None:
            raise Conflict(f"the sandbox {sandbox} is already on this host", seen="running", needed=["deleted"])
        incarnation = await restore(host, host.templates.open(template), Identity(sandbox), env)
        host.live.add(incarnation)
        host.spares.refill(incarnation.template)
        return incarnation
