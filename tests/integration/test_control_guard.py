"""Who is let in, from where, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from control_rig import KEY, Rig, control_rig
from torpor.control.access import AccessConfig
from torpor.control.api.app import create_app
from torpor.wire.memory import MemoryTransport
from two_workspaces import new_key

SITE = "https://app.example"
OPEN = AccessConfig(origins=frozenset({SITE}))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@asynccontextmanager
async def coming_from(
    rig: Rig, *addresses: str, access: AccessConfig | None = None
) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Give clients of one server that come to it from these addresses, without a key."""
    app = create_app(rig.plane, KEY, access)
    clients = []
    for address in addresses:

        async def served(scope: Scope, receive: Receive, send: Send, address: str = address) -> None:
            await app({**scope, "client": (address, 4711)}, receive, send)

        clients.append(httpx2.AsyncClient(transport=MemoryTransport(served), base_url="http://localhost"))
    yield clients
    for client in clients:
        await client.aclose()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:7070", "192.0.2.1"])
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/healthz", "/openapi.json"])
async def test_a_name_that_was_bound_to_this_address_by_others_is_not_served(rig: Rig, host: str, path: str) -> None:
    answer = await rig.http.get(path, headers={"host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "misdirected")
    assert not rig.host.calls


@pytest.mark.parametrize("hosts", [[], ["localhost", "evil.example"], ["localhost", "localhost"], ["a b"]])
async def test_a_request_names_one_host_or_it_is_refused(rig: Rig, hosts: list[str]) -> None:
    request = rig.http.build_request("GET", "/v1/me")
    kept = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
    request.headers = httpx2.Headers([*kept, *((b"host", host.encode()) for host in hosts)])
    answer = await rig.http.send(request)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_a_page_of_another_site_changes_nothing_even_with_the_key(rig: Rig) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        answer = await rig.http.post("/v1/sandboxes", json={}, headers={"origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert not rig.host.calls
    same = await rig.http.post("/v1/sandboxes", json={}, headers={"origin": "http://localhost"})
    assert same.status_code == 201


async def test_no_page_of_another_site_may_ask_or_read_unless_it_is_listed(rig: Rig) -> None:
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with coming_from(rig, "127.0.0.1", access=OPEN) as [client]:
        for opened, origin in ((client, "https://evil.example"), (rig.http, SITE)):
            preflight = await opened.options("/v1/sandboxes", headers={"origin": origin, **asking})
            assert preflight.status_code == 403
            read = await opened.get("/v1/me", headers={"origin": origin, **bearer(KEY)})
            assert read.status_code == 200
            for answer in (preflight, read):
                assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_a_listed_page_may_ask_and_read_errors_too_and_never_by_cookie(rig: Rig) -> None:
    asking = {"origin": SITE, "access-control-request-method": "DELETE"}
    async with coming_from(rig, "127.0.0.1", access=OPEN) as [client]:
        preflight = await client.options("/v1/sandboxes/sbx-1", headers=asking)
        made = await client.post("/v1/sandboxes", json={}, headers={"origin": SITE, **bearer(KEY)})
        refused = await client.get("/v1/me", headers={"origin": SITE})
    assert (preflight.status_code, made.status_code, refused.status_code) == (204, 201, 401)
    assert "DELETE" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    for answer in (preflight, made, refused):
        assert answer.headers["access-control-allow-origin"] == SITE
        assert "access-control-allow-credentials" not in answer.headers
        assert "Origin" in answer.headers["vary"]


async def test_a_key_that_asks_too_often_is_told_when_to_come_back_and_nobody_else_is(rig: Rig) -> None:
    eager, calm = await new_key(rig, "eager"), await new_key(rig, "calm")
    async with coming_from(rig, "127.0.0.1", access=AccessConfig(rate_per_second=0.25, rate_burst=2)) as [client]:
        for _ in range(2):
            assert (await client.get("/v1/me", headers=bearer(eager))).status_code == 200
        refused = await client.post("/v1/sandboxes", json={}, headers=bearer(eager))
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert refused.json()["retryable"] is True
        assert refused.headers["retry-after"] == "4"
        assert not rig.host.calls
        told = (await rig.http.get("/v1/audit", params={"workspace": "eager"})).json()["items"]
        assert [(entry["kind"], entry["status"], entry["key"]) for entry in told] == [("refused", 429, eager[:12])]
        assert (await client.get("/v1/me", headers=bearer(calm))).status_code == 200
        for _ in range(10):
            assert (await client.get("/v1/me", headers=bearer(KEY))).json()["limits"]["rate_burst"] == 0
        await rig.clock.jump(4)
        assert (await client.get("/v1/me", headers=bearer(eager))).json()["limits"]["rate_burst"] == 2


async def test_who_tries_keys_is_held_off_and_who_shares_the_address_with_a_key_in_use_is_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, unused = await new_key(rig, "used"), await new_key(rig, "unused")
    access = AccessConfig(failures_per_minute=3)
    async with coming_from(rig, "203.0.113.7", "203.0.113.8", access=access) as [here, there]:
        assert (await here.get("/v1/me", headers=bearer(used))).status_code == 200
        wrong = [(await here.get("/v1/me", headers=bearer(f"tpr_{number:043d}"))) for number in range(5)]
        assert [answer.status_code for answer in wrong] == [401, 401, 401, 429, 429]
        assert wrong[-1].json()["code"] == "rate_limited"
        assert wrong[-1].headers["retry-after"] == "20"
        looked_up: list[str] = []
        monkeypatch.setattr(rig.store, "key_of", looked_up.append)  # nothing may be looked up
        for key, status in ((KEY, 200), (used, 200), (unused, 429)):
            assert (await here.get("/v1/me", headers=bearer(key))).status_code == status
        assert looked_up == []
        monkeypatch.undo()
        assert (await there.get("/v1/me", headers=bearer(unused))).status_code == 200
        await rig.clock.jump(20)
        assert (await here.get("/v1/me", headers=bearer(unused))).status_code == 200


async def test_who_has_one_address_of_version_6_has_many_and_they_count_as_one(rig: Rig) -> None:
    access = AccessConfig(failures_per_minute=2)
    nets = ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1")
    async with coming_from(rig, *nets, access=access) as [first, same_net, other_net]:
        wrong = bearer("tpr_" + "x" * 43)
        assert [(await first.get("/v1/me", headers=wrong)).status_code for _ in range(2)] == [401, 401]
        assert (await same_net.get("/v1/me", headers=wrong)).status_code == 429
        assert (await other_net.get("/v1/me", headers=wrong)).status_code == 401
        assert (await first.get("/v1/me")).status_code == 401  # no key at all is no guess


@pytest.mark.parametrize("address", ["203.0.113.7", "2001:db8::1", "::ffff:203.0.113.7"])
async def test_elsewhere_only_that_it_lives_is_told_without_a_key(rig: Rig, address: str) -> None:
    async with coming_from(rig, address) as [client]:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        for path in ("/version", "/openapi.json", "/"):
            assert (await client.get(path)).status_code == 401
        assert (await client.get("/version", headers=bearer(KEY))).status_code == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_on_this_machine_version_and_description_are_told_too(rig: Rig, address: str) -> None:
    async with coming_from(rig, address) as [client]:
        for path in ("/healthz", "/version", "/openapi.json"):
            assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_stream_ends_with_its_key(rig: Rig, ends: str) -> None:
    key = await new_key(rig, "default", expires_in_days=1)
    begun = asyncio.Event()

    async def follow() -> None:
        query = {"follow": "true", "cursor": "latest"}
        async with rig.http.stream("GET", "/v1/events", params=query, headers=bearer(key)) as answer:
            async for _ in answer.aiter_raw():
                begun.set()

    following = asyncio.create_task(follow())
    await begun.wait()
    if ends == "revoked":
        assert (await rig.http.delete(f"/v1/me/tokens/{key[:12]}")).status_code == 204
    else:
        await rig.clock.jump(86_400)
    with pytest.raises(httpx2.HTTPError):  # broken off: it is no end of what there is to tell
        await asyncio.wait_for(following, 10)
    assert (await rig.http.get("/v1/me", headers=bearer(key))).status_code == 401


async def test_a_change_that_began_is_completed_though_its_key_is_revoked(rig: Rig) -> None:
    key = await new_key(rig, "default")
    hold = rig.host.hold("restore")
    making = asyncio.create_task(rig.http.post("/v1/sandboxes", json={}, headers=bearer(key)))
    await hold.reached.wait()
    await rig.http.delete(f"/v1/me/tokens/{key[:12]}")
    hold.release()
    await asyncio.wait([making])
    (made,) = (await rig.http.get("/v1/sandboxes")).json()["items"]
    assert made["status"] == "running"
