"""Spare machines: what a restore needs before it knows for whom, prepared before anybody asks.

Most of a restore's time is the start of a VMM process and, under emulation, the translation of the code that a guest
runs for the first time. So after each create the template gets a spare: a machine whose guest has been named once,
for practice, and stands still, which costs no CPU and little memory. The next create takes it. One that nobody takes
is ended. A spare never takes room that a sandbox wants: it is ended first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import structlog

from torpor.errors import TorporError
from torpor.host.admission import Admission, need_of_machine
from torpor.host.prepared import Prepared, Preparer
from torpor.kit.shielded import end_tasks
from torpor.model.capacity import Need, total
from torpor.model.ids import TemplateName
from torpor.storage.frozen import Frozen
from torpor.vmm.driver import Place

_log = structlog.get_logger(__name__)

# A create is answered before the spare for the next one takes its share of the processors.
_AFTER_S = 0.03
# A spare that is not wanted at once has the time to run a command for practice, about a quarter of a second.
_PRACTISE_AFTER_S = 0.5


class Spares:
    """At most one spare for each template, kept for `keep_s` seconds; none at all if that is 0."""

    def __init__(self, preparer: Preparer, admission: Admission, *, keep_s: float) -> None:
        self._preparer, self._admission, self._keep_s = preparer, admission, keep_s
        self._spares: dict[TemplateName, _Spare] = {}
        self._giving_way = asyncio.Lock()

    async def take(self, frozen: Frozen) -> Prepared:
        """Return a machine prepared from a template, which the caller owns.

        It is the spare if that is of this very bake and lives, else a new one. Raises what preparing raises.
        """
        spare = self._spares.pop(frozen.template.name, None)
        ready = await spare.obtain() if spare is not None else None
        if ready is not None:
            if ready.base.template == frozen.template and ready.machine.alive:
                return ready
            await ready.aclose()
        return await self._preparer.prepare(frozen, self._new_place())

    def refill(self, frozen: Frozen) -> None:
        """Begin to prepare a spare of a template unless there is one, or no room for it.

        If that fails, the next create says why.
        """
        name, need = frozen.template.name, need_of_machine(frozen.template)
        there = self._spares.get(name)
        if self._keep_s <= 0 or (there is not None and not there.task.done()):
            return
        self._spares.pop(name, None)
        if self._admission.fits(self.needs(), need):
            preparing = self._preparer.prepare_ahead(frozen, self._new_place())
            self._spares[name] = _Spare(preparing, name, need, self._keep_s)

    def needs(self, besides: TemplateName | None = None) -> Need:
        """Return what the spares take of this host; leave one template's out."""
        return total(spare.need for name, spare in self._spares.items() if name != besides and not spare.task.done())

    async def make_way(self, taking: TemplateName | None) -> None:
        """End spares, the oldest first, until all that is promised has room beside the others.

        That of the template `taking` is left alone: it is about to become somebody's.
        """
        async with self._giving_way:  # who comes second waits until the room is there
            for name in list(self._spares):
                if self._admission.fits(self.needs(besides=taking)):
                    return
                if name != taking:
                    await self.drop(name)

    def _new_place(self) -> Place:
        name = f"spare-{secrets.token_hex(8)}"
        return Place(name, self._preparer.layout.sandboxes / name)

    async def wait_settled(self) -> None:
        """Return when no spare is being prepared."""
        for spare in list(self._spares.values()):
            await spare.settled.wait()

    async def drop(self, template: TemplateName) -> None:
        """End a template's spare, also one that is being prepared."""
        if (spare := self._spares.pop(template, None)) is not None:
            await spare.aclose()

    async def aclose(self) -> None:
        """End all spares."""
        for name in list(self._spares):
            await self.drop(name)


class _Spare:
    """One spare: a task that prepares it, waits until it is wanted, and then returns it; or ends it if it never is.

    `settled` is set once the machine is there, or there will be none.
    """

    def __init__(self, preparing: Coroutine[Any, Any, Prepared], name: TemplateName, need: Need, keep_s: float) -> None:
        self.need = need
        self.settled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._preparing, self._name = preparing, name
        self.task = asyncio.create_task(self._run(keep_s))

    async def obtain(self) -> Prepared | None:
        """Return the machine, as soon as it is ready, for the caller to own; None if there is none to be had."""
        self._wanted.set()
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def _run(self, keep_s: float) -> Prepared | None:
        try:
            await _wait_at_most(self._wanted, _AFTER_S)
            ready = await self._preparing
            self.settled.set()
            if await self._is_wanted(ready, keep_s):
                return ready
            _log.info("a spare was ended, nobody took it", template=self._name)
        except TorporError as error:
            _log.warning("no spare was prepared", template=self._name, error=error.message)
        finally:
            self._preparing.close()  # if its turn did not come; else it has ended
            self.settled.set()
        return None

    async def _is_wanted(self, ready: Prepared, keep_s: float) -> bool:
        """Wait until somebody wants the machine, which practises meanwhile; end it if nobody does."""
        wanted = False
        try:
            if not await _wait_at_most(self._wanted, _PRACTISE_AFTER_S):
                await ready.practise()
            wanted = await _wait_at_most(self._wanted, keep_s)
        finally:
            if not wanted:
                await ready.aclose()
        return wanted

    async def aclose(self) -> None:
        """End it, whether it is ready or not."""
        await end_tasks(self.task)
        if not self.task.cancelled() and self.task.exception() is None and (unused := self.task.result()) is not None:
            await unused.aclose()


async def _wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but not longer than that; return whether it came."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
