"""How the command line puts sandboxes to sleep, takes snapshots, copies, and shows who came from whom."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from command_line import Torpor, asked, command_line
from scripted_server import SNAPSHOT, VIEW, Reply, Script, answer, refusal
from torpor import Client, Conflict, NotFound, SandboxInfo, SandboxLost, Snapshot, SnapshotCorrupt
from torpor.cli import output, wording
from torpor.cli.tree import Node, _branch, grown
from torpor.wire.public import SandboxView, SnapshotView

Captured = pytest.CaptureFixture[str]

A, B, C = "sbx-bbbbbbbbbbbbbbbb", "sbx-cccccccccccccccc", "sbx-dddddddddddddddd"
S, T = "snp-bbbbbbbbbbbbbbbb", "snp-cccccccccccccccc"


def page(*items: dict[str, object]) -> Reply:
    return answer({"items": items, "next_cursor": None})


@pytest.fixture
def torpor(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> Torpor:
    return command_line(monkeypatch, capfd)


def test_several_sandboxes_are_put_to_sleep_and_one_that_is_not_there_is_told(torpor: Torpor) -> None:
    slept = answer({"status": "hibernated", "snapshot_id": S})
    code, out, err, script = torpor(
        ["hibernate", A, B, C, "--json"],
        answer(VIEW | {"id": A}),
        slept,
        refusal(NotFound("there is no sandbox B")),
        answer(VIEW | {"id": C}),
        slept,
    )
    told = json.loads(out)
    assert code == 1
    assert [(one["id"], one["state"], one["last_snapshot_id"]) for one in told] == [
        (A, "hibernated", S),
        (C, "hibernated", S),
    ]
    assert json.loads(err)["error"] == "there is no sandbox B"
    assert asked(script)[1] == f"POST sandboxes/{A}/hibernate"


@pytest.mark.parametrize(
    ("verb", "reply"), [("wake", answer({"status": "running"})), ("pause", Reply(204)), ("resume", Reply(204))]
)
def test_other_changes_of_state_print_nothing_where_no_person_looks(torpor: Torpor, verb: str, reply: Reply) -> None:
    code, out, err, script = torpor([verb, A], answer(VIEW | {"id": A}), reply)
    assert (code, out, err) == (0, "", "")
    assert asked(script)[1] == f"POST sandboxes/{A}/{verb}"


def test_a_wake_can_set_a_new_end(torpor: Torpor) -> None:
    code, _, _, script = torpor(["wake", A, "--ttl", "2h"], answer(VIEW), answer({"status": "running"}), answer(VIEW))
    assert (code, script.received[1].body) == (0, b'{"ttl_seconds":7200}')


@pytest.mark.parametrize("words", [["snapshot", A], ["snapshot", "--name", "ready", A], ["snapshot", "take", A]])
def test_a_snapshot_prints_its_id_alone(torpor: Torpor, words: list[str]) -> None:
    code, out, err, script = torpor(words, answer(VIEW | {"id": A}), answer(SNAPSHOT | {"id": S}, 201))
    assert (code, out, err) == (0, f"{S}\n", "")
    assert asked(script)[1] == f"POST sandboxes/{A}/snapshots"
    assert json.loads(script.received[1].body) == ({"name": "ready"} if "--name" in words else {})


def test_a_sandbox_with_the_name_of_a_command_can_be_said_with_take(torpor: Torpor) -> None:
    code, out, _, _ = torpor(
        ["snapshot", "take", "rm"], page(VIEW | {"id": A, "name": "rm"}), answer(SNAPSHOT | {"id": S}, 201)
    )
    assert (code, out) == (0, f"{S}\n")


def test_a_snapshot_tells_a_person_its_size_and_the_way_back() -> None:
    script = Script([answer(VIEW | {"id": A}), answer(SNAPSHOT | {"id": S}, 201)])
    seen, terminal = pty.openpty()
    with script.listening() as url:
        environment = os.environ | {"TORPOR_API": url, "TORPOR_API_KEY": "k", "NO_COLOR": "1", "TERM": "dumb"}
        argv = [sys.executable, "-m", "torpor.cli", "snapshot", A]
        ran = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stderr=terminal, check=True)
    os.close(terminal)
    said = os.read(seen, 65536).decode()
    os.close(seen)
    assert ran.stdout.decode() == f"{S}\n"
    assert "16.0 MiB, durable in 130 ms; the sandbox stood still for 42 ms of it" in said
    assert f"torpor rollback {A} {S}" in said


def test_snapshots_are_listed_for_people_and_programs(torpor: Torpor) -> None:
    items = [SNAPSHOT | {"id": T, "name": "ready", "parent_id": S}, SNAPSHOT | {"id": S, "kind": "hibernation"}]
    code, out, _, script = torpor(["snapshots"], page(*items))
    head, first, second = out.splitlines()
    assert (code, head.split()) == (0, ["ID", "SANDBOX", "KIND", "NAME", "SIZE", "AGE", "PARENT"])
    assert first.split()[:6] == [T, VIEW["id"], "checkpoint", "ready", "16.0", "MiB"]
    assert first.split()[-1] == S
    assert "hibernation" in second
    assert script.received[0].query == {}
    code, out, _, script = torpor(["snapshots", A, "--json", "--limit", "1"], answer(VIEW | {"id": A}), page(*items))
    (one,) = json.loads(out)
    assert (one["id"], one["size_bytes"], one["pause_ms"], "_client" in one) == (T, 16 * 2**20, 42.5, False)
    assert script.received[1].query == {"sandbox_id": A}


def test_one_snapshot_is_shown_whole(torpor: Torpor) -> None:
    code, out, _, _ = torpor(["snapshot", "show", S], answer(SNAPSHOT | {"id": S, "parent_id": T}))
    assert code == 0
    for word in (S, T, str(VIEW["id"]), "checkpoint", "16.0 MiB", "42 ms", "130 ms"):
        assert word in out


def test_a_damaged_snapshot_is_told_and_the_next_is_read_all_the_same(torpor: Torpor) -> None:
    code, out, err, _ = torpor(
        ["snapshot", "verify", S, T],
        answer(SNAPSHOT | {"id": S}),
        refusal(SnapshotCorrupt("the memory of snp is not what was written")),
        answer(SNAPSHOT | {"id": T}),
        answer({"id": T, "checked_bytes": 2048, "took_ms": 12.0}),
    )
    assert (code, out) == (1, f"{T}  ok  2.0 KiB read in 12 ms\n")
    assert err == "error: the memory of snp is not what was written.\n"


def test_snapshots_are_removed_by_id_or_name(torpor: Torpor) -> None:
    code, out, err, script = torpor(
        ["snapshot", "rm", "ready", T, "--json"],
        page(SNAPSHOT | {"id": S, "name": "ready"}),
        Reply(204),
        refusal(NotFound("there is no snapshot T")),
    )
    assert (code, json.loads(out), json.loads(err)["code"]) == (1, {"deleted": [S]}, "not_found")
    assert asked(script)[1] == f"DELETE snapshots/{S}"
    assert torpor(["snapshot", "rm", "-f", T], refusal(NotFound("none")))[:3] == (0, "", "")


def test_a_name_that_two_snapshots_bear_is_not_guessed(torpor: Torpor) -> None:
    twice = [SNAPSHOT | {"id": S, "name": "ready"}, SNAPSHOT | {"id": T, "name": "ready"}]
    code, _, err, _ = torpor(["restore", "ready"], page(*twice))
    assert (code, err) == (1, "error: 2 snapshots are named 'ready'. use the id that `torpor snapshots` shows\n")


def test_a_restore_prints_the_new_id(torpor: Torpor) -> None:
    code, out, err, script = torpor(
        ["restore", S, "--ttl", "10m", "--name", "again", "-m", "run=1", "-e", "A=b"],
        answer(SNAPSHOT | {"id": S}),
        answer(VIEW | {"id": B, "from_snapshot": S}, 201),
    )
    said = json.loads(script.received[1].body)
    assert (code, out, err) == (0, f"{B}\n", "")
    assert (said["from_snapshot"], said["ttl_seconds"], said["name"]) == (S, 600, "again")
    assert (said["metadata"], said["env"]) == ({"run": "1"}, {"A": "b"})


def test_a_rollback_says_which_snapshot_by_id_or_by_a_name_of_that_sandbox(torpor: Torpor) -> None:
    back = VIEW | {"id": A, "last_snapshot_id": S}
    code, out, _, script = torpor(
        ["rollback", A, "ready", "--json"],
        answer(VIEW | {"id": A}),
        page(SNAPSHOT | {"id": S, "name": "ready"}),
        answer(back),
    )
    assert (code, json.loads(out)["last_snapshot_id"]) == (0, S)
    assert (script.received[1].query, script.received[2].body) == ({"sandbox_id": A}, b'{"snapshot":"%s"}' % S.encode())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["rollback", S, A], f"{S} is a snapshot, and a sandbox is needed"),
        (["restore", A], f"{A} is a sandbox, and a snapshot is needed"),
        (["fork", S], f"{S} is a snapshot, and a sandbox is needed"),
        (["wake", A, "--ttl", "soon"], "--ttl takes a length of time"),
        (["fork", A, "-m", "x"], "--metadata takes NAME=VALUE"),
    ],
)
def test_what_is_mixed_up_is_named_in_one_line(torpor: Torpor, words: list[str], complaint: str) -> None:
    code, out, err, script = torpor(words)
    assert (code, out, err.count("\n"), script.received) == (1, "", 1, [])
    assert complaint in err


def test_a_fork_prints_each_child(torpor: Torpor) -> None:
    children = [VIEW | {"id": B, "parent_id": A}, VIEW | {"id": C, "parent_id": A}]
    forked = {"sandbox": children[0], "children": children, "parent_id": A, "snapshot_id": S}
    told = answer(forked | {"at": "2030-01-01T00:00:00Z"}, 201)
    code, out, err, script = torpor(["fork", A, "-n", "2", "-m", "a=b", "--ttl", "60"], answer(VIEW | {"id": A}), told)
    assert (code, out, err) == (0, f"{B}\n{C}\n", "")
    said = json.loads(script.received[1].body)
    assert (said["count"], said["metadata"], said["ttl_seconds"]) == (2, {"a": "b"}, 60)
    told = answer(forked | {"at": "2030-01-01T00:00:00Z"}, 201)
    assert [one["id"] for one in json.loads(torpor(["fork", A, "--json"], answer(VIEW), told)[1])] == [B, C]


def test_a_lost_sandbox_comes_with_the_way_to_its_last_snapshot(torpor: Torpor) -> None:
    lost = SandboxLost("its machine died", last_snapshot=S)
    _, _, err, _ = torpor(["hibernate", A], answer(VIEW | {"id": A}), refusal(lost))
    assert err == f"error: its machine died. `torpor restore {S}` makes a new one from its last snapshot\n"


def test_a_refusal_to_sleep_is_one_line(torpor: Torpor) -> None:
    refused = Conflict("it is failed", seen="failed", hint="roll it back")
    assert torpor(["hibernate", A], answer(VIEW), refusal(refused))[:3] == (
        1,
        "",
        "error: it is failed. roll it back\n",
    )


def test_show_tells_where_a_sandbox_came_from(torpor: Torpor) -> None:
    facts = {"id": B, "status": "hibernated", "parent_id": A, "from_snapshot": S, "last_snapshot_id": T}
    out = torpor(["show", B], answer(VIEW | facts))[1]
    lines = {line[:15].strip(): line[15:] for line in out.splitlines()}
    assert (lines["state"], lines["forked from"], lines["from snapshot"], lines["last snapshot"]) == (
        "hibernated",
        A,
        S,
        T,
    )


def test_the_tree_is_drawn_without_blanks_or_colours_where_no_person_looks(torpor: Torpor) -> None:
    family = [
        page(VIEW | {"id": B, "parent_id": A, "from_snapshot": S}, VIEW | {"id": A, "name": "root"}),
        page(SNAPSHOT | {"id": S, "sandbox_id": A, "kind": "fork"}),
    ]
    code, out, _, _ = torpor(["tree"], *family)
    first, second, third = out.splitlines()
    assert (code, first.split()[:3]) == (0, [A, "root", "running"])
    assert second.startswith(f"└── {S}  fork, 16.0 MiB")
    assert third.startswith(f"    └── {B}  running")
    assert out == "\n".join(line.rstrip() for line in (first, second, third)) + "\n"
    assert "\x1b" not in out


def test_the_tree_of_one_is_what_came_from_it_nested_for_programs(torpor: Torpor) -> None:
    family = [
        page(VIEW | {"id": B, "from_snapshot": S}, VIEW | {"id": A, "name": "root"}, VIEW | {"id": C}),
        page(SNAPSHOT | {"id": S, "sandbox_id": A}),
    ]
    (root,) = json.loads(torpor(["tree", "root", "--json"], *family)[1])
    (snapshot,) = root["children"]
    (child,) = snapshot["children"]
    assert [(one["type"], one["id"]) for one in (root, snapshot, child)] == [
        ("sandbox", A),
        ("snapshot", S),
        ("sandbox", B),
    ]
    assert (root["state"], snapshot["size_bytes"], child["children"]) == ("running", 16 * 2**20, [])
    assert torpor(["tree", "nobody"], page(), page())[0] == 1


# The tree's shape, without a server.

NOW = datetime.now(UTC)


def box(id: str, age: int, **facts: object) -> SandboxInfo:
    return SandboxInfo.of(
        SandboxView.model_validate(VIEW | {"id": id, "created_at": NOW - timedelta(seconds=age)} | facts)
    )


def snapshot(id: str, of: str, age: int) -> Snapshot:
    facts = {"id": id, "sandbox_id": of, "created_at": NOW - timedelta(seconds=age)}
    with Client("http://127.0.0.1:1", "k") as client:
        return Snapshot.of(SnapshotView.model_validate(SNAPSHOT | facts), client)


def shape(nodes: list[Node]) -> list[object]:
    return [[node.id, *shape(node.below)] if node.below else node.id for node in nodes]


def roots(boxes: list[SandboxInfo], snapshots: list[Snapshot]) -> list[object]:
    return shape([node for node in grown(boxes, snapshots) if node.above is None])


def test_what_came_first_stands_first() -> None:
    boxes = [box(C, 1), box(A, 9), box(B, 5, from_snapshot=S)]
    snapshots = [snapshot(T, A, 2), snapshot(S, A, 8)]
    assert roots(boxes, snapshots) == [[A, [S, B], T], C]


def test_what_was_deleted_keeps_its_place_above_what_came_from_it() -> None:
    assert roots([box(B, 5, from_snapshot="snp-gone")], []) == [["snp-gone", B]]
    assert roots([], [snapshot(S, "sbx-gone", 1)]) == [["sbx-gone", S]]
    assert roots([box(A, 9), box(B, 5, from_snapshot="snp-gone", parent_id=A)], []) == [[A, ["snp-gone", B]]]
    assert roots([box(A, 9), box(B, 5, parent_id=A)], []) == [[A, B]]
    assert roots([box(B, 5, parent_id="sbx-gone")], []) == [B]
    (gone,) = [node for node in grown([], [snapshot(S, "sbx-gone", 1)]) if node.above is None]
    assert _branch(gone).words == ["deleted"]


def test_a_circle_of_descent_is_shown_all_the_same() -> None:
    boxes = [box(A, 9, from_snapshot=T), box(B, 5, from_snapshot=S)]
    snapshots = [snapshot(S, A, 8), snapshot(T, B, 4)]
    (whole,) = roots(boxes, snapshots)
    assert {A, B, S, T} == {id for id in json.dumps(whole).split('"') if "-" in id}


def test_without_anything_there_is_no_tree(capsys: Captured) -> None:
    output.tree([], empty="nothing")
    assert capsys.readouterr() == ("", "")


def test_on_a_narrow_terminal_only_what_may_be_cut_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, terminal = pty.openpty()
    monkeypatch.setenv("COLUMNS", "60")
    with os.fdopen(terminal, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        output.table(("id", "parent", "kind"), [(A, S * 3, "fork")], empty="none", cut={"parent"})
        line = os.read(seen, 65536).decode().splitlines()[1]
    os.close(seen)
    assert line.startswith(A)
    assert "…  fork" in line


@pytest.mark.parametrize(("seconds", "words"), [(0.0004, "0 ms"), (0.0851, "85 ms"), (0.9999, "1.0 s"), (75, "75.0 s")])
def test_times_taken_are_worded_in_their_unit(seconds: float, words: str) -> None:
    assert wording.taken(seconds) == words
