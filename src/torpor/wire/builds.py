"""Builds of templates on a host (`/host/v1/builds`): part of the interface between the control plane and a host agent.

| request | answer |
|---|---|
| `PUT /host/v1/builds/{id}/files?path=` raw bytes | 200 Stored: one file that the build needs, kept until it has run |
| `POST /host/v1/builds/{id}` BuildOrder | 200 `application/x-ndjson`, one News a line, until the build has ended |
| `DELETE /host/v1/builds/{id}` | 204: nothing of it is left, also if there was nothing |

One build runs at a time; a second `POST` is Busy. Hanging up on a `POST` ends the build, and nothing of it is left but
what other builds may use again (images by their digest). What a host has of builds when it starts is swept.

Paths of files are as `is_file_path` has them: `context/<path>` for a Dockerfile's build context, and `rootfs.tar`,
`image.tar`. Refused with InvalidRequest, and OutOfSpace beyond what may be held for one build. The header
`X-File-Mode` of a file of a context gives its mode, in octal (0644 where it is missing).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from torpor.wire.errors import ErrorBody
from torpor.wire.public import TemplateView

MAX_CONTEXT_BYTES = 256 * 1024 * 1024
MAX_CONTEXT_FILES = 10_000
# A root file system or an image, as one archive.
MAX_ARCHIVE_BYTES = 16 * 1024 * 1024 * 1024
MAX_DOCKERFILE = 256 * 1024
# A disk has no fewer GiB than this where nothing is said of it.
USUAL_DISK_GB = 4
_MAX_PATH_BYTES = 1024


class RecipeSource(BaseModel):
    """One of the templates that Torpor has a recipe for, such as `base`."""

    kind: Literal["recipe"] = "recipe"
    recipe: str


class ImageSource(BaseModel):
    """An OCI or Docker image in a registry, such as `registry.example.com/team/tools:1`, by tag or digest."""

    kind: Literal["image"] = "image"
    reference: str = Field(min_length=1, max_length=512)


class ArchiveSource(BaseModel):
    """An image in one file, sent before as `image.tar`: an OCI layout or what `docker save` writes."""

    kind: Literal["archive"] = "archive"


class DockerfileSource(BaseModel):
    """A Dockerfile, with its context sent before below `context/`. `arguments` are for its ARGs."""

    kind: Literal["dockerfile"] = "dockerfile"
    dockerfile: str = Field(min_length=1, max_length=MAX_DOCKERFILE)
    arguments: dict[str, str] = Field(default_factory=dict)


class RootfsSource(BaseModel):
    """A root file system, sent before as `rootfs.tar` (plain, or compressed with gzip, xz or zstd)."""

    kind: Literal["rootfs"] = "rootfs"


class SnapshotSource(BaseModel):
    """A snapshot on this host: the template's sandboxes begin where it was taken."""

    kind: Literal["snapshot"] = "snapshot"
    snapshot: str


Source = Annotated[
    RecipeSource | ImageSource | ArchiveSource | DockerfileSource | RootfsSource | SnapshotSource,
    Field(discriminator="kind"),
]


class BuildOrder(BaseModel):
    """Make the template that this host calls `template` (an older one of the name is replaced when all is done).

    `cpu`, `memory_mb` and `disk_gb`: None is the source's own or the host's default; a snapshot's cannot be changed. A
    disk is never smaller than what it has to hold, or than that which it is made on.
    `start_command` runs in the guest, by its shell, before it is frozen, and so in every sandbox from the first moment
    (None: what the Dockerfile says, "": nothing). With `force` nothing made before is used again. `names`: what FROM
    may call templates of this host beside their own names, each with the host's name of it; it comes before the latter.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    template: str
    source: Source
    cpu: int | None = Field(default=None, ge=1)
    memory_mb: int | None = Field(default=None, ge=64)
    disk_gb: int | None = Field(default=None, ge=1)
    start_command: str | None = Field(default=None, max_length=64 * 1024)
    force: bool = False
    names: dict[str, str] = Field(default_factory=dict)


class News(BaseModel):
    """What is new of a build. The last of them has a `template` (done) or an `error` (failed); the others have a line.

    `stage`: `running` while its root file system is made, `baking` while the guest is booted and frozen.
    """

    stage: Literal["running", "baking"]
    line: str | None = None
    template: TemplateView | None = None
    error: ErrorBody | None = None


class Stored(BaseModel):
    """How many bytes a file that was sent has."""

    bytes: int


def is_file_path(path: str) -> bool:
    """Tell whether a build may have a file of this path: relative, of at most 1024 bytes, without empty, `.` and `..`
    parts, `rootfs.tar`, `image.tar`, or below `context/`.
    """
    parts = path.split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in parts):
        return False
    if len(path.encode(errors="surrogatepass")) > _MAX_PATH_BYTES:
        return False
    return path in {"rootfs.tar", "image.tar"} or (parts[0] == "context" and len(parts) > 1)
