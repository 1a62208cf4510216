"""The JSON of builds of templates (`/v1/templates/build`, `/v1/templates/builds`).

A build's log is a stream of server-sent events: `line` with a line of it, and at last `end` with `end`. Clients that
do not read names of events take data that is `end` for the end, so a line that says just that, but for spaces around
it, has `END_MARK` behind it, which cannot be seen; so has one that has it already, so that it can be taken away again.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from torpor.wire.builds import MAX_DOCKERFILE
from torpor.wire.public import Env, Strict

END = "end"
END_MARK = "\u200b"
MAX_SIZE_MB = 16 * 1024 * 1024


class BuildTemplate(Strict):
    """`POST /v1/templates/build`: make the template `name` of one of these.

    `image_ref`: an OCI image in a registry. `dockerfile`: the text of one; the files of its context, if it has one, are
    sent beside it. `from_snapshot`: a snapshot, where its sandboxes begin. `recipe`: a template that the server has a
    recipe for (an admin's). Or one file that is sent: a `rootfs` (a tar), or an `image` (an archive).

    The disk has at least `size_mb` MiB, rounded up to GiB, and never fewer than its content needs. `build_args` are for
    the ARGs of a Dockerfile. `start_command` runs in the guest before it is frozen, so in every sandbox from its first
    moment. With `force` nothing that was made before is used again. `is_global`: it is for every workspace, which an
    admin's are unless this is false, and a member's cannot be. `kernel` is refused: Torpor brings its own.
    """

    name: str = Field(min_length=1, max_length=63)
    image_ref: str | None = Field(default=None, min_length=1, max_length=512)
    dockerfile: str | None = Field(default=None, min_length=1, max_length=MAX_DOCKERFILE)
    from_snapshot: str | None = Field(default=None, min_length=1, max_length=64)
    recipe: str | None = Field(default=None, min_length=1, max_length=63)
    size_mb: int | None = Field(default=None, ge=1, le=MAX_SIZE_MB)
    cpu: int | None = Field(default=None, ge=1, le=1024)
    memory_mb: int | None = Field(default=None, ge=64, le=MAX_SIZE_MB)
    build_args: Env = Field(default_factory=dict, repr=False)
    start_command: str | None = Field(default=None, max_length=64 * 1024)
    force: bool = False
    is_global: bool | None = None
    kernel: str | None = None


class BuildView(BaseModel):
    """A build as clients see it. `status`: `queued`, `running`, `baking`, then `done` or `failed`, with an `error`.

    One that was `cancelled` has failed, too. `kind`: what it is made from. `position`: which it is in the queue, 1 is
    the next. `size_mb`: what was asked for; `bytes`: what the template takes up on disk, once it is there.
    """

    id: str
    name: str
    status: str
    kind: str
    is_global: bool
    workspace: str
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    cancelled: bool = False
    image_ref: str | None = None
    size_mb: int | None = None
    bytes: int | None = None
    position: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed."""
        return self.status in ("done", "failed")


class BuildList(BaseModel):
    """`GET /v1/templates/builds`: the newest first."""

    items: list[BuildView]


def marked(line: str) -> str:
    """Return a line of a log as it is sent; see the module."""
    return line + END_MARK if line.rstrip(END_MARK).strip() == END else line


def unmarked(line: str) -> str:
    """Return a line of a log as it was before it was sent."""
    is_marked = line.endswith(END_MARK) and line.rstrip(END_MARK).strip() == END
    return line.removesuffix(END_MARK) if is_marked else line
