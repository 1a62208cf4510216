"""Secrets through the API: in the environment of commands, and nowhere else."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from control_rig import Rig, control_rig
from torpor.control.hosts import HostClient
from torpor.control.reconcile import reconcile
from torpor.control.service.claims import claim_for
from torpor.control.service.plane import plane_of
from torpor.control.service.recovery import begin_recovery
from torpor.control.store.sql import open_store
from torpor.model.ids import SandboxId
from torpor.testing.clock import JumpClock
from torpor.testing.host import FakeHost
from torpor.testing.store import MemoryStore
from torpor.wire.reach import MAX_SECRET_BYTES, MAX_SECRETS, MAX_SECRETS_BYTES

CANARY = "canary-value-that-nobody-may-see"
GIVEN = {"TOKEN": CANARY, "EMPTY": ""}
JSON = {"content-type": "application/json"}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


async def secret_in(rig: Rig, sandbox_id: str, name: str = "TOKEN") -> str | None:
    """Return the value that a command of the sandbox finds, None if it finds none."""
    told = await rig.post(sandbox_id, "exec", cmd=["printenv", name])
    return None if told["exit_code"] else told["stdout"].removesuffix("\n")


async def names(rig: Rig, sandbox_id: str) -> list[str]:
    found: list[str] = (await rig.show(sandbox_id))["secret_names"]
    return found


async def test_commands_find_them_and_the_sandbox_shows_their_names(rig: Rig) -> None:
    made = await rig.create(env={"PLAIN": "1"}, secrets=GIVEN)
    assert await names(rig, made) == ["EMPTY", "TOKEN"]
    assert await secret_in(rig, made) == CANARY
    assert await secret_in(rig, made, "EMPTY") == ""
    assert await secret_in(rig, made, "PLAIN") == "1"
    told = await rig.post(made, "exec", cmd=["printenv", "TOKEN"], env={"TOKEN": "of this command"})
    assert told["stdout"] == "of this command\n"


async def questions(rig: Rig) -> list[str]:
    """Return the path of every question that the API describes, but for those about something in the guest by name."""
    described = (await rig.http.get("/openapi.json")).json()["paths"]
    return [place for place, methods in described.items() if "get" in methods and "{" not in place.replace("{id}", "")]


async def everything_said_of(rig: Rig, made: str) -> list[str]:
    """Return every answer that tells of a sandbox, after all of its verbs but those that run a command with a value."""
    said = [(await rig.http.post("/v1/sandboxes", json={"secrets": GIVEN, "name": "other"})).text]
    for verb in ("snapshots", "hibernate", "wake", "pause", "resume", "fork"):
        said.append((await rig.http.post(f"/v1/sandboxes/{made}/{verb}", json={})).text)
    snapshot = json.loads(said[1])["id"]
    said.append((await rig.http.post(f"/v1/sandboxes/{made}/rollback", json={"snapshot": snapshot})).text)
    await rig.post(made, "exec", cmd=["true"])
    await rig.post(made, "processes", cmd=["true"])
    await rig.plane.noter.flush()
    places = await questions(rig)
    assert len(places) > 15
    for place in places:
        about = snapshot if place.startswith("/v1/snapshots") else made
        said.append((await rig.http.get(place.replace("{id}", about))).text)
    return said


async def test_no_answer_event_log_or_byte_of_the_database_has_a_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(tmp_path / "torpor.db")
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        async with control_rig(store) as rig:
            body = {"secrets": GIVEN, "env": {"SHY": CANARY}}
            answer = await rig.http.post("/v1/sandboxes", json=body, headers={"idempotency-key": "k"})
            made = answer.json()["id"]
            said = [answer.text, *await everything_said_of(rig, made), repr(rig.plane), repr(await store.living())]
            # Read while it is open, so that the write-ahead log is there too.
            files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    await store.aclose()
    assert [text for text in said if CANARY in text] == []
    assert CANARY not in repr(logs) + caplog.text
    assert "torpor.db-wal" in files
    assert [name for name, data in files.items() if CANARY.encode() in data] == []
    assert b"TOKEN" in b"".join(files.values()), "it is looked for where it would be"


def digest(seal: bytes, hidden: dict[str, str]) -> str:
    """Return what is recorded of a request by a server with this seal."""
    plane = plane_of(MemoryStore(), HostClient(FakeHost().transport()), JumpClock(), seal=seal)
    claim = claim_for(plane, {"a": 1}, hidden, "k")
    assert claim is not None
    return claim.digest


def test_the_record_of_a_request_tells_nobody_without_the_seal_what_its_secrets_were() -> None:
    one, other = b"1" * 32, b"2" * 32
    assert len({digest(seal, {"pin": pin}) for seal in (one, other) for pin in "12"}) == 4
    assert digest(one, {"pin": "1"}) == digest(one, {"pin": "1"})
    assert digest(one, {}) == digest(other, {}), "what hides nothing is recognised by every server"


async def test_a_request_sent_again_is_the_same_only_with_the_same_values(rig: Rig) -> None:
    key = {"idempotency-key": "k"}
    first = await rig.http.post("/v1/sandboxes", json={"secrets": {"A": "1"}}, headers=key)
    again = await rig.http.post("/v1/sandboxes", json={"secrets": {"A": "1"}}, headers=key)
    assert (first.status_code, first.json()) == (201, again.json())
    for secrets in ({"A": "2"}, {"B": "1"}, {}, None):
        other = await rig.http.post("/v1/sandboxes", json={"secrets": secrets}, headers=key)
        assert other.status_code == 409, secrets
    url, key = f"/v1/sandboxes/{first.json()['id']}/fork", {"idempotency-key": "f"}
    forked = await rig.http.post(url, json={"secrets": {"A": "1"}}, headers=key)
    assert (await rig.http.post(url, json={"secrets": {"A": "1"}}, headers=key)).json() == forked.json()
    assert (await rig.http.post(url, json={"secrets": {"A": "2"}}, headers=key)).status_code == 409
    assert (await rig.http.post(url, json={}, headers=key)).status_code == 409


REPLACED = [(None, CANARY, ["EMPTY", "TOKEN"]), ({}, None, []), ({"TOKEN": "new"}, "new", ["TOKEN"])]


@pytest.mark.parametrize(("secrets", "found", "shown"), REPLACED, ids=["kept", "removed", "replaced"])
@pytest.mark.parametrize("state", ["running", "hibernated"])
async def test_a_fork_keeps_them_or_has_others_in_place_of_all_of_them(
    rig: Rig, state: str, secrets: dict[str, str] | None, found: str | None, shown: list[str]
) -> None:
    parent = await rig.create(secrets=GIVEN)
    if state == "hibernated":
        await rig.post(parent, "hibernate")
    children = (await rig.post(parent, "fork", count=2, secrets=secrets))["children"]
    for child in children:
        assert child["secret_names"] == shown
        assert await secret_in(rig, child["id"]) == found
        assert (await secret_in(rig, child["id"], "EMPTY") is None) == (secrets is not None)
    assert await secret_in(rig, parent) == CANARY


@pytest.mark.parametrize(("secrets", "found", "shown"), REPLACED, ids=["kept", "removed", "replaced"])
async def test_a_restore_keeps_them_or_has_others_in_place_of_all_of_them(
    rig: Rig, secrets: dict[str, str] | None, found: str | None, shown: list[str]
) -> None:
    taken = await rig.post(await rig.create(secrets=GIVEN), "snapshots")
    assert taken["secret_names"] == ["EMPTY", "TOKEN"]
    made = await rig.create(from_snapshot=taken["id"], secrets=secrets)
    assert (await secret_in(rig, made), await names(rig, made)) == (found, shown)


async def test_a_wake_and_a_rollback_keep_them(rig: Rig) -> None:
    made = await rig.create(secrets=GIVEN)
    await rig.post(made, "hibernate")
    await rig.post(made, "wake")
    assert await secret_in(rig, made) == CANARY
    taken = (await rig.post(made, "snapshots"))["id"]
    back = await rig.post(made, "rollback", snapshot=taken)
    assert (await secret_in(rig, made), back["secret_names"]) == (CANARY, ["EMPTY", "TOKEN"])


async def replaced(rig: Rig, **wish: Any) -> tuple[str, str]:
    """Return a sandbox whose secrets are others than those of the snapshot it was made from, and that snapshot."""
    origin = (await rig.post(await rig.create(secrets=GIVEN), "snapshots"))["id"]
    return await rig.create(from_snapshot=origin, secrets={"TOKEN": "own"}, **wish), origin


async def test_whose_secrets_were_replaced_never_gets_those_of_its_origin_back(rig: Rig) -> None:
    made, origin = await replaced(rig)
    own = (await rig.post(made, "snapshots"))["id"]
    assert (await rig.post(made, "rollback", snapshot=origin))["secret_names"] == []
    assert await secret_in(rig, made) is None
    assert ("secrets", {"removed": ["TOKEN"], "snapshot_id": origin}) in await rig.told(made, "secrets")
    assert (await rig.post(made, "rollback", snapshot=own))["secret_names"] == ["TOKEN"]
    assert await secret_in(rig, made) == "own"


async def test_nor_does_a_recovery_from_a_crash_give_them_back(rig: Rig) -> None:
    made, origin = await replaced(rig, on_crash="restore")
    rig.host.vanish(made)
    await reconcile(rig.plane)
    await rig.wait_status(made, "running")
    assert (await secret_in(rig, made), await names(rig, made)) == (None, [])
    assert await rig.told(made, "recovered") == [("recovered", {"snapshot_id": origin})]


async def test_a_recovery_from_a_crash_keeps_a_sandboxs_own(rig: Rig) -> None:
    made = await rig.create(secrets=GIVEN, on_crash="restore")
    await rig.post(made, "snapshots")
    rig.host.vanish(made)
    await reconcile(rig.plane)
    await rig.wait_status(made, "running")
    assert (await secret_in(rig, made), await names(rig, made)) == (CANARY, ["EMPTY", "TOKEN"])


async def test_names_are_right_after_a_rollback_whose_answer_was_lost(rig: Rig) -> None:
    made, origin = await replaced(rig)
    rig.host.lose_answer("rollback")
    answer = await rig.http.post(f"/v1/sandboxes/{made}/rollback", json={"snapshot": origin})
    assert answer.json()["code"] == "outcome_unknown"
    await reconcile(rig.plane)
    assert (await rig.status(made), await names(rig, made)) == ("running", [])


MOST = "x" * MAX_SECRET_BYTES
BAD = [
    ({"secrets": ["TOKEN=" + CANARY]}, "secrets has to be a valid dictionary"),
    ({"secrets": {"TOKEN": 5}}, "secrets.TOKEN has to be a valid string"),
    ({"secrets": {"A B": CANARY}}, "secrets.A B has to match"),
    ({"secrets": {"": CANARY}}, "secrets"),
    ({"secrets": {"1A": CANARY}}, "secrets.1A"),
    ({"secrets": {"A": CANARY + "\0"}}, "secrets cannot have a NUL in them, as A has"),
    ({"secrets": {"A": CANARY + "\ud800"}}, "secrets are text, and A has half a surrogate pair"),
    ({"secrets": {"A": MOST + "y"}}, "secrets have at most 64 KiB each, and A has 65537 bytes"),
    ({"secrets": {"A": "\xe9" * (MAX_SECRET_BYTES // 2) + "y"}}, "and A has 65537 bytes"),
    ({"secrets": dict.fromkeys("ABCD", MOST)}, "secrets have at most 256 KiB together, and these have 262148 bytes"),
    ({"secrets": {f"A{number}": "" for number in range(MAX_SECRETS + 1)}}, "at most 128 items"),
    ({"secrets": {"TORPOR_SANDBOX_ID": CANARY}}, "secrets cannot have TORPOR_SANDBOX_ID"),
    ({"secrets": {"A": CANARY}, "env": {"A": "1"}}, "secrets and env both have A"),
]


@pytest.mark.parametrize(("body", "said"), BAD)
async def test_secrets_that_cannot_be_are_refused_in_a_sentence_without_a_value(
    rig: Rig, body: dict[str, Any], said: str
) -> None:
    with capture_logs() as logs:
        answer = await rig.http.post("/v1/sandboxes", content=json.dumps(body).encode(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert said in answer.json()["error"]
    assert CANARY not in answer.text + repr(logs)
    assert rig.host.machines == {}
    if "env" not in body:
        made = await rig.create()
        answer = await rig.http.post(f"/v1/sandboxes/{made}/fork", content=json.dumps(body).encode(), headers=JSON)
        assert (answer.status_code, said in answer.json()["error"], CANARY in answer.text) == (400, True, False)


async def test_as_many_and_as_long_secrets_as_are_allowed_arrive(rig: Rig) -> None:
    most = {f"A{number}": "" for number in range(MAX_SECRETS - 4)} | dict.fromkeys(["B", "C", "D"], MOST)
    left = MAX_SECRETS_BYTES - sum(len(name) + len(value) for name, value in most.items()) - 1
    made = await rig.create(secrets=most | {"E": "e" * left})
    assert await secret_in(rig, made, "E") == "e" * left
    assert await secret_in(rig, made, "D") == MOST


async def test_the_recovery_of_a_sandbox_that_was_forked_without_secrets_has_none(rig: Rig) -> None:
    parent = await rig.create(secrets=GIVEN, on_crash="restore")
    child = (await rig.post(parent, "fork", secrets={}))["sandbox"]["id"]
    rig.host.die(child)
    sandbox = await rig.store.get(SandboxId(child))
    assert sandbox is not None
    await reconcile(rig.plane)
    begin_recovery(rig.plane, sandbox)
    await rig.wait_status(child, "running")
    assert await secret_in(rig, child) is None
