"""Templates: everybody's, which are the host's own, and those of workspaces, which the records say whose they are.

A workspace sees its own and, where it has none of the name, everybody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog

from torpor.control.service.plane import Plane
from torpor.errors import Busy, Forbidden, InvalidRequest, NotFound, TorporError
from torpor.model.access import Caller
from torpor.model.builds import OwnTemplate, is_private
from torpor.model.ids import TemplateName, WorkspaceId, is_template_name
from torpor.wire.public import TemplateView

_log = structlog.get_logger("torpor.control")


@dataclass(frozen=True, slots=True)
class Found:
    """A template as its users see it, and what it is called on its host."""

    view: TemplateView
    host_name: TemplateName


@contextmanager
def naming(host_name: str | None, name: str) -> Iterator[None]:
    """Let what the host says of a template in the block speak of the name that users know.

    One that its host does not have any more was replaced or removed meanwhile: Busy.
    """
    try:
        yield
    except TorporError as error:
        if host_name is None or not is_private(host_name):
            raise
        if isinstance(error, NotFound) and host_name in error.message:  # and not a volume's file
            raise Busy(f"template {name!r} was replaced or removed just now", hint="try again") from error
        error.message = error.message.replace(host_name, name)
        error.hint = error.hint and error.hint.replace(host_name, name)
        raise


async def visible(plane: Plane, workspace: WorkspaceId) -> dict[str, Found]:
    """Return the templates that a workspace can use, by the names it knows them by."""
    there = {template.name: template for template in await plane.host.templates()}
    found = {
        name: Found(template, TemplateName(name)) for name, template in there.items() if not is_private(template.name)
    }
    for own in await plane.store.own_templates(workspace):
        if (template := there.get(own.host_name)) is not None:
            found[own.name] = Found(_seen(own, template), own.host_name)
    return found


async def list_templates(plane: Plane, workspace: WorkspaceId) -> list[TemplateView]:
    """Return those that a workspace can use, by name."""
    found = await visible(plane, workspace)
    return [found[name].view for name in sorted(found)]


async def show_template(plane: Plane, workspace: WorkspaceId, name: str) -> TemplateView:
    """Return one. Raises NotFound."""
    found = (await visible(plane, workspace)).get(name)
    if found is None:
        raise _unknown(name)
    return found.view


async def template_for(plane: Plane, workspace: WorkspaceId, name: str) -> Found:
    """Return the template that a sandbox is to be made of. Raises InvalidRequest, naming those there are."""
    found = await visible(plane, workspace)
    if name in found:
        return found[name]
    there = ", ".join(sorted(found))
    named = name if is_template_name(name) else "NAME"
    raise InvalidRequest(
        f"there is no template {name!r}; " + (f"there are: {there}" if there else "none has been built yet"),
        hint=("name one of them, or " if there else "") + f"run `torpor template build {named}`",
    )


async def remove_template(plane: Plane, caller: Caller, name: str) -> None:
    """Remove a template: the workspace's own, or everybody's. Raises NotFound, Forbidden, and what the host raises."""
    if not is_template_name(name) or is_private(name):
        raise _unknown(name)
    own = await plane.store.remove_own_template(caller.workspace, TemplateName(name))
    if own is not None:
        await tidy_templates(plane)
        return
    if not caller.is_admin:
        await show_template(plane, caller.workspace, name)
        raise Forbidden(f"template {name!r} is everybody's, and only an admin's key may remove it")
    await plane.host.remove_template(name)


async def tidy_templates(plane: Plane) -> None:
    """Remove the templates that belonged to a workspace and are nobody's any more, as far as nobody uses them now.

    What cannot be removed now stays for the next time.
    """
    try:
        # In this order: a template is on record before its build is over.
        there = [template.name for template in await plane.host.templates() if is_private(template.name)]
        wanted = {build.host_name for build in await plane.store.open_builds()}
        wanted |= {own.host_name for own in await plane.store.own_templates(None)}
        for name in there:
            if name not in wanted and name not in plane.templates:
                with suppress(NotFound):
                    await plane.host.remove_template(name)
    except TorporError as error:
        _log.warning("templates not tidied", error=error.message)


def _seen(own: OwnTemplate, template: TemplateView) -> TemplateView:
    told = {"name": own.name, "is_global": False, "workspace": own.workspace, "description": f"made from {own.origin}"}
    return template.model_copy(update=told)


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no template {name!r}", hint="torpor template list shows those there are")
