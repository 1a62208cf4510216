"""Who am I, are you there, and what are you: `/v1/me`, and without a key `/healthz` and `/version`."""

from __future__ import annotations

from fastapi import APIRouter

from torpor.control.api.deps import Workspace
from torpor.control.api.problems import refusals
from torpor.kit.installed import installed_version
from torpor.wire.public import Health, Me, Version

private = APIRouter(prefix="/v1", tags=["server"])
public = APIRouter(tags=["server"])


@private.get("/me", responses=refusals())
async def me(workspace: Workspace) -> Me:
    """Say whom the key belongs to."""
    return Me(workspace=workspace)


@public.get("/healthz")
async def healthz() -> Health:
    """Say that the server answers."""
    return Health()


@public.get("/version")
async def version() -> Version:
    """Say which version of the program and of the API this is."""
    return Version(version=installed_version("torpor"))
