"""`torpor token` and `torpor audit`: what they ask for, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from command_line import Torpor, asked, command_line
from scripted_server import Reply, Script, answer, refusal
from torpor import AsyncClient
from torpor.errors import InvalidRequest, QuotaExceeded, RateLimited
from torpor.sdk.retry import Attempts, Retry

TOKEN = "tpr_abcdefgh" + "x" * 35


@pytest.fixture
def torpor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Torpor:
    return command_line(monkeypatch, capsys)


def view(**changes: Any) -> dict[str, Any]:
    return {
        "prefix": "tpr_abcdefgh",
        "name": "ci",
        "workspace": "lab",
        "role": "member",
        "created_at": "2030-01-01T00:00:00Z",
        "created_by": "tpr_maker000",
        "expires_at": None,
        "revoked_at": None,
        "last_used_at": None,
        **changes,
    }


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "number": 7,
        "at": "2030-01-01T00:00:00Z",
        "kind": "change",
        "action": "DELETE /v1/sandboxes/{id}",
        "targets": ["sbx-1"],
        "status": 204,
        "workspace": "lab",
        "key": "tpr_abcdefgh",
        "client": "203.0.113.7",
        "request_id": "req-1",
        "count": 1,
        **changes,
    }


def test_a_key_is_printed_alone_so_that_a_shell_can_keep_it(torpor: Torpor) -> None:
    argv = ["token", "create", "ci", "--expires", "12h", "--workspace", "lab", "--admin"]
    code, out, _, script = torpor(argv, answer({**view(), "token": TOKEN}, 201))
    assert (code, out) == (0, f"{TOKEN}\n")
    assert asked(script) == ["POST me/tokens"]
    (request,) = script.received
    assert json.loads(request.body) == {"label": "ci", "expires_in_days": 0.5, "workspace": "lab", "role": "admin"}
    assert request.headers["Idempotency-Key"]


def test_a_create_whose_answer_was_lost_is_sent_again_under_the_same_key(torpor: Torpor) -> None:
    code, out, _, script = torpor(["token", "create", "ci"], answer({}, 500), answer({**view(), "token": TOKEN}, 201))
    assert (code, out) == (0, f"{TOKEN}\n")
    assert len({request.headers["Idempotency-Key"] for request in script.received}) == 1


def test_keys_are_listed_with_their_states(torpor: Torpor) -> None:
    views = [
        view(),
        view(prefix="tpr_bbbbbbbb", revoked_at="2030-01-02T00:00:00Z", last_used_at="2030-01-01T00:00:00Z"),
        view(prefix="tpr_cccccccc", expires_at="2031-01-01T00:00:00Z", name="odd \x1b[2J"),
    ]
    code, out, _, script = torpor(["token", "list", "--workspace", "lab"], answer({"items": views}))
    assert code == 0
    assert script.received[0].query == {"workspace": "lab"}
    lines = out.splitlines()
    for line, words in zip(lines[1:], ("no end", "revoked", "ends 2031"), strict=True):
        assert words in line
    assert "\x1b" not in out
    shown = torpor(["token", "list", "--json"], answer({"items": views}))[1]
    assert [item["prefix"] for item in json.loads(shown)] == [one["prefix"] for one in views]


def test_keys_are_revoked_by_their_beginnings_and_a_whole_one_is_never_sent(torpor: Torpor) -> None:
    code, out, err, script = torpor(["token", "revoke", "tpr_abcdefgh", TOKEN, "tpr_bbbb"], Reply(204), Reply(204))
    assert code == 1
    assert out == "tpr_abcdefgh is revoked\ntpr_bbbb is revoked\n"
    assert asked(script) == ["DELETE me/tokens/tpr_abcdefgh", "DELETE me/tokens/tpr_bbbb"]
    assert TOKEN not in err
    assert "tpr_abcdefgh..." in err


@pytest.mark.parametrize("prefix", ["", "short", "a/b/c/d/e", "tpr_abcdefghi", TOKEN])
async def test_the_sdk_sends_no_prefix_that_is_none(prefix: str) -> None:
    async with AsyncClient("http://127.0.0.1:1", "key") as client:
        with pytest.raises(InvalidRequest, match="first 8 to 12 characters"):
            await client.tokens.revoke(prefix)


def test_the_audit_log_is_shown_the_newest_first_and_no_further_than_asked(torpor: Torpor) -> None:
    first = {"items": [entry(number=9), entry(number=8, status=None, key=None, count=3)], "next_cursor": "8"}
    code, out, _, script = torpor(["audit", "--limit", "2", "--kind", "change", "--workspace", "*"], answer(first))
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 3
    for words in ("tpr_abcdefgh", "203.0.113.7", "DELETE /v1/sandboxes/{id}", "sbx-1", "204"):
        assert words in lines[1]
    assert "broken off" in lines[2]
    assert "x 3" in lines[2]
    (request,) = script.received
    assert (request.query["workspace"], request.query["kind"]) == ("*", "change")


def test_the_audit_log_goes_on_where_a_page_ends_and_is_json_a_line_for_programs(torpor: Torpor) -> None:
    pages = ({"items": [entry(number=9)], "next_cursor": "9"}, {"items": [entry(number=8)], "next_cursor": None})
    code, out, _, script = torpor(["audit", "--json"], *map(answer, pages))
    assert code == 0
    assert [json.loads(line)["number"] for line in out.splitlines()] == [9, 8]
    assert script.received[1].query["cursor"] == "9"


def test_who_asks_too_often_asks_again_when_told_and_who_is_out_of_quota_does_not() -> None:
    me: dict[str, Any] = {"workspace": "lab", "role": "member", "prefix": "tpr_abcdefgh", "name": "ci"}
    me |= {"limits": {"rate_per_second": 1, "rate_burst": 1}}
    limited = refusal(RateLimited("too often"), **{"Retry-After": "0"})
    script = Script([limited, limited, answer(me)])
    assert script.client().me().workspace == "lab"
    assert len(script.received) == 3
    out_of_quota = Script([refusal(QuotaExceeded("1000 keys"))])
    with pytest.raises(QuotaExceeded):
        out_of_quota.client().tokens.create("one more")


def test_a_wait_is_as_long_as_the_server_says_or_the_error_is_told_at_once() -> None:
    error = RateLimited("too often")
    error.retry_after_s = 3.0
    assert Attempts(Retry()).delay_s(error, repeatable=False) == 3.0
    error.retry_after_s = 60.0
    assert Attempts(Retry(patience_s=15)).delay_s(error, repeatable=False) is None
