"""Hibernate, wake, snapshot, restore, rollback and fork, as the client sends them and what it makes of the answers."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest

from scripted_server import SNAPSHOT, VIEW, Reply, Script, answer, refusal, streamed
from torpor import (
    AsyncClient,
    AsyncSandbox,
    AsyncSnapshot,
    Busy,
    Client,
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Sandbox,
    Snapshot,
    SnapshotCorrupt,
)
from torpor.sdk.results import SandboxInfo
from torpor.wire.public import SandboxView, SnapshotView

LOST = httpx2.ReadError("cut")
SBX, SNP = str(VIEW["id"]), str(SNAPSHOT["id"])
OTHER = "sbx-zzzzzzzzzzzzzzzz"


def sandbox(client: Client, **facts: object) -> Sandbox:
    return Sandbox(client, SandboxInfo.of(SandboxView.model_validate(VIEW | facts)))


def later_sandbox(client: AsyncClient) -> AsyncSandbox:
    return AsyncSandbox(client, SandboxInfo.of(SandboxView.model_validate(VIEW)))


def snapshot(client: Client, **facts: object) -> Snapshot:
    return Snapshot.of(SnapshotView.model_validate(SNAPSHOT | facts), client)


def forked(*ids: str) -> dict[str, object]:
    children = [VIEW | {"id": id, "parent_id": SBX, "from_snapshot": SNP} for id in ids]
    return {
        "sandbox": children[0],
        "children": children,
        "parent_id": SBX,
        "snapshot_id": SNP,
        "at": "2030-01-01T00:00:20Z",
    }


def test_a_sandbox_knows_its_state_after_each_change() -> None:
    script = Script(
        [answer({"status": "hibernated", "snapshot_id": SNP}), answer({"status": "running"}), Reply(204), Reply(204)]
    )
    with script.client() as client:
        box = sandbox(client)
        assert (box.hibernate().last_snapshot_id, box.state) == (SNP, "hibernated")
        assert (box.wake().last_snapshot_id, box.state) == (SNP, "running")
        box.pause()
        assert box.state == "paused"
        box.resume()
        assert box.state == "running"
    verbs = ["hibernate", "wake", "pause", "resume"]
    assert [one.path for one in script.received] == [f"/v1/sandboxes/{SBX}/{verb}" for verb in verbs]
    assert {(one.method, one.body) for one in script.received} == {("POST", b"")}


@pytest.mark.parametrize("verb", ["hibernate", "wake", "pause", "resume"])
def test_a_change_of_state_whose_answer_was_lost_is_asked_for_again(verb: str) -> None:
    script = Script([LOST, refusal(Busy("wait")), answer({"status": "as asked"})])
    with script.client() as client:
        getattr(sandbox(client), verb)()
    assert [one.path.rpartition("/")[2] for one in script.received] == [verb] * 3


def test_an_answer_that_was_kept_alive_with_spaces_is_read_and_one_that_broke_off_after_them_is_asked_for_again() -> (
    None
):
    told = b'{"status": "hibernated"}'
    script = Script([streamed(b"  ", breaks=LOST), streamed(b" ", b" ", told)])
    with script.client() as client:
        assert sandbox(client).hibernate().state == "hibernated"


def test_what_is_refused_leaves_what_is_known_of_the_sandbox() -> None:
    script = Script([refusal(Conflict("it failed", seen="failed", needed=["running"]))])
    with script.client() as client:
        box = sandbox(client)
        with pytest.raises(Conflict, match="it failed"):
            box.hibernate()
        assert box.state == "running"


def test_a_wake_gives_a_new_ttl_only_if_asked_and_then_knows_the_new_end() -> None:
    renewed = VIEW | {"ttl_seconds": 10, "expires_at": "2030-01-01T00:00:10Z"}
    script = Script([answer({"status": "running"}), answer({"status": "running"}), answer(renewed)])
    with script.client() as client:
        box = sandbox(client, status="hibernated")
        assert box.wake().ttl_seconds is None
        info = box.wake(ttl_seconds=10)
    assert (info.state, info.ttl_seconds, str(info.expires_at)) == ("running", 10, "2030-01-01 00:00:10+00:00")
    assert [one.body for one in script.received] == [b"", b'{"ttl_seconds":10}', b""]


def test_a_wrong_ttl_is_refused_before_anything_wakes() -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="ttl_seconds"):
        sandbox(client).wake(ttl_seconds=0)


def test_a_snapshot_whose_answer_was_lost_is_taken_once() -> None:
    script = Script([LOST, answer(SNAPSHOT | {"name": "ready"}, 201)])
    with script.client() as client:
        box = sandbox(client)
        taken = box.snapshot("ready")
    assert (taken.id, taken.name, taken.pause_ms, taken.parent_id) == (SNP, "ready", 42.5, None)
    assert box.info.last_snapshot_id == SNP
    assert {(one.path, one.body) for one in script.received} == {
        (f"/v1/sandboxes/{SBX}/snapshots", b'{"name":"ready"}')
    }
    assert len({one.headers["idempotency-key"] for one in script.received}) == 1


def test_a_snapshot_is_its_id_when_it_is_printed() -> None:
    with Script([]).client() as client:
        one = snapshot(client)
    assert (str(one), f"{one}", f"{one:>22}", "{}".format(one)) == (SNP, SNP, f"  {SNP}", SNP)  # noqa: UP032
    assert "secret-key" not in repr(one)
    assert SNP in repr(one)


def test_snapshots_are_equal_by_id_and_never_change() -> None:
    with Script([]).client() as client:
        one, same, other = snapshot(client), snapshot(client, size_bytes=0), snapshot(client, id="snp-other")
    assert one == same
    assert len({one, same, other}) == 2
    assert one != SNP
    with pytest.raises(AttributeError):
        one.id = "another"  # type: ignore[misc]


def test_a_restore_takes_a_snapshot_or_its_id() -> None:
    script = Script([answer(VIEW | {"from_snapshot": SNP}, 201)] * 2)
    with script.client() as client:
        assert Sandbox.restore(snapshot(client), client=client).info.from_snapshot == SNP
        Sandbox.restore(SNP, ttl_seconds=60, metadata={"run": "1"}, env={"A": "b"}, name="again", client=client)
    first, second = (json.loads(one.body) for one in script.received)
    assert (first["from_snapshot"], first["ttl_seconds"], "template" in first) == (SNP, 3600, False)
    assert (second["metadata"], second["env"], second["name"]) == ({"run": "1"}, {"A": "b"}, "again")


def test_a_restore_whose_answer_was_lost_makes_one_sandbox_and_its_block_deletes_it() -> None:
    script = Script([LOST, answer(VIEW, 201), Reply(204)])
    with script.client() as client, Sandbox.restore(SNP, client=client) as box:
        assert box.id == SBX
    assert [one.method for one in script.received] == ["POST", "POST", "DELETE"]
    assert len({one.headers["idempotency-key"] for one in script.received[:2]}) == 1


def test_a_create_is_not_told_of_any_snapshot() -> None:
    script = Script([answer(VIEW, 201)])
    with script.client() as client:
        Sandbox.create("agent", client=client)
    said = json.loads(script.received[0].body)
    assert (said["template"], "from_snapshot" in said) == ("agent", False)


@pytest.mark.parametrize("wrong", [SBX, "", "../x", None, 5])
def test_what_is_no_snapshot_is_refused_before_anything_is_sent(wrong: str) -> None:
    with Script([]).client() as client:
        for act in (
            lambda: Sandbox.restore(wrong, client=client),
            lambda: sandbox(client).rollback(wrong),
            lambda: Snapshot.get(wrong, client=client),
        ):
            with pytest.raises(InvalidRequest, match=r"is not the id of a snapshot|is a sandbox, and a snapshot"):
                act()


def test_a_snapshot_in_the_place_of_a_sandbox_is_named() -> None:
    with Script([]).client() as client:
        for act in (lambda: Sandbox.connect(SNP, client=client), lambda: Snapshot.list(SNP, client=client)):
            with pytest.raises(InvalidRequest, match=f"{SNP} is a snapshot, and a sandbox is needed"):
                act()


def test_a_rollback_takes_the_sandbox_back_and_is_repeated_if_its_answer_was_lost() -> None:
    script = Script([LOST, answer(VIEW | {"boot_ms": 88, "last_snapshot_id": SNP})])
    with script.client() as client:
        box = sandbox(client, status="failed", reason="it died")
        info = box.rollback(snapshot(client))
    assert (info.state, info.reason, info.boot_ms, box.info) == ("running", None, 88, info)
    assert [one.body for one in script.received] == [b'{"snapshot":"%s"}' % SNP.encode()] * 2


def test_a_fork_without_a_number_is_one_sandbox_and_with_one_a_list() -> None:
    script = Script([answer(forked(OTHER), 201), answer(forked(OTHER), 201), answer(forked(OTHER, SBX), 201)])
    with script.client() as client:
        box = sandbox(client)
        child = box.fork()
        assert (child.id, child.info.parent_id, child.info.from_snapshot) == (OTHER, SBX, SNP)
        assert [one.id for one in box.fork(1)] == [OTHER]
        assert [one.id for one in box.fork(2, metadata={"try": "2"}, ttl_seconds=60)] == [OTHER, SBX]
    bodies = [json.loads(one.body) for one in script.received]
    assert ["count" in body for body in bodies] == [False, True, True]
    assert (bodies[2]["metadata"], bodies[2]["ttl_seconds"]) == ({"try": "2"}, 60)


def test_a_fork_whose_answer_was_lost_is_made_once_and_two_forks_are_two() -> None:
    script = Script([LOST, answer(forked(OTHER), 201), answer(forked(OTHER), 201)])
    with script.client() as client:
        sandbox(client).fork()
        sandbox(client).fork()
    first, again, second = (one.headers["idempotency-key"] for one in script.received)
    assert (first == again, first == second) == (True, False)


def test_leaving_the_block_of_a_fork_deletes_the_child_and_not_the_parent() -> None:
    script = Script([answer(forked(OTHER), 201), Reply(204)])
    with script.client() as client, sandbox(client).fork() as child:
        pass
    assert (script.received[1].method, script.received[1].path) == ("DELETE", f"/v1/sandboxes/{OTHER}")
    assert child.state == "deleted"


@pytest.mark.parametrize("count", [0, -1, 65, True, "2", 1.5])
def test_a_wrong_number_of_children_is_refused_before_anything_is_sent(count: int) -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="count"):
        sandbox(client).fork(count)


def test_a_persistent_child_cannot_have_a_ttl() -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="persistent"):
        sandbox(client).fork(ttl_seconds=5, persistent=True)


def test_a_wrong_keyword_is_a_type_error() -> None:
    with Script([]).client() as client:
        box = sandbox(client)
        for act in (
            lambda: Sandbox.restore(SNP, template="base", client=client),  # type: ignore[call-arg]
            lambda: box.fork(timeout=5),  # type: ignore[call-overload]
            lambda: box.wake(ttl=5),  # type: ignore[call-arg]
            lambda: box.hibernate(5),  # type: ignore[call-arg, arg-type]
        ):
            with pytest.raises(TypeError):
                act()


def test_all_snapshots_of_a_sandbox_come_page_after_page() -> None:
    first = {"items": [SNAPSHOT], "next_cursor": "c1"}
    last = {"items": [SNAPSHOT | {"id": "snp-older"}], "next_cursor": None}
    script = Script([answer(first), answer(last), answer(first)])
    with script.client() as client:
        assert [one.id for one in sandbox(client).snapshots()] == [SNP, "snp-older"]
        page = Snapshot.list(sandbox(client), 1, client=client)
    assert (len(page), page.next_cursor) == (1, "c1")
    assert [one.query for one in script.received] == [
        {"sandbox_id": SBX},
        {"sandbox_id": SBX, "cursor": "c1"},
        {"sandbox_id": SBX, "limit": "1"},
    ]


def test_a_snapshot_is_got_verified_and_deleted_twice() -> None:
    checked = {"id": SNP, "checked_bytes": 4096, "took_ms": 1.5}
    script = Script([answer(SNAPSHOT), LOST, answer(checked), Reply(204), refusal(NotFound("who?"))])
    with script.client() as client:
        one = Snapshot.get(SNP, client=client)
        assert one.verify().checked_bytes == 4096
        one.delete()
        one.delete()
    assert [(one.method, one.path) for one in script.received] == [
        ("GET", f"/v1/snapshots/{SNP}"),
        ("POST", f"/v1/snapshots/{SNP}/verify"),
        ("POST", f"/v1/snapshots/{SNP}/verify"),
        ("DELETE", f"/v1/snapshots/{SNP}"),
        ("DELETE", f"/v1/snapshots/{SNP}"),
    ]


def test_a_flipped_byte_is_an_error_of_its_own() -> None:
    script = Script([refusal(SnapshotCorrupt("memory: 4096 bytes at 8192 are not what was written"))])
    with script.client() as client, pytest.raises(SnapshotCorrupt, match="at 8192"):
        snapshot(client).verify()


def test_an_answer_that_never_comes_is_an_unknown_outcome() -> None:
    with Script([LOST] * 4).client() as client, pytest.raises(OutcomeUnknown):
        sandbox(client).snapshot()


async def test_the_async_twin_forks_as_a_value_a_block_and_a_task() -> None:
    script = Script([answer(forked(OTHER), 201), answer(forked(OTHER), 201), Reply(204), answer(forked(OTHER), 201)])
    async with script.async_client() as client:
        box = later_sandbox(client)
        assert (await box.fork()).id == OTHER
        async with box.fork() as child:
            assert child.id == OTHER
        assert [one.id for one in await asyncio.create_task(box.fork(1))] == [OTHER]
    assert script.received[2].method == "DELETE"


async def test_the_async_twin_snapshots_restores_and_lists() -> None:
    script = Script([answer(SNAPSHOT, 201), answer(VIEW, 201), Reply(204), answer({"items": [SNAPSHOT]}), Reply(204)])
    async with script.async_client() as client:
        taken = await later_sandbox(client).snapshot()
        assert (f"{taken}", type(taken)) == (SNP, AsyncSnapshot)
        async with AsyncSandbox.restore(taken, client=client) as box:
            assert box.id == SBX
        (listed,) = await box.snapshots()
        assert listed == taken
        await listed.delete()
