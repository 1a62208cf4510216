"""The JSON of volumes in the public API."""

from __future__ import annotations

import posixpath
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from torpor.model.volume import LEAST_MB, MOST_MB

MAX_VOLUMES = 16
_MAX_PATH = 1024
# What the guest's kernel and agent have their own file systems at.
_RESERVED = ("/proc", "/sys", "/dev", "/run")

VolumeName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


def _is_usable(path: str) -> str:
    if not path.startswith("/") or "\0" in path or len(path.encode(errors="replace")) > _MAX_PATH:
        raise ValueError(f"path has to be an absolute path of at most {_MAX_PATH} bytes in the sandbox")
    if path != path.encode(errors="replace").decode():
        raise ValueError("path has half a surrogate pair in it")
    plain = posixpath.normpath(path)
    if plain.startswith("//"):
        plain = plain[1:]
    if plain == "/" or is_within(plain, _RESERVED):
        raise ValueError(f"a volume cannot be mounted at {plain}, which is the system's")
    return plain


def is_within(path: str, folders: tuple[str, ...]) -> bool:
    """Tell whether a plain path is one of some folders, or lies below one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


VolumePath = Annotated[str, AfterValidator(_is_usable)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class CreateVolume(_Strict):
    """`POST /v1/volumes`: a new one, with an empty ext4 file system, and room for `size_mb` MiB in all."""

    name: VolumeName
    size_mb: int = Field(ge=LEAST_MB, le=MOST_MB)


class VolumeWish(_Strict):
    """A volume for a new sandbox: mounted at `path`, which is `/volumes/<name>` if it is not given.

    One sandbox may write to a volume, or any number may read it, which is then as it was when each was made.
    """

    name: VolumeName
    read_only: bool = False
    path: VolumePath | None = None


class AttachedView(BaseModel):
    """A volume that a sandbox has. `is_copy`: it is a copy of the sandbox's own, which is gone with it."""

    name: str
    path: str
    read_only: bool = False
    is_copy: bool = False


class HolderView(BaseModel):
    """A sandbox that has a volume."""

    sandbox_id: str
    path: str
    read_only: bool = False


class VolumeView(BaseModel):
    """A volume as clients see it.

    `disk_bytes`: what it takes up on the disk of its host. `attached_to`: the sandboxes that have it, in any state.
    `problem` says what is wrong with it; null if nothing is.
    """

    id: str
    name: str
    size_mb: int
    created_at: datetime
    disk_bytes: int = 0
    attached_to: list[HolderView] = Field(default_factory=list)
    problem: str | None = None


class VolumeList(BaseModel):
    """`GET /v1/volumes`, by name."""

    items: list[VolumeView]
