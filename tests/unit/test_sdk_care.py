"""What the server is asked to do for a sandbox of its own accord."""

from __future__ import annotations

import json

import pytest

from scripted_server import SNAPSHOT, VIEW, Script, answer
from torpor import InvalidRequest, Sandbox
from torpor.sdk.results import SandboxInfo
from torpor.wire.public import SandboxView

CARE = {
    "idle_timeout_seconds": 60,
    "on_idle": "delete",
    "on_crash": "restore",
    "checkpoint_every_seconds": 30,
    "checkpoint_every_execs": 5,
    "checkpoint_keep": 2,
}
LIFE = {"ttl_seconds": 60, "persistent": False, "expires_at": "2030-01-01T00:01:00Z", "idle_seconds": 90}
INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))


def test_a_create_and_a_restore_ask_for_it_and_the_info_shows_it() -> None:
    script = Script([answer(VIEW | CARE, 201), answer(VIEW | CARE, 201)])
    with script.client() as client:
        made = Sandbox.create(client=client, **CARE)  # type: ignore[arg-type]
        Sandbox.restore(str(SNAPSHOT["id"]), client=client, **CARE)  # type: ignore[arg-type]
    for one in script.received:
        assert json.loads(one.body).items() >= CARE.items()
    assert {name: getattr(made.info, name) for name in CARE} == CARE


def test_what_is_not_asked_for_is_the_servers_default() -> None:
    script = Script([answer(VIEW, 201)])
    with script.client() as client:
        Sandbox.create(client=client)
    assert "idle_timeout_seconds" not in json.loads(script.received[0].body)
    assert (INFO.idle_timeout_seconds, INFO.on_idle, INFO.on_crash, INFO.checkpoint_keep) == (
        None,
        "hibernate",
        "fail",
        3,
    )


@pytest.mark.parametrize(
    ("care", "word"),
    [
        ({"idle_timeout_seconds": 0}, "idle_timeout_seconds"),
        ({"on_idle": "explode"}, "on_idle"),
        ({"on_crash": "weep"}, "on_crash"),
        ({"checkpoint_every_execs": -1}, "checkpoint_every_execs"),
        ({"checkpoint_keep": 0}, "checkpoint_keep"),
    ],
)
def test_a_wrong_wish_is_named_before_anything_is_sent(care: dict[str, object], word: str) -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match=word):
        Sandbox.create(client=client, **care)  # type: ignore[arg-type]


def test_a_keyword_that_is_none_is_a_type_error() -> None:
    with Script([]).client() as client, pytest.raises(TypeError, match="on_idel"):
        Sandbox.create(client=client, on_idel="delete")  # type: ignore[call-arg]


def test_the_idle_time_is_changed_and_taken_away() -> None:
    script = Script([answer(LIFE), answer(LIFE | {"idle_seconds": None})])
    with script.client() as client:
        box = Sandbox(client, INFO)
        assert box.set_idle(90).idle_timeout_seconds == 90
        assert box.set_idle(None).idle_timeout_seconds is None
        with pytest.raises(InvalidRequest, match="at least 1 second"):
            box.set_idle(0)
    assert [json.loads(one.body) for one in script.received] == [{"idle_seconds": 90}, {"idle_seconds": 0}]


def test_the_end_of_its_life_can_be_taken_away() -> None:
    script = Script([answer(LIFE | {"persistent": True, "ttl_seconds": None, "expires_at": None})])
    with script.client() as client:
        assert Sandbox(client, INFO).set_ttl(None).persistent
    assert json.loads(script.received[0].body) == {"persistent": True}
