"""What a request to create asks for, and what of it this server can give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict

from torpor.errors import InvalidRequest, Unsupported
from torpor.model.ids import is_template_name
from torpor.wire.public import CreateSandbox, TemplateView

_NOT_YET = "this server cannot do it yet"


class CreateWish(CreateSandbox):
    """`CreateSandbox` and the fields that clients of the full API may send, which this server knows only to refuse."""

    # "allow" only to see the names that begin with `checkpoint_`; nothing else reads the unknown ones.
    model_config = ConfigDict(strict=True, extra="allow")

    from_snapshot: Any = None
    volumes: Any = None
    secrets: Any = None
    idle_timeout_seconds: Any = None
    on_idle: Any = None
    on_crash: Any = None

    def understood(self) -> dict[str, Any]:
        """Return what of the request counts, as JSON values: all but the fields that nobody reads."""
        return self.model_dump(mode="json", include=set(CreateWish.model_fields))


_REFUSED = tuple(name for name in CreateWish.model_fields if name not in CreateSandbox.model_fields)


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


def check_size(wish: CreateWish, template: TemplateView) -> None:
    """Raise Unsupported if a wish names another size than its template's: a snapshot comes to life at its own size."""
    for name in ("cpu", "memory_mb", "disk_gb"):
        wanted, given = getattr(wish, name), getattr(template, name)
        if wanted is not None and wanted != given:
            raise Unsupported(
                f"template {template.name!r} was baked with {name}={given}, and a sandbox cannot have {name}={wanted}",
                hint=f"leave {name} out",
            )
