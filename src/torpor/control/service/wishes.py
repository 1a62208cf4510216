"""What a request to create asks for, and what of it this server can give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationInfo, field_validator

from torpor.control.service.secrets import told_of, values_of
from torpor.errors import InvalidRequest, Unsupported
from torpor.model.ids import SnapshotId, TemplateName, is_template_name
from torpor.model.network import INTERNET, Egress
from torpor.model.sandbox import Care, OnCrash, OnIdle
from torpor.wire.public import CreateFromSnapshot, TemplateView

_NOT_YET = "this server cannot do it yet"


class CreateWish(CreateFromSnapshot):
    """`CreateFromSnapshot` and the fields that clients may send, which this server knows only to refuse."""

    volumes: Any = None

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


_REFUSED = tuple(name for name in CreateWish.model_fields if name not in CreateFromSnapshot.model_fields)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a sandbox is to come to life from, and at which size: a template's snapshot, unless `snapshot` is given.

    `network` is what it may reach unless the wish says otherwise, `secret_names` are those that are in its memory.
    """

    template: TemplateName
    cpu: int
    memory_mb: int
    disk_gb: int
    snapshot: SnapshotId | None = None
    network: Egress = INTERNET
    secret_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"template {self.template!r} was baked" if self.snapshot is None else f"{self.snapshot} was taken"


def check_supported(wish: CreateWish) -> None:
    """Raise Unsupported if a wish has a field, not null and not empty, that this server does not serve."""
    for name in _REFUSED:
        if getattr(wish, name) not in (None, [], {}, ""):
            raise Unsupported(f"{name} was given, and {_NOT_YET}", hint=f"leave {name} out")


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


def template_for(wish: CreateWish, templates: Sequence[TemplateView]) -> TemplateView:
    """Return the template a wish names. Raises InvalidRequest, naming those there are, if there is none."""
    for template in templates:
        if template.name == wish.template:
            return template
    there = ", ".join(sorted(template.name for template in templates))
    name = wish.template if is_template_name(wish.template) else "NAME"
    raise InvalidRequest(
        f"there is no template {wish.template!r}; " + (f"there are: {there}" if there else "none has been built yet"),
        hint=("name one of them, or " if there else "") + f"run `torpor template build {name}`",
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
