"""Volumes as values, and how they are named in a create."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torpor.errors import InvalidRequest
from torpor.wire.volumes import AttachedView, VolumeView


@dataclass(frozen=True)
class AttachedVolume:
    """A volume that a sandbox has, mounted at `path`.

    `is_copy`: it is a copy of the sandbox's own, as of the snapshot that it came from, and is gone with it.
    """

    name: str
    path: str
    read_only: bool
    is_copy: bool

    @classmethod
    def of(cls, view: AttachedView) -> AttachedVolume:
        """Return the value of what came over the wire."""
        return cls(view.name, view.path, view.read_only, view.is_copy)


@dataclass(frozen=True)
class Holder:
    """A sandbox that has a volume, and where."""

    sandbox_id: str
    path: str
    read_only: bool


@dataclass(frozen=True)
class Volume:
    """A named disk as the server last described it.

    `size_mb` is the room in it, in MiB, `disk_bytes` what it takes up on the server's disk. `attached_to`: the
    sandboxes that have it, in any state. `problem` says what is wrong with it, None if nothing is.
    """

    id: str
    name: str
    size_mb: int
    created_at: datetime
    disk_bytes: int
    attached_to: tuple[Holder, ...]
    problem: str | None

    @classmethod
    def of(cls, view: VolumeView) -> Volume:
        """Return the value of what came over the wire."""
        holders = tuple(Holder(each.sandbox_id, each.path, each.read_only) for each in view.attached_to)
        return cls(view.id, view.name, view.size_mb, view.created_at, view.disk_bytes, holders, view.problem)


# Volumes for a new sandbox: where each is mounted, by name; or a list of names, volumes, and mappings with the keys
# name, path and read_only.
Volumes = Mapping[str, str] | Sequence[str | Volume | Mapping[str, Any]]


def wishes_of(volumes: Volumes | None) -> list[dict[str, Any]] | None:
    """Return volumes as the API has them. Raises InvalidRequest for what names none."""
    if not volumes:
        return None
    if isinstance(volumes, str):
        raise InvalidRequest(f'volumes has to be {{"{volumes}": "/path"}} or ["{volumes}"], not a text')
    if isinstance(volumes, Mapping):
        return [{"name": name, "path": path} for name, path in volumes.items()]
    return [_wish(each) for each in volumes]


def _wish(one: object) -> dict[str, Any]:
    if isinstance(one, str):
        return {"name": one}
    if isinstance(one, Volume):
        return {"name": one.name}
    if isinstance(one, Mapping):
        return dict(one)
    raise InvalidRequest(
        f"{one!r} is not a volume", hint='name it, or say {"name": ..., "path": ..., "read_only": ...}'
    )
