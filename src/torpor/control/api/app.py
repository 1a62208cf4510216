"""The public HTTP API as one application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Security
from starlette.routing import Route, WebSocketRoute

from torpor.control.access import AccessConfig
from torpor.control.api import (
    audit,
    builds,
    capacity,
    console,
    events,
    execs,
    files,
    health,
    keys,
    meanings,
    passages,
    ports,
    problems,
    processes,
    repl,
    sandboxes,
    snapshots,
    templates,
    trees,
    usage,
    volumes,
)
from torpor.control.api.deps import bearer
from torpor.control.api.door import Door
from torpor.control.api.terminals import sockets
from torpor.control.proxy.gate import BY_PATH, ByKey, PortHosts
from torpor.control.service.plane import Plane
from torpor.wire.public import API_VERSION


def create_app(plane: Plane, key: str, access: AccessConfig | None = None) -> FastAPI:
    """Return the API over a plane's collaborators, open to whoever sends `key`, the server's own, or one in the store.

    It starts and closes nothing: `torpor.control.main` does.
    """
    app = _Described(title="Torpor", version=API_VERSION, docs_url=None, redoc_url=None)
    access = access or AccessConfig()
    app.state.plane, app.state.access = plane, access
    problems.install(app)
    for part in (
        sandboxes.router,
        passages.router,
        trees.router,
        snapshots.router,
        execs.router,
        processes.router,
        repl.router,
        files.router,
        console.router,
        ports.router,
        builds.router,  # before templates: `builds` is no template
        templates.router,
        volumes.router,
        events.router,
        usage.router,
        keys.router,
        capacity.router,
        audit.router,
    ):
        app.include_router(part, dependencies=[Security(bearer)])
    app.include_router(health.public)
    for kind in (Route, WebSocketRoute):
        app.router.routes.append(kind(BY_PATH, ByKey(plane)))
    app.router.routes.extend(sockets(plane))
    app.add_middleware(Door, plane=plane, key=key, access=access, elsewhere=PortHosts(plane, access))
    return app


class _Described(FastAPI):
    """A FastAPI whose description has a word for everything, and no answer that is never given."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            meanings.complete(super().openapi())
        return super().openapi()
