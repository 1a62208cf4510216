"""Secrets, and what a sandbox may reach, as the client sends them and shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from scripted_server import SNAPSHOT, VIEW, Script, answer
from torpor import AsyncSandbox, Denied, InvalidRequest, NetworkInfo, Sandbox, Snapshot
from torpor.model.network import MAX_ENTRIES
from torpor.sdk.orders import Forking
from torpor.sdk.results import SandboxInfo
from torpor.wire.public import CreateFromSnapshot, ForkSandbox, SandboxView, SnapshotView
from torpor.wire.reach import MAX_ALLOWED

BOX, SNP = str(VIEW["id"]), str(SNAPSHOT["id"])
CANARY = "canary-value"
INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))
FORKED = {"sandbox": VIEW, "children": [VIEW], "parent_id": BOX, "snapshot_id": SNP, "at": VIEW["created_at"]}
LIST = {"allow": ["code.example.com", "198.51.100.0/24"]}


def body(script: Script, number: int = 0) -> Any:
    return json.loads(script.received[number].body)


def test_a_create_a_restore_and_a_fork_send_secrets_and_network() -> None:
    script = Script([answer(VIEW, 201), answer(VIEW, 201), answer(FORKED, 201), answer(FORKED, 201)])
    secrets, network = {"TOKEN": CANARY, "EMPTY": ""}, ("code.example.com", "198.51.100.0/24")
    with script.client() as client:
        made = Sandbox.create(client=client, secrets=secrets, network=network)
        Sandbox.restore(SNP, client=client, secrets=secrets, network=network)
        made.fork(secrets=secrets, network=network)
        made.fork(1, secrets=secrets, network=network)
    for number in range(4):
        assert (body(script, number)["secrets"], body(script, number)["network"]) == (secrets, LIST)


def test_what_is_not_said_is_not_sent_and_no_secrets_at_all_is_said() -> None:
    script = Script([answer(VIEW, 201), answer(VIEW, 201), answer(FORKED, 201), answer(FORKED, 201)])
    with script.client() as client:
        Sandbox.create(client=client)
        Sandbox.restore(SNP, client=client, secrets={}, network="none")
        Sandbox(client, INFO).fork()
        Sandbox(client, INFO).fork(secrets={})
    assert not {"secrets", "network"} & (body(script, 0).keys() | body(script, 2).keys())
    assert (body(script, 1)["secrets"], body(script, 1)["network"], body(script, 3)["secrets"]) == ({}, "none", {})


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"secrets": {"A B": CANARY}}, "secrets"),
        ({"secrets": {"A": CANARY + "\0"}}, "^secrets cannot have a NUL"),
        ({"secrets": {"A": CANARY + "\ud800"}}, "^secrets are text"),
        ({"secrets": [f"A={CANARY}"]}, "secrets: input should be a valid dictionary"),
        ({"secrets": {"A": 5}}, "secrets.A: input should be a valid string"),
        ({"network": "moon"}, '^network has to be "internet", "none" or'),
        ({"network": []}, "1 to 256 host names"),
        ({"network": 5}, '^network has to be "internet"'),
        ({"network": [5]}, '^network has to be "internet"'),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_sent_and_no_error_has_a_value(
    wish: dict[str, Any], said: str
) -> None:
    with Script([]).client() as client:
        calls: list[Callable[..., object]] = [partial(Sandbox.create, client=client), Sandbox(client, INFO).fork]
        for call in calls:
            with pytest.raises(InvalidRequest, match=said) as refused:
                call(**wish)
            causes: list[BaseException | None] = [refused.value]
            while (error := causes[-1]) is not None:
                assert CANARY not in f"{error} {error!r}"
                causes.append(error.__cause__ or error.__context__)


def test_no_order_shows_a_value() -> None:
    forking = ForkSandbox.model_validate({"secrets": {"A": CANARY}})
    creating = CreateFromSnapshot.model_validate({"secrets": {"A": CANARY}, "env": {"B": CANARY}})
    shown = [f"{order} {order!r}" for order in (Forking(None, None, False, {"A": CANARY}, None), forking, creating)]
    assert [text for text in [*shown, forking.model_dump_json()] if CANARY in text] == []


def test_a_sandbox_and_a_snapshot_show_names_and_network() -> None:
    view = SandboxView.model_validate(VIEW | {"network": LIST, "guest_ip": "198.51.100.2", "secret_names": ["A", "B"]})
    info = SandboxInfo.of(view)
    assert (info.network, info.guest_ip) == (("code.example.com", "198.51.100.0/24"), "198.51.100.2")
    assert info.secret_names == ("A", "B")
    assert (INFO.network, INFO.guest_ip, INFO.secret_names) == ("none", None, ())
    with Script([]).client() as client:
        taken = Snapshot.of(SnapshotView.model_validate(SNAPSHOT | {"network": LIST, "secret_names": ["A"]}), client)
    assert (taken.network, taken.secret_names) == (("code.example.com", "198.51.100.0/24"), ("A",))


def test_the_network_is_asked_for_and_set_and_the_sandbox_knows_it_afterwards() -> None:
    denied = {"reason": "policy", "count": 2, "destination": "198.51.100.9 tcp/443"}
    shown = {"network": "internet", "guest_ip": "198.51.100.2", "denied": [denied]}
    script = Script([answer(shown), answer({"network": LIST, "guest_ip": "198.51.100.2"})])
    with script.client() as client:
        box = Sandbox(client, INFO)
        assert box.network() == NetworkInfo("internet", "198.51.100.2", (Denied.model_validate(denied),))
        told = box.set_network(["code.example.com", "198.51.100.0/24"])
    assert told == NetworkInfo(("code.example.com", "198.51.100.0/24"), "198.51.100.2")
    assert (box.info.network, box.info.guest_ip) == (told.network, told.guest_ip)
    asked = [(one.method, one.path) for one in script.received]
    assert asked == [("GET", f"/v1/sandboxes/{BOX}/network"), ("PATCH", f"/v1/sandboxes/{BOX}/network")]
    assert body(script, 1) == {"network": LIST}


async def test_the_asynchronous_twin_does_the_same() -> None:
    script = Script([answer(FORKED, 201), answer({"network": "none"})])
    async with script.async_client() as client:
        box = AsyncSandbox(client, INFO)
        await box.fork(secrets={"A": CANARY})
        assert (await box.set_network("none")).network == "none"
    assert body(script)["secrets"] == {"A": CANARY}


def test_a_list_may_be_as_long_on_the_wire_as_in_a_policy() -> None:
    assert MAX_ALLOWED == MAX_ENTRIES
