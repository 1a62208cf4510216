"""The templates on the host."""

from __future__ import annotations

from torpor.control.service.plane import Plane
from torpor.errors import NotFound
from torpor.model.ids import is_template_name
from torpor.wire.public import TemplateView


async def list_templates(plane: Plane) -> list[TemplateView]:
    """Return them all."""
    return await plane.host.templates()


async def show_template(plane: Plane, name: str) -> TemplateView:
    """Return one. Raises NotFound."""
    for template in await plane.host.templates():
        if template.name == name:
            return template
    raise _unknown(name)


async def remove_template(plane: Plane, name: str) -> None:
    """Remove one. Raises NotFound, and what the host raises."""
    if not is_template_name(name):
        raise _unknown(name)
    await plane.host.remove_template(name)


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no template {name!r}", hint="torpor template list shows those there are")
