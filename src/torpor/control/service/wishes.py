"""What a request to create asks for, and what of it this server can give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationInfo, field_validator

from torpor.control.service.secrets import told_of, values_of
from torpor.errors import InvalidRequest, Unsupported
from torpor.model.ids import SnapshotId, TemplateName
from torpor.model.network import INTERNET, Egress
from torpor.model.sandbox import Care, OnCrash, OnIdle
from torpor.model.volume import Attachment
from torpor.wire.public import CreateFromSnapshot


class CreateWish(CreateFromSnapshot):
    """`CreateFromSnapshot`, with null for what is left out, as clients send it."""

    @field_validator("on_idle", "on_crash", "checkpoint_keep", mode="before")
    @classmethod
    def _null_is_left_out(cls, value: object, info: ValidationInfo) -> object:
        return cls.model_fields[str(info.field_name)].default if value is None else value

    def understood(self) -> dict[str, Any]:
        """Return what of the request counts, as JSON values: all but the fields that nobody reads, and `hidden`."""
        counted = set(CreateWish.model_fields) - ({"template"} if self.from_snapshot is not None else set())
        return self.model_dump(mode="json", include=counted) | {"env": {}, "secrets": told_of(self.secrets)}

    def hidden(self) -> dict[str, Any]:
        """Return what of the request counts and is nobody's business, as JSON values."""
        given = {"env": self.env, "secrets": values_of(self.secrets)}
        return {name: values for name, values in given.items() if values}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a sandbox is to come to life from, and at which size: a template's snapshot, unless `snapshot` is given.

    `network` is what it may reach unless the wish says otherwise, `secret_names` are those that are in its memory.
    `host_name` is what the template is called on its host; None for a snapshot. `volumes`: the
    copies of volumes that it has.
    """

    template: TemplateName
    cpu: int
    memory_mb: int
    disk_gb: int
    snapshot: SnapshotId | None = None
    network: Egress = INTERNET
    secret_names: tuple[str, ...] = ()
    host_name: TemplateName | None = None
    volumes: tuple[Attachment, ...] = ()

    def __str__(self) -> str:
        return f"template {self.template!r} was baked" if self.snapshot is None else f"{self.snapshot} was taken"


def check_volumes(wish: CreateWish) -> None:
    """Raise InvalidRequest if a wish names volumes for what comes from a snapshot, which has those that it had."""
    if wish.from_snapshot is not None and wish.volumes:
        raise InvalidRequest(
            "volumes are attached to a sandbox of a template; of those that a snapshot's sandbox had, there are copies",
            hint="leave volumes out",
        )


def care_of(wish: CreateWish) -> Care:
    """Return what a wish asks the server to do for the sandbox of its own accord."""
    return Care(
        idle_timeout_seconds=wish.idle_timeout_seconds,
        on_idle=OnIdle(wish.on_idle),
        on_crash=OnCrash(wish.on_crash),
        checkpoint_every_seconds=wish.checkpoint_every_seconds,
        checkpoint_every_execs=wish.checkpoint_every_execs,
        checkpoint_keep=wish.checkpoint_keep,
    )


def check_size(wish: CreateWish, origin: Origin) -> None:
    """Raise Unsupported if a wish names another size than its origin's: a snapshot comes to life at its own size."""
    for name in ("cpu", "memory_mb", "disk_gb"):
        wanted, given = getattr(wish, name), getattr(origin, name)
        if wanted is not None and wanted != given:
            raise Unsupported(
                f"{origin} with {name}={given}, and a sandbox of it cannot have {name}={wanted}",
                hint=f"leave {name} out",
            )
