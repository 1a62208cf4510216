"""Volumes: named disks that outlive the sandboxes that use them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from torpor.model.ids import VolumeId, WorkspaceId

LEAST_MB, MOST_MB = 16, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Volume:
    """What is recorded of a volume. One that is not `ready` is being made or removed, or was when a server died."""

    id: VolumeId
    workspace: WorkspaceId
    name: str
    size_mb: int
    created_at: datetime
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Attachment:
    """A volume in a sandbox, mounted at `path`. Its place among them is the bay of the machine that it is in.

    `is_copy`: what the sandbox has is its own, and is gone with it: a copy of the volume as of the snapshot that the
    sandbox came from. Otherwise it is the volume, or one that nobody can write to meanwhile, and `read_only`.
    """

    volume: VolumeId
    name: str
    path: str
    size_mb: int
    read_only: bool = False
    is_copy: bool = False

    @property
    def writes(self) -> bool:
        """Whether what the sandbox writes there is in the volume."""
        return not (self.read_only or self.is_copy)


def copies(attachments: Iterable[Attachment], but: Collection[VolumeId] = ()) -> tuple[Attachment, ...]:
    """Return the attachments as copies, but for those volumes, which are what they are."""
    return tuple(replace(each, is_copy=each.is_copy or each.volume not in but) for each in attachments)


def megabytes_of_copies(attachments: Sequence[Attachment]) -> int:
    """Return to how many MiB the files can grow that a sandbox has of its own for its volumes."""
    return sum(each.size_mb for each in attachments if not each.writes)
