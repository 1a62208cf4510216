"""What a request to create asks for, and what of it this server can give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict

from torpor.errors import InvalidRequest, Unsupported
from torpor.model.ids import SnapshotId, TemplateName, is_template_name
from torpor.wire.public import CreateFromSnapshot, TemplateView

_NOT_YET = "this server cannot do it yet"


class CreateWish(CreateFromSnapshot):
    """`CreateFromSnapshot` and the fields that clients may send, which this server knows only to refuse."""

    # "allow" only to see the names that begin with `checkpoint_`; nothing else reads the unknown ones.
    model_config = ConfigDict(strict=True, extra="allow")

    volumes: Any = None
    secrets: Any = None
    idle_timeout_seconds: Any = None
    on_idle: Any = None
    on_crash: Any = None

    def understood(self) -> dict[str, Any]:
        """Return what of the request counts, as JSON values: all but the fields that nobody reads."""
        counted = set(CreateWish.model_fields) - ({"template"} if self.from_snapshot is not None else set())
        return self.model_dump(mode="json", include=counted)


_REFUSED = tuple(name for name in CreateWish.model_fields if name not in CreateFromSnapshot.model_fields)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a sandbox is to come to life from, and at which size: a template's snapshot, unless `snapshot` is given."""

    template: TemplateName
    cpu: int
    memory_mb: int
    disk_gb: int
    snapshot: SnapshotId | None = None

    def __str__(self) -> str:
        return f"template {self.template!r} was baked" if self.snapshot is None else f"{self.snapshot} was taken"


def check_supported(wish: CreateWish) -> None:
    """Raise Unsupported if a wish has a field, not null and not empty, that this server does not serve."""
    checkpoints = [name for name in wish.model_extra or {} if name.startswith("checkpoint_")]
    for name in (*_REFUSED, *checkpoints):
        if getattr(wish, name) not in (None, [], {}, ""):
            raise Unsupported(f"{name} was given, and {_NOT_YET}", hint=f"leave {name} out")
    if wish.network == "internet":
        raise Unsupported("sandboxes have loopback only for now", hint='leave network out, or give "none"')


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
