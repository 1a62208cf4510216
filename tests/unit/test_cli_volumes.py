"""How the command line and the SDK name volumes, and how they show them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from command_line import Torpor, command_line
from scripted_server import VIEW, Script, answer
from torpor.errors import InvalidRequest
from torpor.sdk.volumes import Volume, wishes_of

BOX = str(VIEW["id"])
HELD: dict[str, Any] = {
    "id": "vol-0000000000000001",
    "name": "data",
    "size_mb": 64,
    "created_at": "2030-01-01T12:00:00Z",
    "disk_bytes": 4096,
    "attached_to": [{"sandbox_id": BOX, "path": "/data", "read_only": True}],
    "problem": None,
}
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def torpor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Torpor:
    return command_line(monkeypatch, capfd)


def sent(script: Script) -> Any:
    return json.loads(script.received[-1].body)


@pytest.mark.parametrize(("size", "megabytes"), [("500", 500), ("500m", 500), ("2g", 2048), ("1T", 1048576)])
def test_a_volume_is_made_by_name_and_size(torpor: Torpor, size: str, megabytes: int) -> None:
    code, out, _, script = torpor(["volume", "create", "data", "--size", size], answer(HELD, 201))
    assert (code, out.strip()) == (0, "data")
    assert sent(script) == {"name": "data", "size_mb": megabytes}


def test_volumes_are_listed_and_shown_with_who_has_them(torpor: Torpor) -> None:
    missing = HELD | {"name": "gone", "problem": "its file is not on the host", "attached_to": []}
    _, out, _, _ = torpor(["volume", "list"], answer({"items": [HELD, missing]}))
    assert f"{BOX} (ro)" in out
    assert "missing" in out
    _, out, _, _ = torpor(["volume", "show", "data", "--json"], answer(HELD))
    assert json.loads(out)["attached_to"] == HELD["attached_to"]
    code, out, _, _ = torpor(["volume", "list"], answer({"items": []}))
    assert (code, out) == (0, "")
    _, out, _, _ = torpor(["volume", "show", "gone"], answer(missing))
    assert "its file is not on the host" in out


def test_volumes_are_deleted_one_after_another(torpor: Torpor) -> None:
    problem = {"error": "sandbox x has it", "code": "conflict"}
    code, out, err, _ = torpor(["volume", "rm", "a", "b"], answer(problem, 409), answer(None, 204))
    assert code == 1
    assert "sandbox x has it" in err
    assert "b is deleted" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data", {"name": "data"}),
        ("data:ro", {"name": "data", "read_only": True}),
        ("data:/x", {"name": "data", "path": "/x"}),
        ("data:/x:ro", {"name": "data", "path": "/x", "read_only": True}),
        ("data:/x:rw", {"name": "data", "path": "/x"}),
    ],
)
def test_a_sandbox_is_made_with_volumes(torpor: Torpor, text: str, expected: dict[str, Any]) -> None:
    attached = {"name": "data", "path": "/x", "read_only": True, "is_copy": False}
    code, _, _, script = torpor(["create", "--volume", text], answer(VIEW | {"volumes": [attached]}, 201))
    assert code == 0
    assert sent(script)["volumes"] == [{"read_only": False} | expected]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "--volume", ":/x"], "--volume takes"),
        (["create", "--volume", "data:/x:/y"], "--volume takes"),
        (["create", "--volume", "data:x"], "absolute path"),
        (["create", "--volume", "data:/proc"], "/proc"),
        (["volume", "create", "data", "--size", "much"], "--size takes"),
        (["volume", "create", "a/b"], "letters, digits"),
        (["volume", "show", "a/b"], "not the id of a volume"),
    ],
)
def test_what_names_no_volume_is_refused_in_a_line(torpor: Torpor, words: list[str], said: str) -> None:
    code, _, err, _ = torpor(words)
    assert code != 0
    assert said in err


def test_a_sandbox_shows_its_volumes(torpor: Torpor) -> None:
    attached = [
        {"name": "data", "path": "/data", "read_only": True, "is_copy": False},
        {"name": "more", "path": "/more", "read_only": False, "is_copy": True},
    ]
    _, out, _, _ = torpor(["show", BOX], answer(VIEW | {"volumes": attached}))
    assert "data at /data, read-only, more at /more, a copy" in out
    _, out, _, _ = torpor(["show", BOX, "--json"], answer(VIEW | {"volumes": attached}))
    assert json.loads(out)["volumes"] == attached


def test_the_sdk_takes_mappings_names_volumes_and_the_api_s_own_form() -> None:
    volume = Volume("vol-0000000000000001", "data", 64, NOON, 0, (), None)
    assert wishes_of({"data": "/data"}) == [{"name": "data", "path": "/data"}]
    whole = {"name": "more", "read_only": True}
    assert wishes_of(["x", volume, whole]) == [{"name": "x"}, {"name": "data"}, whole]
    assert wishes_of(None) is wishes_of([]) is None
    for wrong in ("data", [7]):
        with pytest.raises(InvalidRequest):
            wishes_of(wrong)  # type: ignore[arg-type]
