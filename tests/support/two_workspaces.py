"""A server with two workspaces, each with a key of its own, and things in each that the other must not see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from control_rig import Rig, control_rig
from torpor.testing.host import FakeHost

OURS, THEIRS = "ours", "theirs"


@dataclass(frozen=True)
class Possessions:
    """What one workspace has: a running sandbox, a checkpoint of it, a process and a code context in it, a volume, and
    a build of a template.
    """

    sandbox: str
    snapshot: str
    process: str
    context: str
    volume: str
    build: str
    key: str

    def all(self) -> tuple[str, ...]:
        """Return every id of it."""
        return (self.sandbox, self.snapshot, self.process, self.context, self.volume, self.build)


@dataclass(frozen=True)
class Two:
    """The server, and what is asked with `theirs` of what is `ours`."""

    rig: Rig
    ours: Possessions
    theirs: Possessions

    async def as_them(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """Send a request with their key."""
        headers = {"authorization": f"Bearer {self.theirs.key}", **more.pop("headers", {})}
        return await self.rig.http.request(method, path, headers=headers, **more)


async def new_key(rig: Rig, workspace: str, **more: Any) -> str:
    """Make a key with the server's own, and return it."""
    body = {"label": f"of {workspace}", "workspace": workspace, **more}
    answer = await rig.http.post("/v1/me/tokens", json=body)
    assert answer.status_code == 201, answer.text
    token: str = answer.json()["token"]
    return token


async def _possessions(rig: Rig, workspace: str) -> Possessions:
    key = await new_key(rig, workspace)
    headers = {"authorization": f"Bearer {key}"}

    async def post(path: str, **body: Any) -> Any:
        answer = await rig.http.post(path, json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json()

    name = f"named-{workspace}"
    sandbox = (await post("/v1/sandboxes", name=name, metadata={"of": workspace}, persistent=True))["id"]
    snapshot = (await post(f"/v1/sandboxes/{sandbox}/snapshots", name=name))["id"]
    process = (await post(f"/v1/sandboxes/{sandbox}/processes", cmd="cat", open_stdin=True))["id"]
    context = (await post(f"/v1/sandboxes/{sandbox}/repl/sessions", language="python"))["id"]
    await post("/v1/volumes", name=f"volume-{workspace}", size_mb=16)
    build = (await post("/v1/templates/build", name=f"template-{workspace}", from_snapshot=snapshot))["id"]
    return Possessions(sandbox, snapshot, process, context, f"volume-{workspace}", build, key)


@asynccontextmanager
async def two_workspaces(host: FakeHost | None = None) -> AsyncIterator[Two]:
    """Yield the server while the block lasts."""
    async with control_rig(host=host) as rig:
        yield Two(rig, await _possessions(rig, OURS), await _possessions(rig, THEIRS))
