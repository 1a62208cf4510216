"""`/v1/templates`: what a sandbox can be made from."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from torpor import errors
from torpor.control.api.deps import TheCaller, ThePlane, Workspace
from torpor.control.api.problems import refusals
from torpor.control.service import templates
from torpor.wire.public import TemplateList, TemplateView

router = APIRouter(prefix="/v1/templates", tags=["templates"])

_ONE = refusals(errors.NotFound, errors.Conflict)
Name = Annotated[str, Path(description="a template's name", max_length=63)]


@router.get("", responses=refusals())
async def list_templates(plane: ThePlane, workspace: Workspace) -> TemplateList:
    """List the templates that the caller can use: its workspace's own, and everybody's."""
    return TemplateList(items=await templates.list_templates(plane, workspace))


@router.get("/{name}", responses=_ONE)
async def show_template(plane: ThePlane, workspace: Workspace, name: Name) -> TemplateView:
    """Show one template: the workspace's own of this name, else everybody's."""
    return await templates.show_template(plane, workspace, name)


@router.delete("/{name}", status_code=204, responses=_ONE)
async def remove_template(plane: ThePlane, caller: TheCaller, name: Name) -> None:
    """Remove a template; sandboxes made from it live on. For one that is everybody's this takes an admin's key."""
    await templates.remove_template(plane, caller, name)
