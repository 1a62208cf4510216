"""What the control plane remembers of builds and of workspaces' templates: this part of the store's contract."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from torpor.errors import Conflict
from torpor.model.builds import Build, LogLine, OwnTemplate, Status
from torpor.model.ids import BuildId, TemplateName, WorkspaceId

# Builds of one workspace that have ended, and are remembered with their logs.
MOST_ENDED = 100


@dataclass(frozen=True, slots=True)
class BuildClaim:
    """An idempotency key that a build was asked for with, and the digest of that request."""

    key: str
    digest: str


def other_build_request(claim: BuildClaim, holder: BuildId) -> Conflict:
    """Return the refusal of an idempotency key that came with another request before."""
    return Conflict(
        f"the idempotency key {claim.key!r} was used for another request, which made the build {holder}",
        hint="use a fresh key for each new request",
    )


class BuildStore(Protocol):
    """Builds, their logs, and workspaces' templates. What holds of every call of the store holds of these."""

    async def add_build(self, build: Build, claim: BuildClaim | None = None) -> Build:
        """Record a queued build, with its claim, and return it; or return the earlier one that holds the claim.

        In the second case nothing is recorded. Of the workspace's builds that have ended, all but the newest MOST_ENDED
        are dropped. Raises Conflict if the claim is held with another digest.
        """

    async def is_build_claimed(self, workspace: WorkspaceId, key: str) -> bool:
        """Tell whether a build of the workspace holds an idempotency key."""

    async def build(self, build_id: BuildId) -> Build | None:
        """Return a build, None if it is not known."""

    async def builds(self, workspace: WorkspaceId) -> list[Build]:
        """Return the builds of a workspace, the newest first."""

    async def open_builds(self) -> list[Build]:
        """Return every build of every workspace that has not ended, the oldest first."""

    async def served(self) -> dict[WorkspaceId, datetime]:
        """Return when a build of each workspace began last, of those builds that are remembered."""

    async def move_build(
        self, build_id: BuildId, seen: Collection[Status], to: Status, at: datetime, error: str | None = None
    ) -> Build | None:
        """Change the status to `to` if it is one of `seen`, and return the build; else return None.

        With `running` it begins, with `failed` it ends, by `error`, and its order is forgotten.
        """

    async def finish_build(
        self, build_id: BuildId, at: datetime, bytes: int, template: OwnTemplate | None
    ) -> Build | None:
        """End a build that is under way well, and with it, at once, let `template` be its workspace's of that name.

        Returns None, changing nothing, if it is not under way.
        """

    async def add_lines(self, build_id: BuildId, lines: Sequence[LogLine], keep_from: int) -> None:
        """Append lines to a build's log and drop those before a number. As durable as `note`."""

    async def lines(self, build_id: BuildId, after: int, limit: int) -> list[LogLine]:
        """Return at most `limit` lines of a build's log behind a number, in their order."""

    async def own_template(self, workspace: WorkspaceId, name: TemplateName) -> OwnTemplate | None:
        """Return the template of this name that is the workspace's own, None if there is none."""

    async def own_templates(self, workspace: WorkspaceId | None) -> list[OwnTemplate]:
        """Return the templates that are a workspace's own, or (None) any workspace's, by name."""

    async def remove_own_template(self, workspace: WorkspaceId, name: TemplateName) -> OwnTemplate | None:
        """Drop a template of a workspace and return it, None if there is none."""


def origin_of(kind: str, image_ref: str | None) -> str:
    """Return what a template was made from, for people."""
    words = {
        "image": f"image {image_ref}",
        "archive": "an image archive",
        "dockerfile": "a Dockerfile",
        "rootfs": "a root file system",
        "snapshot": "a snapshot",
        "recipe": "a recipe",
    }
    return words.get(kind, kind)
