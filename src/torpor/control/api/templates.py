"""`/v1/templates`: what a sandbox can be made from."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from torpor import errors
from torpor.control.api.deps import AnAdmin, ThePlane
from torpor.control.api.problems import refusals
from torpor.control.service import templates
from torpor.wire.public import TemplateList, TemplateView

router = APIRouter(prefix="/v1/templates", tags=["templates"])

_ONE = refusals(errors.NotFound, errors.Conflict)
Name = Annotated[str, Path(description="a template's name", max_length=63)]


@router.get("", responses=refusals())
async def list_templates(plane: ThePlane) -> TemplateList:
    """List the templates that have been built."""
    return TemplateList(items=await templates.list_templates(plane))


@router.get("/{name}", responses=_ONE)
async def show_template(plane: ThePlane, name: Name) -> TemplateView:
    """Show one template."""
    return await templates.show_template(plane, name)


@router.delete("/{name}", status_code=204, responses=_ONE)
async def remove_template(plane: ThePlane, admin: AnAdmin, name: Name) -> None:
    """Remove a template; sandboxes made from it live on. Templates are everybody's, so this takes an admin's key."""
    del admin
    await templates.remove_template(plane, name)
