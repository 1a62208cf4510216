"""The builder: has the builds that are queued built by the host, one at a time, workspaces taking turns.

The queue is the records. A build whose outcome cannot be known, because the server or the host was cut off, has failed:
what it may have made is cleared away, or is replaced by the next build of the name.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import structlog

from torpor.control.host_builds import HostBuilds
from torpor.control.service.build_log import BuildLog
from torpor.control.service.noter import Noter
from torpor.control.service.passage import Bells
from torpor.control.service.shelf import Shelf
from torpor.control.store.builds import origin_of
from torpor.control.store.contract import Store
from torpor.errors import Busy, HostUnreachable, OutcomeUnknown, TorporError
from torpor.kit.clock import Clock
from torpor.kit.shielded import end_tasks, shielded
from torpor.model.builds import CANCELLED, OPEN, UNDER_WAY, Build, OwnTemplate, Status, in_turn
from torpor.model.ids import BuildId, SandboxId, SnapshotId, WorkspaceId
from torpor.wire.builds import BuildOrder, SnapshotSource
from torpor.wire.errors import from_body
from torpor.wire.public import TemplateView

_log = structlog.get_logger("torpor.control")

# A host that builds for somebody else, or is away, is asked again after this many seconds.
RETRY_S = 5.0
_CUT_OFF = "the server stopped while the template was being built; build it again"
_FILES_GONE = "the server stopped before the build began, and the files that were sent for it are gone; send it again"
_NO_SANDBOX = SandboxId("")


@dataclass(frozen=True, slots=True)
class _OfNoSandbox:
    """Whom an event is about that is about no sandbox."""

    workspace: WorkspaceId
    id: SandboxId = _NO_SANDBOX


class Builder:
    """Runs what is queued, and cancels it. See the module."""

    def __init__(
        self, store: Store, host: HostBuilds, clock: Clock, bells: Bells, *, noter: Noter, shelf: Shelf
    ) -> None:
        self._store, self._host, self._clock = store, host, clock
        self._bells, self._noter, self._shelf = bells, noter, shelf
        self._current: tuple[BuildId, asyncio.Task[TemplateView]] | None = None
        self._cancelled: set[BuildId] = set()

    async def begin(self) -> None:
        """Take in what an earlier server left: what it was building has failed, and what waits without its files."""
        for build in await self._store.open_builds():
            if build.status in UNDER_WAY:
                await self._fail(build, _CUT_OFF)
            elif build.has_files:
                await self._fail(build, _FILES_GONE)

    async def run_next(self) -> bool:
        """Run the build whose turn it is to its end, and tell whether there was one.

        Raises Busy and HostUnreachable if the host cannot build now: then it waits on in its place.
        """
        waiting = await self._queue()
        if not waiting:
            return False
        await self._run(waiting[0])
        return True

    async def positions(self) -> dict[BuildId, int]:
        """Return which place in the queue each build has that waits, the next one 1."""
        return {build.id: place for place, build in enumerate(await self._queue(), start=1)}

    async def _queue(self) -> list[Build]:
        waiting = [one for one in await self._store.open_builds() if one.status is Status.QUEUED]
        return list(in_turn(waiting, await self._store.served()))

    async def cancel(self, build_id: BuildId) -> None:
        """End a build, whether it waits or runs, and return when it has ended; fine if it has."""
        self._cancelled.add(build_id)
        try:
            if self._current is not None and self._current[0] == build_id:
                self._current[1].cancel()
            moved = await self._settle(build_id, {Status.QUEUED}, CANCELLED)
            if moved is not None:
                with suppress(TorporError):  # the host sweeps what it has of builds that it was not asked to run
                    await self._host.remove_build(build_id)
            await self._wait_over(build_id)
        finally:
            self._cancelled.discard(build_id)

    async def _wait_over(self, build_id: BuildId) -> None:
        while True:
            coming = self._bells.builds.coming
            build = await self._store.build(build_id)
            if build is None or not build.is_open:
                return
            await coming.wait()

    async def _run(self, build: Build) -> None:
        started = await self._store.move_build(build.id, {Status.QUEUED}, Status.RUNNING, self._clock.now())
        if started is None:  # cancelled just now
            return
        self._bells.builds.ring()
        making = asyncio.create_task(self._make(started))
        self._current = (build.id, making)
        if build.id in self._cancelled:
            making.cancel()
        try:
            await asyncio.wait([making])
        finally:  # a server that stops hangs up, which ends the build on the host; the next start records that
            self._current = None
            await end_tasks(making)
        await shielded(self._conclude(started, making))

    async def _make(self, build: Build) -> TemplateView:
        """Return the template that the host makes. Raises what the host raises, or says that the build failed by."""
        order = BuildOrder.model_validate_json(build.order or "")
        owns = await self._store.own_templates(build.workspace)
        order = order.model_copy(update={"names": {own.name: own.host_name for own in owns}})
        snapshot = SnapshotId(order.source.snapshot) if isinstance(order.source, SnapshotSource) else None
        with self._shelf.using(snapshot):
            return await self._logged(build, order)

    async def _logged(self, build: Build, order: BuildOrder) -> TemplateView:
        async with BuildLog(self._store, build.id, self._bells.builds).kept() as log:
            try:
                return await self._followed(build, order, log)
            except (Busy, HostUnreachable):
                raise
            except TorporError as error:
                await log.say(f"error: {_told(build, error.message)}")
                raise
            except asyncio.CancelledError:
                await log.say(CANCELLED)
                raise

    async def _followed(self, build: Build, order: BuildOrder, log: BuildLog) -> TemplateView:
        is_baking = False
        async with self._host.build(build.id, order) as news:
            async for new in news:
                if new.stage == "baking" and not is_baking:
                    is_baking = True
                    await self._store.move_build(build.id, {Status.RUNNING}, Status.BAKING, self._clock.now())
                    self._bells.builds.ring()
                if new.line is not None:
                    await log.say(_told(build, new.line))
                if new.error is not None:
                    raise from_body(new.error, 500)
                if new.template is not None:
                    return new.template
        raise OutcomeUnknown("the host's answer ended before the build did")

    async def _conclude(self, build: Build, made: asyncio.Task[TemplateView]) -> None:
        if made.cancelled():
            await self._fail(build, CANCELLED if build.id in self._cancelled else _CUT_OFF)
            return
        error = made.exception()
        if isinstance(error, Busy | HostUnreachable):
            if build.id not in self._cancelled:
                await self._store.move_build(build.id, {Status.RUNNING}, Status.QUEUED, self._clock.now())
                self._bells.builds.ring()
                raise error
            await self._fail(build, CANCELLED)
        elif error is not None:
            sentence = (
                error.message if isinstance(error, TorporError) else "the server failed in a way it does not know"
            )
            hint = f" ({error.hint})" if isinstance(error, TorporError) and error.hint else ""
            await self._fail(build, _told(build, sentence + hint))
            if not isinstance(error, TorporError):
                raise error
        else:
            await self._finish(build, made.result())

    async def _finish(self, build: Build, template: TemplateView) -> None:
        now = self._clock.now()
        own = None
        if not build.is_global:
            origin = origin_of(build.kind, build.image_ref)
            own = OwnTemplate(build.workspace, build.name, build.host_name, origin, now)
        await self._store.finish_build(build.id, now, template.size_bytes, own)
        _log.info("template built", build=build.id, template=build.name, workspace=build.workspace)
        self._tell(build, "template.built", is_global=build.is_global)

    async def _fail(self, build: Build, error: str) -> None:
        await self._settle(build.id, OPEN, error)
        _log.info("template not built", build=build.id, template=build.name, error=error)
        self._tell(build, "template.failed", error=error)

    async def _settle(self, build_id: BuildId, seen: frozenset[Status] | set[Status], error: str) -> Build | None:
        moved = await self._store.move_build(build_id, seen, Status.FAILED, self._clock.now(), error)
        self._bells.builds.ring()
        return moved

    def _tell(self, build: Build, event: str, **data: object) -> None:
        whom = _OfNoSandbox(build.workspace)
        self._noter.note(event, whom, template=build.name, build_id=build.id, kind=build.kind, **data)
        self._bells.builds.ring()


def _told(build: Build, text: str) -> str:
    """Return what a host says with the name by which the template is known."""
    return text.replace(build.host_name, build.name)
