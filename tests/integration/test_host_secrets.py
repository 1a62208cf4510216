"""What a host agent keeps of secrets: nothing but the memory of guests."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from torpor.storage.frozen import MEMORY
from whole_rig import WholeRig

CANARY = "canary-value-that-nobody-may-see"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WholeRig]:
    rig = WholeRig(tmp_path)
    await rig.bake()
    yield rig
    await rig.aclose()


async def post(server: WholeRig, url: str, **body: Any) -> Any:
    answer = await server.http.post(url, json=body)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def token(server: WholeRig, sandbox: str) -> str:
    told = await post(server, f"/sandboxes/{sandbox}/exec", cmd=["printenv", "TOKEN"])
    return str(told["stdout"]).strip()


def files_with(folder: Path, text: str) -> set[str]:
    """Return the names of the files below a folder that have a text in them."""
    every = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path.name for path in every if text.encode() in path.read_bytes()}


async def test_values_are_in_memory_images_and_in_no_other_file_or_line(
    server: WholeRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        made = (await post(server, "/sandboxes", secrets={"TOKEN": CANARY}))["id"]
        assert files_with(tmp_path, CANARY) == set(), "of one that was not frozen yet, nothing is on the disk"
        snapshot = (await post(server, f"/sandboxes/{made}/snapshots"))["id"]
        await post(server, f"/sandboxes/{made}/fork", count=2)
        await post(server, f"/sandboxes/{made}/hibernate")
        assert await token(server, made) == CANARY
        await post(server, f"/sandboxes/{made}/rollback", snapshot=snapshot)
        await server.crash()
        assert await token(server, made) == CANARY
    assert files_with(tmp_path, CANARY) == {MEMORY}
    assert CANARY not in repr(logs) + caplog.text
    assert CANARY not in repr(server.rig.host)


async def test_a_spare_and_a_create_without_secrets_have_none(server: WholeRig) -> None:
    for _ in range(3):
        made = (await post(server, "/sandboxes", secrets={"TOKEN": CANARY}))["id"]
        assert await token(server, made) == CANARY
        assert await token(server, (await post(server, "/sandboxes"))["id"]) == ""


@pytest.mark.parametrize("is_asleep", [False, True])
async def test_a_child_has_its_own_before_its_hooks_run(server: WholeRig, is_asleep: bool) -> None:
    made = (await post(server, "/sandboxes", secrets={"TOKEN": CANARY}))["id"]
    if is_asleep:
        await post(server, f"/sandboxes/{made}/hibernate")
    (child,) = (await post(server, f"/sandboxes/{made}/fork", secrets={"TOKEN": "own"}))["children"]
    assert await token(server, child["id"]) == "own"
    assert await token(server, made) == CANARY
    (bare,) = (await post(server, f"/sandboxes/{made}/fork", secrets={}))["children"]
    assert await token(server, bare["id"]) == ""


async def test_going_back_to_what_it_was_made_from_leaves_one_with_its_own_without_any(server: WholeRig) -> None:
    origin = (await post(server, "/sandboxes", secrets={"TOKEN": CANARY}))["id"]
    snapshot = (await post(server, f"/sandboxes/{origin}/snapshots"))["id"]
    made = (await post(server, "/sandboxes", from_snapshot=snapshot, secrets={"TOKEN": "own"}))["id"]
    assert await token(server, made) == "own"
    assert (await post(server, f"/sandboxes/{made}/rollback", snapshot=snapshot))["secret_names"] == []
    assert await token(server, made) == ""
