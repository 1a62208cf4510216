"""The public HTTP API as one application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Security

from torpor.control.api import (
    events,
    execs,
    files,
    health,
    passages,
    problems,
    processes,
    sandboxes,
    snapshots,
    templates,
    usage,
)
from torpor.control.api.deps import bearer
from torpor.control.api.door import Door
from torpor.control.service.plane import Plane
from torpor.wire.public import API_VERSION


def create_app(plane: Plane, key: str) -> FastAPI:
    """Return the API over a plane's collaborators, open to whoever sends `key`.

    It starts and closes nothing: `torpor.control.main` does.
    """
    app = _Described(title="Torpor", version=API_VERSION, docs_url=None, redoc_url=None)
    app.state.plane = plane
    problems.install(app)
    for part in (
        sandboxes.router,
        passages.router,
        snapshots.router,
        execs.router,
        processes.router,
        files.router,
        templates.router,
        events.router,
        usage.router,
        health.private,
    ):
        app.include_router(part, dependencies=[Security(bearer)])
    app.include_router(health.public)
    app.add_middleware(Door, key=key)
    return app


class _Described(FastAPI):
    """A FastAPI whose description leaves out the 422 that it never answers with: bad input is 400 here."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            described = super().openapi()
            for operations in described["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
        return super().openapi()
