"""What tests of builds share: a server whose builder works, over a fake host that builds what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from control_rig import PATIENCE_S, Rig
from torpor.control.service.builds import build_templates
from torpor.model.ids import BuildId
from torpor.wire.templates import BuildView

BUILD, BUILDS = "/v1/templates/build", "/v1/templates/builds"
IMAGE = "registry.example/tools:1"
BOUNDARY = "a-line-between-parts"


@asynccontextmanager
async def building(rig: Rig) -> AsyncIterator[None]:
    """Let the server build what is queued while the block lasts."""
    working = asyncio.create_task(build_templates(rig.plane))
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert working.cancelled()


async def order(rig: Rig, *, key: str | None = None, **fields: Any) -> BuildView:
    """Order a template, of an image unless said otherwise, and return its build."""
    asked = {"name": "tools", **({} if fields.keys() & {"dockerfile", "from_snapshot"} else {"image_ref": IMAGE})}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = await rig.http.post(BUILD, json=asked | fields, headers=headers)
    assert answer.status_code == 202, answer.text
    await rig.clock.jump(1)  # so that it is known which of two came first
    return BuildView.model_validate_json(answer.content)


async def wait_status(rig: Rig, build: str, *statuses: str) -> BuildView:
    """Return a build when it has come to one of these statuses. Every change rings a bell, so nothing is polled."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            coming = rig.plane.bells.builds.coming
            found = await rig.store.build(BuildId(build))
            assert found is not None
            if found.status in statuses:
                headers = {"x-request-id": "looking"}
                return BuildView.model_validate_json((await rig.http.get(f"{BUILDS}/{build}", headers=headers)).content)
            await coming.wait()


def part(name: str, content: str | bytes, *, filename: str | None = None, headers: Sequence[str] = ()) -> bytes:
    """Return one part of a form: a file if it has a filename."""
    file = "" if filename is None else f'; filename="{filename}"'
    lines = [f'Content-Disposition: form-data; name="{name}"{file}', *headers]
    body = content.encode() if isinstance(content, str) else content
    return f"--{BOUNDARY}\r\n".encode() + "\r\n".join(lines).encode() + b"\r\n\r\n" + body + b"\r\n"


def file_part(path: str, content: str | bytes, *headers: str) -> bytes:
    """Return a file of a context."""
    return part(path, content, filename=path, headers=headers)


def form(*parts: bytes, fields: Mapping[str, str] | None = None) -> bytes:
    """Return a whole form: the fields, and then the parts."""
    given = [part(name, value) for name, value in (fields or {}).items()]
    return b"".join([*given, *parts, f"--{BOUNDARY}--\r\n".encode()])


async def send_form(rig: Rig, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx2.Response:
    """Send a form as a request for a build."""
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return await rig.http.post(BUILD, content=body, headers=kind | headers)
