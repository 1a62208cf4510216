"""Hibernating and waking through the API, asked for and by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from control_rig import NOBODY, NOTE, PATIENCE_S, Rig, control_rig
from torpor.control.reconcile import reconcile
from torpor.errors import Busy, FreezeFailed, NoCapacity, OutOfSpace, RestoreFailed, SnapshotCorrupt, TorporError
from torpor.model.ids import SandboxId
from torpor.model.lifecycle import State


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


@pytest.fixture
async def made(rig: Rig) -> str:
    return await rig.create(metadata={"run": "7"}, env={"A": "b"})


async def test_a_hibernated_sandbox_sleeps_in_a_snapshot_and_wakes_as_it_was(rig: Rig, made: str) -> None:
    await rig.write(made, "before")
    asleep = await rig.post(made, "hibernate")
    (snapshot,) = rig.host.snapshots
    assert asleep == {"status": "hibernated", "snapshot_id": snapshot}
    shown = await rig.show(made)
    assert (shown["status"], shown["last_snapshot_id"], shown["metadata"]) == ("hibernated", snapshot, {"run": "7"})
    assert rig.host.machines[made].facts.pid is None
    assert await rig.post(made, "wake") == {"status": "running", "snapshot_id": None}
    assert await rig.read(made) == "before"


@pytest.mark.parametrize(("verb", "seen"), [("hibernate", "hibernated"), ("wake", "running")])
async def test_both_hold_where_they_are_done_already(rig: Rig, made: str, verb: str, seen: str) -> None:
    if verb == "hibernate":
        first = await rig.post(made, "hibernate")
        assert await rig.post(made, "hibernate") == first
    else:
        await rig.post(made, "wake")
    assert await rig.status(made) == seen
    assert rig.host.calls[verb] == (1 if verb == "hibernate" else 0)


async def test_a_paused_sandbox_can_be_hibernated_and_not_woken(rig: Rig, made: str) -> None:
    await rig.post(made, "pause")
    refused = await rig.http.post(f"/v1/sandboxes/{made}/wake")
    assert (refused.status_code, refused.json()["details"]["seen"]) == (409, "paused")
    await rig.post(made, "hibernate")
    assert await rig.status(made) == "hibernated"


@pytest.mark.parametrize("verb", ["hibernate", "wake", "pause", "resume"])
async def test_nobodys_and_others_sandboxes_are_not_found(rig: Rig, verb: str) -> None:
    for name in (NOBODY, "x"):
        assert (await rig.http.post(f"/v1/sandboxes/{name}/{verb}")).status_code == 404


@pytest.mark.parametrize("verb", ["hibernate", "wake", "pause", "resume", "snapshots", "fork"])
async def test_a_lost_sandbox_names_what_it_can_go_back_to(rig: Rig, made: str, verb: str) -> None:
    snapshot = (await rig.post(made, "snapshots"))["id"]
    rig.host.die(made, "out of memory")
    await reconcile(rig.plane)
    answer = await rig.http.post(f"/v1/sandboxes/{made}/{verb}")
    assert (answer.status_code, answer.json()["code"]) == (410, "sandbox_lost")
    assert answer.json()["details"] == {"last_snapshot": snapshot}
    assert "out of memory" in answer.json()["error"]
    assert snapshot in answer.json()["hint"]


@pytest.mark.parametrize("verb", ["hibernate", "pause", "snapshots"])
async def test_a_machine_found_dead_on_the_way_fails_its_sandbox_at_once(rig: Rig, made: str, verb: str) -> None:
    rig.host.die(made, "out of memory")
    answer = await rig.http.post(f"/v1/sandboxes/{made}/{verb}")
    assert (answer.status_code, answer.json()["code"]) == (410, "sandbox_lost")
    assert await rig.status(made) == "failed"


@pytest.mark.parametrize("error", [FreezeFailed("no answer from the guest"), OutOfSpace("full"), Busy("later")])
@pytest.mark.parametrize("paused", [False, True])
async def test_a_hibernation_that_failed_leaves_the_sandbox_as_it_was(
    rig: Rig, made: str, error: TorporError, paused: bool
) -> None:
    if paused:
        await rig.post(made, "pause")
    before = await rig.show(made)
    rig.host.fail("hibernate", error)
    answer = await rig.http.post(f"/v1/sandboxes/{made}/hibernate")
    assert answer.json()["code"] == error.code
    assert await rig.show(made) == before


@pytest.mark.parametrize("error", [RestoreFailed("no"), NoCapacity("full"), SnapshotCorrupt("a bit flipped")])
async def test_a_wake_that_failed_leaves_the_sandbox_asleep(rig: Rig, made: str, error: TorporError) -> None:
    await rig.post(made, "hibernate")
    before = await rig.show(made)
    rig.host.fail("wake", error)
    assert (await rig.http.post(f"/v1/sandboxes/{made}/wake")).json()["code"] == error.code
    assert await rig.show(made) == before
    await rig.post(made, "wake")


@pytest.mark.parametrize(("verb", "reached"), [("hibernate", "hibernated"), ("wake", "running")])
async def test_a_lost_answer_is_made_good_by_asking_the_host(rig: Rig, made: str, verb: str, reached: str) -> None:
    if verb == "wake":
        await rig.post(made, "hibernate")
    rig.host.lose_answer(verb)
    answer = await rig.http.post(f"/v1/sandboxes/{made}/{verb}")
    assert (answer.status_code, answer.json()["code"]) == (500, "outcome_unknown")
    assert await rig.status(made) == reached
    again = await rig.post(made, verb)
    assert again["status"] == reached
    assert rig.host.calls[verb] == 1
    (snapshot,) = rig.host.snapshots
    assert (await rig.show(made))["last_snapshot_id"] == snapshot


async def test_a_crash_between_the_hosts_answer_and_the_record_is_settled_by_the_reconciler(
    rig: Rig, made: str
) -> None:
    await rig.post(made, "hibernate")
    (snapshot,) = rig.host.snapshots
    await rig.store.remove_snapshot(snapshot)  # type: ignore[arg-type]
    await rig.store.move(SandboxId(made), {State.HIBERNATED}, State.HIBERNATING, rig.clock.now())
    await reconcile(rig.plane)
    shown = await rig.show(made)
    assert (shown["status"], shown["last_snapshot_id"]) == ("hibernated", snapshot)


async def test_of_hibernations_only_the_last_is_kept_and_checkpoints_all(rig: Rig, made: str) -> None:
    checkpoint = (await rig.post(made, "snapshots"))["id"]
    for _ in range(3):
        last = (await rig.post(made, "hibernate"))["snapshot_id"]
        await rig.post(made, "wake")
    assert set(rig.host.snapshots) == {checkpoint, last}
    listed = (await rig.http.get("/v1/snapshots")).json()["items"]
    assert [item["id"] for item in listed] == [last, checkpoint]


async def test_what_could_not_be_tidied_is_tidied_by_the_reconciler(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    await rig.post(made, "wake")
    rig.host.fail("remove_snapshot", Busy("not now"))
    last = (await rig.post(made, "hibernate"))["snapshot_id"]
    assert len(rig.host.snapshots) == 2
    assert await reconcile(rig.plane) == 1
    assert set(rig.host.snapshots) == {last}
    assert await reconcile(rig.plane) == 0


async def test_a_snapshot_that_something_comes_to_life_from_is_not_tidied_away(rig: Rig, made: str) -> None:
    first = (await rig.post(made, "hibernate"))["snapshot_id"]
    await rig.post(made, "wake")
    hold = rig.host.hold("restore")
    async with asyncio.TaskGroup() as group:
        restoring = group.create_task(rig.create(from_snapshot=first))
        await hold.reached.wait()
        await rig.post(made, "hibernate")
        assert first in rig.host.snapshots
        hold.release()
    assert restoring.result() in rig.host.machines
    await reconcile(rig.plane)
    assert first not in rig.host.snapshots


async def test_a_wake_may_set_the_end_anew_and_keeps_it_otherwise(rig: Rig) -> None:
    made = await rig.create(ttl_seconds=1000)
    await rig.post(made, "hibernate")
    await rig.clock.jump(100)
    await rig.post(made, "wake")
    assert (await rig.show(made))["expires_at"] == "2030-01-01T00:16:40Z"
    await rig.post(made, "hibernate")
    await rig.post(made, "wake", ttl_seconds=10)
    shown = await rig.show(made)
    assert (shown["expires_at"], shown["ttl_seconds"]) == ("2030-01-01T00:01:50Z", 10)


@pytest.mark.parametrize("body", [{"ttl_seconds": 0}, {"ttl_seconds": "9"}, []])
async def test_a_wake_with_a_body_that_makes_no_sense_wakes_nobody(rig: Rig, made: str, body: object) -> None:
    await rig.post(made, "hibernate")
    assert (await rig.http.post(f"/v1/sandboxes/{made}/wake", json=body)).status_code == 400
    assert await rig.status(made) == "hibernated"


async def test_twenty_commands_for_a_sleeper_wake_it_once_and_all_get_their_results(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    hold = rig.host.hold("wake")
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(rig.post(made, "exec", cmd=f"echo {number}")) for number in range(20)]
        await hold.reached.wait()
        hold.release()
    assert [task.result()["stdout"] for task in asked] == [f"{number}\n" for number in range(20)]
    assert rig.host.calls["wake"] == 1


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", f"fs?path={NOTE}"),
        ("PUT", "fs?path=/work/other"),
        ("DELETE", f"fs?path={NOTE}"),
        ("GET", f"fs/stat?path={NOTE}"),
        ("GET", "fs/dir?path=/work"),
        ("POST", "fs/dir?path=/work/new"),
        ("GET", "fs/walk?path=/work"),
        ("POST", "exec/stream"),
    ],
)
async def test_whatever_needs_the_guest_wakes_it(rig: Rig, made: str, method: str, rest: str) -> None:
    await rig.write(made, "text")
    await rig.post(made, "hibernate")
    body = {"json": {"cmd": "true"}} if rest == "exec/stream" else {}
    answer = await rig.http.request(method, f"/v1/sandboxes/{made}/{rest}", **body)  # type: ignore[arg-type]
    assert answer.is_success, answer.text
    assert await rig.status(made) == "running"


async def test_looking_wakes_nobody(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    for rest in ("", "/lifecycle", "/logs"):
        assert (await rig.http.get(f"/v1/sandboxes/{made}{rest}")).status_code == 200
    await rig.http.get("/v1/sandboxes")
    await rig.http.patch(f"/v1/sandboxes/{made}/lifecycle", json={"ttl_seconds": 60})
    assert await rig.status(made) == "hibernated"


async def test_a_command_waits_for_a_hibernation_under_way_and_wakes_the_sandbox_after_it(rig: Rig, made: str) -> None:
    hold = rig.host.hold("hibernate")
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.post(made, "hibernate"))
        await hold.reached.wait()
        asked = group.create_task(rig.post(made, "exec", cmd="echo here"))
        await asyncio.sleep(0)
        assert rig.host.calls["exec"] == 0
        hold.release()
    assert asked.result()["stdout"] == "here\n"
    assert (rig.host.calls["hibernate"], rig.host.calls["wake"]) == (1, 1)


async def test_a_command_that_finds_its_sandbox_asleep_on_the_host_wakes_it(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    await rig.store.move(SandboxId(made), {State.HIBERNATED}, State.RUNNING, rig.clock.now())
    assert (await rig.post(made, "exec", cmd="echo here"))["stdout"] == "here\n"
    assert rig.host.calls["wake"] == 1


async def test_a_failed_wake_is_what_the_command_answers(rig: Rig, made: str) -> None:
    await rig.post(made, "hibernate")
    rig.host.fail("wake", SnapshotCorrupt("a bit flipped"))
    answer = await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "true"})
    assert (answer.status_code, answer.json()["code"]) == (500, "snapshot_corrupt")
    assert await rig.status(made) == "hibernated"


async def test_a_command_in_flight_goes_on_after_a_hibernation(rig: Rig, made: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(rig.post(made, "exec", cmd="sleep 5; echo done"))
        await rig.host.machines[made].started.wait()
        await rig.post(made, "hibernate")
        await rig.clock.jump(8)
        assert not asked.done()
        await rig.post(made, "wake")
        await rig.clock.jump(8)
    assert (asked.result()["stdout"], asked.result()["exit_code"]) == ("done\n", 0)


@pytest.mark.parametrize("read_some", [False, True])
async def test_an_upload_is_sent_again_to_a_busy_host_only_if_nothing_of_it_was_read(
    rig: Rig, made: str, read_some: bool
) -> None:
    rig.host.fail("write", Busy("it is being frozen"))
    rig.host.reads_first = read_some
    answer = await rig.http.put(f"/v1/sandboxes/{made}/fs", params={"path": NOTE}, content="text")
    assert answer.status_code == (503 if read_some else 200)
    assert rig.host.calls["write"] == (1 if read_some else 2)
    assert ((await rig.http.get(f"/v1/sandboxes/{made}/fs", params={"path": NOTE})).status_code == 200) is not read_some


async def test_verbs_at_once_come_one_after_the_other_and_none_is_lost(rig: Rig, made: str) -> None:
    verbs = ["hibernate", "wake"] * 10
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(rig.http.post(f"/v1/sandboxes/{made}/{verb}")) for verb in verbs]
    assert {task.result().status_code for task in asked} == {200}
    assert await rig.status(made) in ("running", "hibernated")
    assert await reconcile(rig.plane) == 0


@pytest.mark.parametrize("verb", ["pause", "hibernate"])
async def test_a_sandbox_can_be_deleted_in_any_state_and_leaves_only_checkpoints(
    rig: Rig, made: str, verb: str
) -> None:
    checkpoint = (await rig.post(made, "snapshots"))["id"]
    await rig.post(made, "hibernate")
    await rig.post(made, "wake")
    await rig.post(made, verb)
    for _ in range(2):
        assert (await rig.http.delete(f"/v1/sandboxes/{made}")).status_code == 204
    assert made not in rig.host.machines
    assert set(rig.host.snapshots) == {checkpoint}
    assert (await rig.http.get(f"/v1/snapshots/{checkpoint}")).json()["sandbox_id"] == made


async def test_pause_and_resume_hold_and_refuse(rig: Rig, made: str) -> None:
    for verb, seen in (("resume", "running"), ("pause", "paused"), ("pause", "paused"), ("resume", "running")):
        answer = await rig.http.post(f"/v1/sandboxes/{made}/{verb}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert await rig.status(made) == seen
    assert (rig.host.calls["pause"], rig.host.calls["resume"]) == (1, 1)
    await rig.post(made, "hibernate")
    for verb, needed in (("pause", "running"), ("resume", "paused")):
        answer = await rig.http.post(f"/v1/sandboxes/{made}/{verb}")
        assert (answer.status_code, answer.json()["details"]) == (409, {"seen": "hibernated", "needed": [needed]})


@pytest.mark.parametrize(("verb", "reached"), [("pause", "paused"), ("resume", "running")])
async def test_a_lost_answer_to_a_pause_is_made_good_too(rig: Rig, made: str, verb: str, reached: str) -> None:
    if verb == "resume":
        await rig.post(made, "pause")
    rig.host.lose_answer(verb)
    assert (await rig.http.post(f"/v1/sandboxes/{made}/{verb}")).status_code == 500
    assert await rig.status(made) == reached


async def test_one_that_is_used_is_not_put_to_sleep_if_it_is_to_be_unused(rig: Rig, made: str) -> None:
    url = f"/v1/sandboxes/{made}/hibernate"
    calling = asyncio.create_task(rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "hang"}))
    await asyncio.wait_for(rig.host.machines[made].started.wait(), PATIENCE_S)
    refused = await rig.http.post(url, json={"if_unused": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert refused.json()["details"]["seen"] == "running"
    assert refused.json()["hint"]
    assert await rig.status(made) == "running"
    calling.cancel()
    await asyncio.wait([calling])
    assert (await rig.http.post(url, json={"if_unused": True})).json()["status"] == "hibernated"
    assert (await rig.http.post(url, json={"if_unused": True})).json()["status"] == "hibernated"


async def test_commands_that_nobody_waits_for_are_no_use_of_it(rig: Rig, made: str) -> None:
    await rig.post(made, "processes", cmd="hang")
    assert (await rig.post(made, "hibernate", if_unused=True))["status"] == "hibernated"


async def test_a_call_that_comes_while_an_unused_one_is_put_to_sleep_wakes_it(rig: Rig, made: str) -> None:
    hold = rig.host.hold("hibernate")
    freezing = asyncio.create_task(rig.post(made, "hibernate", if_unused=True))
    await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    calling = asyncio.create_task(rig.post(made, "exec", cmd="echo a"))
    second = asyncio.create_task(rig.http.post(f"/v1/sandboxes/{made}/hibernate", json={"if_unused": True}))
    hold.release()
    assert (await freezing)["status"] == "hibernated"
    assert (await calling)["stdout"] == "a\n"
    assert (await second).status_code in (200, 409)


@pytest.mark.parametrize("verb", ["hibernate", "wake", "pause", "processes", "exec"])
async def test_nothing_is_remembered_of_sandboxes_that_are_not_there(rig: Rig, verb: str) -> None:
    await rig.http.post(f"/v1/sandboxes/{NOBODY}/{verb}", json={"cmd": "true"})
    assert not rig.plane.activity.is_known(SandboxId(NOBODY))
