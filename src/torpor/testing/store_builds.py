"""The builds, their logs and workspaces' templates of the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from torpor.control.store.builds import MOST_ENDED, BuildClaim, other_build_request
from torpor.model.builds import UNDER_WAY, Build, LogLine, OwnTemplate, Status
from torpor.model.ids import BuildId, TemplateName, WorkspaceId


class MemoryBuilds:
    """This part of a store in memory. Each call gives way once, as a real store does."""

    def __init__(self) -> None:
        super().__init__()
        self._builds: dict[BuildId, Build] = {}
        self._build_claims: dict[tuple[WorkspaceId, str], tuple[str, BuildId]] = {}
        self._build_lines: dict[BuildId, list[LogLine]] = {}
        self._templates: dict[tuple[WorkspaceId, TemplateName], OwnTemplate] = {}

    async def add_build(self, build: Build, claim: BuildClaim | None = None) -> Build:
        await asyncio.sleep(0)
        held = None if claim is None else self._build_claims.get((build.workspace, claim.key))
        if claim is not None and held is not None and held[1] in self._builds:
            if held[0] != claim.digest:
                raise other_build_request(claim, held[1])
            return self._builds[held[1]]
        for old in [one for one in self._builds_of(build.workspace) if not one.is_open][MOST_ENDED:]:
            del self._builds[old.id]
            self._build_lines.pop(old.id, None)
        self._builds[build.id] = build
        if claim is not None:
            self._build_claims[build.workspace, claim.key] = (claim.digest, build.id)
        return build

    async def is_build_claimed(self, workspace: WorkspaceId, key: str) -> bool:
        await asyncio.sleep(0)
        held = self._build_claims.get((workspace, key))
        return held is not None and held[1] in self._builds

    async def build(self, build_id: BuildId) -> Build | None:
        await asyncio.sleep(0)
        return self._builds.get(build_id)

    async def builds(self, workspace: WorkspaceId) -> list[Build]:
        await asyncio.sleep(0)
        return self._builds_of(workspace)

    async def open_builds(self) -> list[Build]:
        await asyncio.sleep(0)
        waiting = [one for one in self._builds.values() if one.is_open]
        return sorted(waiting, key=lambda one: (one.created_at, one.id))

    async def served(self) -> dict[WorkspaceId, datetime]:
        await asyncio.sleep(0)
        began: dict[WorkspaceId, datetime] = {}
        for one in self._builds.values():
            if one.started_at is not None:
                began[one.workspace] = max(one.started_at, began.get(one.workspace, one.started_at))
        return began

    async def move_build(
        self, build_id: BuildId, seen: Collection[Status], to: Status, at: datetime, error: str | None = None
    ) -> Build | None:
        await asyncio.sleep(0)
        build = self._builds.get(build_id)
        if build is None or build.status not in seen:
            return None
        moved = replace(build, status=to)
        if to is Status.RUNNING:
            moved = replace(moved, started_at=at)
        elif to is Status.FAILED:
            moved = replace(moved, ended_at=at, error=error, order=None)
        self._builds[build_id] = moved
        return moved

    async def finish_build(
        self, build_id: BuildId, at: datetime, bytes: int, template: OwnTemplate | None
    ) -> Build | None:
        await asyncio.sleep(0)
        build = self._builds.get(build_id)
        if build is None or build.status not in UNDER_WAY:
            return None
        self._builds[build_id] = replace(build, status=Status.DONE, ended_at=at, order=None, bytes=bytes)
        if template is not None:
            self._templates[template.workspace, template.name] = template
        return self._builds[build_id]

    async def add_lines(self, build_id: BuildId, lines: Sequence[LogLine], keep_from: int) -> None:
        await asyncio.sleep(0)
        if build_id in self._builds:
            kept = [*self._build_lines.get(build_id, []), *lines]
            self._build_lines[build_id] = [line for line in kept if line.number >= keep_from]

    async def lines(self, build_id: BuildId, after: int, limit: int) -> list[LogLine]:
        await asyncio.sleep(0)
        return [line for line in self._build_lines.get(build_id, []) if line.number > after][:limit]

    async def own_template(self, workspace: WorkspaceId, name: TemplateName) -> OwnTemplate | None:
        await asyncio.sleep(0)
        return self._templates.get((workspace, name))

    async def own_templates(self, workspace: WorkspaceId | None) -> list[OwnTemplate]:
        await asyncio.sleep(0)
        found = [one for one in self._templates.values() if workspace in (None, one.workspace)]
        return sorted(found, key=lambda one: (one.name, one.workspace))

    async def remove_own_template(self, workspace: WorkspaceId, name: TemplateName) -> OwnTemplate | None:
        await asyncio.sleep(0)
        return self._templates.pop((workspace, name), None)

    def _builds_of(self, workspace: WorkspaceId) -> list[Build]:
        own = [one for one in self._builds.values() if one.workspace == workspace]
        return sorted(own, key=lambda one: (one.created_at, one.id), reverse=True)
