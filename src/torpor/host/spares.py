"""Spare machines: what a restore needs before it knows for whom, prepared before anybody asks.

Most of a restore's time is the start of a VMM process. After each create the template gets a spare, a loaded machine
that stands still, so it costs no CPU and hardly any memory, and the next create takes that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from torpor.errors import TorporError
from torpor.host.prepared import Prepared
from torpor.kit.shielded import wait_ended
from torpor.model.ids import TemplateName
from torpor.model.template import Template

_log = structlog.get_logger(__name__)


class Spares:
    """At most one spare for each template; none at all unless `keep`.

    Owns the spares and the tasks that prepare them.
    """

    def __init__(self, prepare: Callable[[Template], Awaitable[Prepared]], *, keep: bool) -> None:
        self._prepare, self._keep = prepare, keep
        self._ready: dict[TemplateName, Prepared] = {}
        self._coming: dict[TemplateName, asyncio.Task[None]] = {}

    async def take(self, template: Template) -> Prepared:
        """Return a prepared machine, which the caller owns.

        It is the spare if that is of this very bake and lives, else a new one. Raises what preparing raises.
        """
        spare = self._ready.pop(template.name, None)
        if spare is not None:
            if spare.template.digest == template.digest and spare.machine.alive:
                return spare
            await spare.aclose()
        return await self._prepare(template)

    def refill(self, template: Template) -> None:
        """Begin to prepare a spare unless there is one. If that fails, the next create says why."""
        if self._keep and template.name not in self._ready and template.name not in self._coming:
            self._coming[template.name] = asyncio.create_task(self._add(template))

    async def _add(self, template: Template) -> None:
        try:
            self._ready[template.name] = await self._prepare(template)
        except TorporError as error:
            _log.warning("no spare was prepared", template=template.name, error=error.message)
        finally:
            del self._coming[template.name]

    async def settled(self) -> None:
        """Return when no spare is being prepared."""
        for task in list(self._coming.values()):
            await wait_ended(task)

    async def drop(self, template: TemplateName) -> None:
        """End a template's spare, also one that is being prepared."""
        if (coming := self._coming.get(template)) is not None:
            coming.cancel()
            await wait_ended(coming)
        if (spare := self._ready.pop(template, None)) is not None:
            await spare.aclose()

    async def aclose(self) -> None:
        """End all spares."""
        for name in {*self._ready, *self._coming}:
            await self.drop(name)
