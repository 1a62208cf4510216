"""Another workspace's things are not there: on no route, whatever it is asked, and nothing happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from control_rig import KEY, control_rig
from torpor.control.access import AccessConfig
from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.service.plane import plane_of
from torpor.kit.clock import SystemClock
from torpor.model.ids import SandboxId
from torpor.testing.host import FakeHost
from torpor.testing.store import MemoryStore
from two_workspaces import OURS, Two, two_workspaces

# What a request needs beside ids in its path, so that it would be served if the ids were its sender's own.
BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/sandboxes/{id}/exec": {"json": {"cmd": "true"}},
    "POST /v1/sandboxes/{id}/exec/stream": {"json": {"cmd": "true"}},
    "POST /v1/sandboxes/{id}/processes": {"json": {"cmd": "true"}},
    "POST /v1/sandboxes/{id}/rollback": {"json": {"snapshot": "snp-1111111111111111"}},
    "POST /v1/sandboxes/{id}/processes/{pid}/resize": {"json": {"rows": 24, "cols": 80}},
    "POST /v1/sandboxes/{id}/fork-tree": {"json": {"count": 2}},
    "POST /v1/sandboxes/{id}/promote": {"json": {"cleanup_siblings": True}},
    "POST /v1/sandboxes/{id}/repl/sessions": {"json": {"language": "python"}},
    "POST /v1/sandboxes/{id}/repl/sessions/{sid}/run": {"json": {"code": "1"}},
    "POST /v1/sandboxes/{id}/repl/sessions/{sid}/run/stream": {"json": {"code": "1"}},
    "POST /v1/sandboxes/{id}/processes/{pid}/signal": {"json": {"signal": "SIGTERM"}},
    "POST /v1/sandboxes/{id}/processes/{pid}/stdin": {"content": b"x"},
    "PUT /v1/sandboxes/{id}/fs": {"params": {"path": "/work/x"}, "content": b"x"},
    "POST /v1/sandboxes/{id}/fs/rename": {"json": {"source": "/work/x", "target": "/work/y"}},
    "PATCH /v1/sandboxes/{id}/lifecycle": {"json": {"ttl_seconds": 5}},
    "PATCH /v1/sandboxes/{id}/network": {"json": {"network": "none"}},
}
# What a host is asked about itself, whoever's call it is for.
ABOUT_THE_HOST = ("capabilities", "templates")
# Where the path has no ids of a workspace, and what is to be answered instead.
OF_NOBODY = ("/v1/templates/{name}", "/v1/me/tokens/{prefix}")


def operations() -> list[tuple[str, str]]:
    """Return every method and path that the served API describes."""
    plane = plane_of(MemoryStore(), HostClient(FakeHost().transport()), SystemClock())
    described = create_app(plane, KEY).openapi()
    return [(method.upper(), path) for path, methods in described["paths"].items() for method in methods]


OPERATIONS = operations()
WITH_IDS = [one for one in OPERATIONS if "{" in one[1] and one[1] not in OF_NOBODY]
LISTINGS = [path for method, path in OPERATIONS if method == "GET" and "{" not in path and path.startswith("/v1/")]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with two_workspaces() as made:
        yield made


def filled(path: str, two: Two) -> str:
    """Return a path with our ids in the place of its names; one that is not known here fails the test."""
    id = two.ours.snapshot if path.startswith("/v1/snapshots/") else two.ours.sandbox
    ours = two.ours
    return path.format(id=id, pid=ours.process, port=8080, sid=ours.context, name=ours.volume, build=ours.build)


async def calls_of(two: Two) -> tuple[Any, ...]:
    """Return what would show that something happened to our things."""
    sandbox = await two.rig.store.get(SandboxId(two.ours.sandbox))
    return (
        sandbox,
        await two.rig.store.every_snapshot(),
        {call: count for call, count in two.rig.host.calls.items() if call not in ABOUT_THE_HOST},
        two.rig.plane.activity.in_flight(SandboxId(two.ours.sandbox)),
        two.rig.plane.activity.idle_s(SandboxId(two.ours.sandbox)),
        await two.rig.told(two.ours.sandbox),
    )


def test_there_are_routes_to_walk_and_each_is_listed_once() -> None:
    assert len(WITH_IDS) > 25
    assert len(LISTINGS) > 7
    assert set(BODIES) <= {f"{method} {path}" for method, path in WITH_IDS}


@pytest.mark.parametrize(("method", "path"), WITH_IDS, ids=str)
async def test_anothers_ids_are_not_found_and_nothing_happens_to_what_they_name(
    two: Two, method: str, path: str
) -> None:
    wish = BODIES.get(f"{method} {path}", {"params": {"path": "/work/x"}} if "/fs" in path else {})
    await two.rig.clock.jump(100)
    before = await calls_of(two)
    answer = await two.as_them(method, filled(path, two), **wish)
    assert answer.status_code == 404, answer.text
    assert answer.json()["code"] == "not_found"
    assert await calls_of(two) == before


@pytest.mark.parametrize("state", ["paused", "hibernated", "deleted"])
@pytest.mark.parametrize(
    ("method", "verb"), [("GET", ""), ("DELETE", ""), ("POST", "/wake"), ("POST", "/resume"), ("GET", "/events")]
)
async def test_nor_are_they_in_any_other_state(two: Two, state: str, method: str, verb: str) -> None:
    ours = f"/v1/sandboxes/{two.ours.sandbox}"
    headers = {"authorization": f"Bearer {two.ours.key}"}
    reach = {"paused": ("POST", "/pause"), "hibernated": ("POST", "/hibernate"), "deleted": ("DELETE", "")}[state]
    assert (await two.rig.http.request(reach[0], ours + reach[1], headers=headers)).is_success
    assert (await two.as_them(method, ours + verb)).status_code == 404
    assert await two.rig.status(two.ours.sandbox) == state


@pytest.mark.parametrize("path", LISTINGS)
async def test_no_listing_shows_anything_of_another_workspace(two: Two, path: str) -> None:
    answer = await two.as_them("GET", path)
    if answer.status_code == 403:  # for admins only
        return
    assert answer.status_code == 200, answer.text
    for secret in (*two.ours.all(), OURS, two.ours.key[:12]):
        assert secret not in answer.text


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/v1/snapshots", {"sandbox_id": "{sandbox}"}),
        ("/v1/sandboxes", {"metadata.of": OURS}),
        ("/v1/usage", {"metadata.of": OURS}),
        ("/v1/usage", {"metadata.of": OURS, "format": "csv"}),
        ("/v1/events", {"cursor": "0", "limit": "1000"}),
    ],
)
async def test_a_filter_for_anothers_things_finds_nothing(two: Two, path: str, params: dict[str, str]) -> None:
    asked = {name: value.format(sandbox=two.ours.sandbox) for name, value in params.items()}
    answer = await two.as_them("GET", path, params=asked)
    assert answer.status_code == 200
    assert not [id for id in two.ours.all() if id in answer.text]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sandboxes", {"from_snapshot": "{snapshot}"}),
        ("/v1/sandboxes/{mine}/rollback", {"snapshot": "{snapshot}"}),
    ],
)
async def test_anothers_snapshot_comes_to_life_for_nobody_else(two: Two, path: str, body: dict[str, str]) -> None:
    said = {name: value.format(snapshot=two.ours.snapshot) for name, value in body.items()}
    restored = two.rig.host.calls["restore"]
    answer = await two.as_them("POST", path.format(mine=two.theirs.sandbox), json=said)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert two.rig.host.calls["restore"] == restored


async def test_names_and_idempotency_keys_are_each_workspaces_own(two: Two) -> None:
    for workspace in (two.ours, two.theirs):
        headers = {"authorization": f"Bearer {workspace.key}", "idempotency-key": "the-same"}
        answer = await two.rig.http.post("/v1/sandboxes", json={"name": "the-same"}, headers=headers)
        assert answer.status_code == 201, answer.text
    mine = (await two.as_them("GET", "/v1/sandboxes")).json()["items"]
    assert len([one for one in mine if one["name"] == "the-same"]) == 1


async def test_a_followed_stream_tells_only_of_its_own_workspace(two: Two) -> None:
    heard = asyncio.Event()

    async def follow() -> str:
        headers = {"authorization": f"Bearer {two.theirs.key}"}
        params = {"follow": "true", "cursor": "latest"}
        async with two.rig.http.stream("GET", "/v1/events", params=params, headers=headers) as answer:
            text = ""
            async for piece in answer.aiter_text():
                heard.set()
                text += piece
                if "hibernated" in text:
                    return text
        return text

    following = asyncio.create_task(follow())
    await heard.wait()
    ours = {"authorization": f"Bearer {two.ours.key}"}
    await two.rig.http.post(f"/v1/sandboxes/{two.ours.sandbox}/pause", headers=ours)
    await two.as_them("POST", f"/v1/sandboxes/{two.theirs.sandbox}/hibernate")
    text = await following
    assert two.theirs.sandbox in text
    assert two.ours.sandbox not in text


async def test_members_cannot_remove_templates_which_are_everybodys(two: Two) -> None:
    answer = await two.as_them("DELETE", "/v1/templates/agent")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await two.as_them("GET", "/v1/templates/agent")).status_code == 200


@pytest.mark.parametrize("authorization", [None, "Bearer tpr_" + "x" * 43])
async def test_no_route_is_served_without_a_key(authorization: str | None) -> None:
    private = [one for one in OPERATIONS if one[1].startswith("/v1/")]
    async with control_rig(access=AccessConfig(failures_per_minute=0)) as rig:
        for method, path in private:
            request = rig.http.build_request(method, path.replace("{", "").replace("}", ""))
            del request.headers["authorization"]
            if authorization is not None:
                request.headers["authorization"] = authorization
            answer: httpx2.Response = await rig.http.send(request)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), path
    assert not rig.host.calls
