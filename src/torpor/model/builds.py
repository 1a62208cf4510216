"""Builds of templates, and the templates that belong to workspaces: values, and whose build is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from torpor.model.ids import BuildId, TemplateName, WorkspaceId, is_template_name

# What a template of a workspace is called on its host, where names are everybody's.
_PRIVATE = "tpl-"
# What stands in paths of the API in the place of a template's name, and what FROM calls an empty root file system.
_TAKEN = frozenset({"build", "builds", "scratch"})
# So is the error of a build that was cancelled. Its status is `failed`: clients know no other end than that and `done`.
CANCELLED = "cancelled"


class Status(StrEnum):
    """How far a build has come. `running`: its root file system is made; `baking`: its guest is booted and frozen."""

    QUEUED = "queued"
    RUNNING = "running"
    BAKING = "baking"
    DONE = "done"
    FAILED = "failed"


# Where a build can still come to something.
OPEN = frozenset({Status.QUEUED, Status.RUNNING, Status.BAKING})
UNDER_WAY = frozenset({Status.RUNNING, Status.BAKING})


@dataclass(frozen=True, slots=True)
class Build:
    """A build of the template `name`, for everybody (`is_global`) or for its workspace alone.

    `kind`: what it is made from, such as `image`, whose name is then `image_ref`. `order`: what its host is told, as
    JSON, until it has ended; with `has_files` the host was sent files beside it. `size_mb`: what was asked for;
    `bytes`: what the template takes up, once it is there.
    """

    id: BuildId
    workspace: WorkspaceId
    name: TemplateName
    is_global: bool
    kind: str
    created_at: datetime
    order: str | None
    has_files: bool = False
    image_ref: str | None = None
    size_mb: int | None = None
    status: Status = Status.QUEUED
    error: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    bytes: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can still come to something."""
        return self.status in OPEN

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.status is Status.FAILED and self.error == CANCELLED

    @property
    def host_name(self) -> TemplateName:
        """What its template is called on the host: a global one by its name, any other by a name of this build's."""
        return self.name if self.is_global else TemplateName(_PRIVATE + self.id.partition("-")[2])


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A template of a workspace: on its host it is `host_name`. `origin`: what it was made from, for people."""

    workspace: WorkspaceId
    name: TemplateName
    host_name: TemplateName
    origin: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a build's log: printable text, with its number, which grows."""

    number: int
    text: str


def is_private(host_name: str) -> bool:
    """Tell whether a host's template belongs to a workspace, by its name."""
    return host_name.startswith(_PRIVATE)


def may_name_template(name: str) -> bool:
    """Tell whether somebody may call a template so."""
    return is_template_name(name) and name not in _TAKEN and not is_private(name)


def in_turn(queued: Sequence[Build], served: Mapping[WorkspaceId, datetime]) -> Iterator[Build]:
    """Yield queued builds in the order in which they will run.

    Workspaces take turns, the one that had none for the longest first, and each has its oldest build run. `served`:
    when a build of each began last.
    """
    lines: dict[WorkspaceId, deque[Build]] = {}
    for build in sorted(queued, key=lambda one: (one.created_at, one.id)):
        lines.setdefault(build.workspace, deque()).append(build)
    never = [workspace for workspace in lines if workspace not in served]
    waiting = deque([*never, *sorted(lines.keys() & served.keys(), key=lambda one: served[one])])
    while waiting:
        workspace = waiting.popleft()
        yield lines[workspace].popleft()
        if lines[workspace]:
            waiting.append(workspace)
