"""Keys: made, shown once, listed by prefix, ended and revoked; and what is kept of them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pandastack  # type: ignore[import-untyped]  # as it comes
import pytest

from control_rig import KEY, Rig, control_rig
from torpor.control.service.keyring import digest_of
from torpor.control.store.sql import open_store
from torpor.model.access import Key, Role
from torpor.model.ids import WorkspaceId
from torpor.testing.server import running_server
from two_workspaces import new_key

DAY_S = 86_400


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@asynccontextmanager
async def on_disk(folder: Path) -> AsyncIterator[Rig]:
    """A server on a database in a folder."""
    store = await open_store(folder / "torpor.db")
    async with control_rig(store) as rig:
        yield rig
    await store.aclose()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def make(rig: Rig, key: str = KEY, *, idempotency_key: str | None = None, **body: Any) -> httpx2.Response:
    headers = bearer(key) | ({} if idempotency_key is None else {"idempotency-key": idempotency_key})
    return await rig.http.post("/v1/me/tokens", json={"label": "for a test", **body}, headers=headers)


async def me(rig: Rig, key: str) -> httpx2.Response:
    return await rig.http.get("/v1/me", headers=bearer(key))


async def test_me_says_whose_key_it_is(rig: Rig) -> None:
    own = (await me(rig, KEY)).json()
    assert own == {
        "workspace": "default",
        "role": "admin",
        "prefix": KEY[:12],
        "name": "the server's own",
        "expires_at": None,
        "limits": {"rate_per_second": 0.0, "rate_burst": 0},
    }
    made = (await make(rig, workspace="lab", expires_in_days=1)).json()
    mine = (await me(rig, made["token"])).json()
    assert (mine["workspace"], mine["role"], mine["name"]) == ("lab", "member", "for a test")
    assert (mine["prefix"], mine["expires_at"]) == (made["prefix"], made["expires_at"])
    assert mine["limits"] == {"rate_per_second": 200.0, "rate_burst": 400}


async def test_a_key_is_shown_once_and_listed_by_its_beginning(rig: Rig) -> None:
    made = (await make(rig, name="ignored where there is a label")).json()
    assert (made["token"][:12], len(made["token"])) == (made["prefix"], 47)
    listed = await rig.http.get("/v1/me/tokens")
    assert made["token"][12:] not in listed.text
    (item,) = listed.json()["items"]
    assert item == {name: value for name, value in made.items() if name != "token"}
    assert (item["name"], item["created_by"], item["last_used_at"]) == ("for a test", KEY[:12], None)


async def test_of_a_key_only_its_hash_is_kept(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as rig:
        token = (await make(rig)).json()["token"]
        await rig.http.post("/v1/sandboxes", json={}, headers=bearer(token))
        await rig.plane.auditor.flush()
    whole = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert digest_of(token).encode() in whole
    assert token[:12].encode() in whole
    assert token[12:].encode() not in whole


async def test_a_key_that_was_answered_and_a_revocation_too_outlive_a_kill(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    async with on_disk(tmp_path / "a") as rig:
        kept, revoked = [(await make(rig)).json()["token"] for _ in range(2)]
        assert (await rig.http.delete(f"/v1/me/tokens/{revoked[:12]}")).status_code == 204
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # what a killed server leaves: nothing was closed
    async with on_disk(tmp_path / "b") as rig:
        assert (await me(rig, kept)).status_code == 200
        answer = await me(rig, revoked)
        assert answer.status_code == 401
        assert "was revoked" in answer.json()["error"]


async def test_a_revoked_key_opens_nothing_from_the_answer_on(rig: Rig) -> None:
    token = await new_key(rig, "default")
    assert (await me(rig, token)).status_code == 200  # it is remembered now
    for _ in range(2):
        assert (await rig.http.delete(f"/v1/me/tokens/{token[:12]}")).status_code == 204
        answer = await me(rig, token)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert "was revoked" in answer.json()["error"]
    (item,) = (await rig.http.get("/v1/me/tokens")).json()["items"]
    assert item["revoked_at"] is not None


async def test_a_key_may_revoke_itself(rig: Rig) -> None:
    token = await new_key(rig, "default")
    assert (await rig.http.delete(f"/v1/me/tokens/{token[:12]}", headers=bearer(token))).status_code == 204
    assert (await me(rig, token)).status_code == 401


async def test_a_key_ends_at_its_time(rig: Rig) -> None:
    token = (await make(rig, expires_in_days=0.5)).json()["token"]
    await rig.clock.jump(DAY_S / 2 - 1)
    assert (await me(rig, token)).status_code == 200
    await rig.clock.jump(1)
    answer = await me(rig, token)
    assert answer.status_code == 401
    assert "has expired" in answer.json()["error"]


async def test_only_who_has_a_whole_key_is_told_what_became_of_it(rig: Rig) -> None:
    token = await new_key(rig, "default")
    await rig.http.delete(f"/v1/me/tokens/{token[:12]}")
    for wrong in (token[:-1], token + "x", token[:12], token[:12] + "x" * 35):
        assert "not one of this server's" in (await me(rig, wrong)).json()["error"]


@pytest.mark.parametrize(
    "body",
    [{"workspace": "another"}, {"role": "admin"}, {"workspace": "default"}],
)
async def test_a_member_makes_keys_for_its_own_workspace_only_and_no_admins(rig: Rig, body: dict[str, str]) -> None:
    member = await new_key(rig, "lab")
    answer = await make(rig, member, **body)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    mine = await make(rig, member)
    assert (mine.status_code, mine.json()["workspace"], mine.json()["role"]) == (201, "lab", "member")
    assert mine.json()["created_by"] == member[:12]


async def test_an_admins_key_of_another_workspace_is_an_admins_too(rig: Rig) -> None:
    admin = await new_key(rig, "ops", role="admin")
    assert (await make(rig, admin, workspace="lab")).status_code == 201
    listed = await rig.http.get("/v1/me/tokens", params={"workspace": "lab"}, headers=bearer(admin))
    assert len(listed.json()["items"]) == 1


async def test_a_key_sees_and_revokes_none_of_another_workspace(rig: Rig) -> None:
    ours, theirs = await new_key(rig, "ours"), await new_key(rig, "theirs")
    listed = (await rig.http.get("/v1/me/tokens", headers=bearer(theirs))).json()["items"]
    assert [item["prefix"] for item in listed] == [theirs[:12]]
    assert (await rig.http.delete(f"/v1/me/tokens/{ours[:12]}", headers=bearer(theirs))).status_code == 404
    for method, path in (("GET", "/v1/me/tokens"), ("DELETE", f"/v1/me/tokens/{ours[:12]}")):
        answer = await rig.http.request(method, path, params={"workspace": "ours"}, headers=bearer(theirs))
        assert answer.status_code == 403
    assert (await me(rig, ours)).status_code == 200
    path = f"/v1/me/tokens/{ours[:12]}"
    assert (await rig.http.delete(path, params={"workspace": "ours"})).status_code == 204


async def test_a_member_does_not_revoke_an_admin_of_its_workspace(rig: Rig) -> None:
    admin, member = await new_key(rig, "ops", role="admin"), await new_key(rig, "ops")
    assert (await rig.http.delete(f"/v1/me/tokens/{admin[:12]}", headers=bearer(member))).status_code == 403
    assert (await me(rig, admin)).status_code == 200
    assert (await rig.http.delete(f"/v1/me/tokens/{member[:12]}", headers=bearer(admin))).status_code == 204


async def test_a_key_never_outlives_the_key_that_made_it(rig: Rig) -> None:
    short = (await make(rig, expires_in_days=1)).json()
    assert (await make(rig, short["token"])).json()["expires_at"] == short["expires_at"]
    assert (await make(rig, short["token"], expires_in_days=0.5)).json()["expires_at"] < short["expires_at"]
    answer = await make(rig, short["token"], expires_in_days=2)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "cannot outlive it" in answer.json()["error"]


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        ("tpr_", 400),
        ("tpr_abc", 400),
        ("tpr_abcd", 404),
        ("tpr_abcdefgh", 404),
        ("tpr_abcdefghi", 400),
        ("x" * 65, 400),
    ],
)
async def test_a_key_is_named_by_enough_of_its_beginning_and_never_by_all(rig: Rig, prefix: str, status: int) -> None:
    assert (await rig.http.delete(f"/v1/me/tokens/{prefix}")).status_code == status


async def test_a_beginning_that_several_keys_have_names_none_of_them(rig: Rig) -> None:
    now = rig.clock.now()
    first = Key("key-1", WorkspaceId("default"), "a", "tpr_sameAAAA", "1" * 64, Role.MEMBER, now, KEY[:12])
    await rig.store.add_key(first, now)
    await rig.store.add_key(replace(first, id="key-2", prefix="tpr_sameBBBB", digest="2" * 64), now)
    answer = await rig.http.delete("/v1/me/tokens/tpr_same")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert (await rig.http.delete("/v1/me/tokens/tpr_sameA")).status_code == 204
    assert (await rig.http.delete("/v1/me/tokens/tpr_same")).status_code == 204  # the other one; this one is over
    assert all(key.revoked_at for key in await rig.store.keys(WorkspaceId("default")))


@pytest.mark.parametrize(
    "body",
    [
        {"label": ""},
        {"label": "a\nb"},
        {"label": "x" * 129},
        {"expires_in_days": 0},
        {"expires_in_days": 1e9},
        {"expires_in_days": "1"},
        {"workspace": "Upper"},
        {"workspace": "-a"},
        {"workspace": "a" * 64},
        {"role": "owner"},
    ],
)
async def test_a_wish_that_makes_no_sense_makes_no_key(rig: Rig, body: dict[str, Any]) -> None:
    answer = await make(rig, **body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert next(iter(body)) in answer.json()["error"]
    assert (await rig.http.get("/v1/me/tokens")).json()["items"] == []


async def test_a_request_that_is_sent_again_makes_one_key_and_tells_it_again_for_some_minutes(rig: Rig) -> None:
    first, again = [(await make(rig, idempotency_key="once")).json() for _ in range(2)]
    assert first == again
    assert len((await rig.http.get("/v1/me/tokens")).json()["items"]) == 1
    assert (await make(rig, idempotency_key="once", expires_in_days=1)).status_code == 409
    other = await new_key(rig, "default")
    assert (await make(rig, other, idempotency_key="once")).json()["prefix"] != first["prefix"]
    await rig.clock.jump(601)
    late = await make(rig, idempotency_key="once")
    assert late.status_code == 409
    assert first["prefix"] in late.json()["error"]
    assert first["token"] not in late.text


async def test_a_key_is_not_told_again_after_a_restart_or_when_it_is_over(rig: Rig) -> None:
    made = (await make(rig, idempotency_key="once")).json()
    async with control_rig(rig.store, clock=rig.clock) as restarted:
        assert (await make(restarted, idempotency_key="once")).status_code == 409
    await rig.http.delete(f"/v1/me/tokens/{made['prefix']}")
    assert (await make(rig, idempotency_key="once")).status_code == 409


async def test_when_a_key_was_used_last_is_noted_now_and_then(rig: Rig) -> None:
    token = await new_key(rig, "default")

    async def last_used() -> Any:
        await rig.plane.keyring.flush()
        return (await rig.store.keys(WorkspaceId("default")))[0].last_used_at

    await me(rig, token)
    assert await last_used() == (first := rig.clock.now())
    await rig.clock.jump(599)
    await me(rig, token)
    assert await last_used() == first
    await rig.clock.jump(1)
    await me(rig, token)
    assert await last_used() == first + timedelta(seconds=600)


async def test_the_uses_are_written_down_by_the_server_of_its_own_accord(rig: Rig) -> None:
    token = await new_key(rig, "default")
    async with rig.working(rig.plane.keyring.note_uses()):
        await me(rig, token)
        await rig.clock.jump(60)
        await rig.clock.wait_sleepers(1)
    assert (await rig.store.keys(WorkspaceId("default")))[0].last_used_at is not None


def test_a_client_that_nobody_here_wrote_makes_lists_and_revokes_keys(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as (url, key):
        client = pandastack.Client(api_url=url, api_key=key)
        assert client.me()["workspace"] == "default"
        made = client.tokens.create("from there", expires_in_days=3)
        assert made.token is not None
        assert (made.name, made.token[:12]) == ("from there", made.prefix)
        assert [(token.prefix, token.token) for token in client.tokens.list()] == [(made.prefix, None)]
        assert pandastack.Client(api_url=url, api_key=made.token).me()["name"] == "from there"
        client.tokens.revoke(made.prefix)
        with pytest.raises(pandastack.AuthError):
            pandastack.Client(api_url=url, api_key=made.token).me()
