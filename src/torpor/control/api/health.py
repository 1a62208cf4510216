"""Are you there, and what are you: `/healthz`, and `/version`, which tells it without a key on this machine only."""

from __future__ import annotations

from fastapi import APIRouter

from torpor.kit.installed import installed_version
from torpor.wire.public import Health, Version

public = APIRouter(tags=["server"])


@public.get("/healthz")
async def healthz() -> Health:
    """Say that the server answers."""
    return Health()


@public.get("/version")
async def version() -> Version:
    """Say which version of the program and of the API this is."""
    return Version(version=installed_version("torpor"))
