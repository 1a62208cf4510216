"""How the command line takes secrets, and shows and sets what a sandbox may reach."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Torpor, asked, command_line
from scripted_server import SNAPSHOT, VIEW, Script, answer

BOX, SNP = str(VIEW["id"]), str(SNAPSHOT["id"])
CANARY = "canary-value"
SHOWN = answer(VIEW)
NAMED = VIEW | {"secret_names": ["A", "B"], "network": {"allow": ["code.example.com"]}, "guest_ip": "198.51.100.2"}
FORKED = {"sandbox": VIEW, "children": [VIEW], "parent_id": BOX, "snapshot_id": SNP, "at": VIEW["created_at"]}


@pytest.fixture
def torpor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Torpor:
    return command_line(monkeypatch, capfd)


def sent(script: Script) -> Any:
    return json.loads(script.received[-1].body)


def test_secrets_come_from_the_command_line_the_environment_and_a_file(
    torpor: Torpor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secrets"
    file.write_bytes(b'# a comment\n\nA=of the file\r\n B = as it is = \nQ="quoted"\n')
    monkeypatch.setenv("MINE", CANARY)
    words = ["create", "--secret-file", str(file), "--secret", "A=a=b", "--secret", "MINE", "--secret", "NONE="]
    code, out, err, script = torpor(words, answer(NAMED, 201))
    assert code == 0
    assert sent(script)["secrets"] == {"A": "a=b", "B": " as it is = ", "Q": '"quoted"', "MINE": CANARY, "NONE": ""}
    assert CANARY not in out + err


def test_a_file_of_secrets_may_be_the_standard_input(torpor: Torpor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"A={CANARY}\n".encode())))
    _, _, _, script = torpor(["restore", SNP, "--secret-file", "-"], answer(SNAPSHOT), answer(VIEW, 201))
    assert sent(script)["secrets"] == {"A": CANARY}


def test_the_secrets_of_a_snapshot_are_kept_replaced_or_removed(torpor: Torpor) -> None:
    for words, expected in (([], None), (["--secret", "A=1"], {"A": "1"}), (["--no-secrets"], {})):
        _, _, _, script = torpor(["restore", SNP, *words], answer(SNAPSHOT), answer(VIEW, 201))
        assert sent(script).get("secrets") == expected
        _, _, _, script = torpor(["fork", BOX, *words], SHOWN, answer(FORKED, 201))
        assert sent(script).get("secrets") == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--secret", f"={CANARY}"], "--secret takes NAME or NAME=VALUE, and one has no name"),
        (["--secret", "NOT_THERE"], "your environment has no variable of that name"),
        (["--secret-file", "missing"], "the file missing cannot be read: no such file"),
        (["--secret-file", "senseless"], "line 2 of the file senseless is not NAME=VALUE"),
        (["--secret-file", "binary"], "the file binary is not text in UTF-8"),
        (["--secret-file", "large"], "the file large is larger than 1 MiB"),
    ],
)
def test_what_is_no_secret_is_refused_in_a_line_without_a_value(
    torpor: Torpor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "senseless").write_text(f"A=1\n{CANARY}\n")
    (tmp_path / "binary").write_bytes(b"A=\xff" + CANARY.encode())
    (tmp_path / "large").write_bytes(b"A=" + b"x" * 1024 * 1024)
    code, out, err, script = torpor(["create", *words])
    assert code != 0
    assert said in err
    assert CANARY not in out + err
    assert script.received == []


def test_no_secrets_and_some_exclude_each_other(torpor: Torpor) -> None:
    code, _, err, _ = torpor(["fork", BOX, "--no-secrets", "--secret", "A=1"], SHOWN)
    assert code != 0
    assert "--no-secrets" in err


@pytest.mark.parametrize(
    ("words", "network"),
    [
        ([], None),
        (["--network", "none"], "none"),
        (["--network", "allow:code.example.com, *.example.org"], {"allow": ["code.example.com", "*.example.org"]}),
        (
            ["--allow", "code.example.com", "--allow", "198.51.100.0/24"],
            {"allow": ["code.example.com", "198.51.100.0/24"]},
        ),
    ],
)
def test_what_a_new_sandbox_may_reach_is_said_in_words(torpor: Torpor, words: list[str], network: object) -> None:
    _, _, _, script = torpor(["create", *words], answer(VIEW, 201))
    assert sent(script).get("network") == network
    _, _, _, script = torpor(["fork", BOX, *words], SHOWN, answer(FORKED, 201))
    assert sent(script).get("network") == network


def test_two_ways_to_say_it_exclude_each_other(torpor: Torpor) -> None:
    code, _, err, script = torpor(["create", "--network", "none", "--allow", "code.example.com"])
    assert (code != 0, script.received) == (True, [])
    assert "--allow" in err


def test_show_tells_names_and_network(torpor: Torpor) -> None:
    _, out, _, _ = torpor(["show", BOX], answer(NAMED))
    assert "only code.example.com" in out
    assert "198.51.100.2" in out
    assert "A, B" in out


def test_network_shows_and_sets(torpor: Torpor) -> None:
    denied = {"reason": "policy", "count": 3, "destination": "198.51.100.9 tcp/443"}
    state = answer({"network": {"allow": ["code.example.com"]}, "guest_ip": "198.51.100.2", "denied": [denied]})
    code, out, _, script = torpor(["network", BOX], SHOWN, state)
    assert (code, asked(script)[1]) == (0, f"GET sandboxes/{BOX}/network")
    assert "only code.example.com" in out
    assert "198.51.100.9 tcp/443" in out
    for words, network in (
        (["none"], "none"),
        (["allow:a.example"], {"allow": ["a.example"]}),
        (["--allow", "b.example"], {"allow": ["b.example"]}),
    ):
        _, _, _, script = torpor(["network", BOX, *words], SHOWN, answer({"network": network}))
        assert (asked(script)[1], sent(script)) == (f"PATCH sandboxes/{BOX}/network", {"network": network})
    _, out, _, _ = torpor(["network", BOX, "--json"], SHOWN, state)
    assert json.loads(out) == {"network": ["code.example.com"], "guest_ip": "198.51.100.2", "denied": [denied]}
