"""A sandbox whose machine died goes back to its last snapshot by itself, if it was made so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_rig import PATIENCE_S, Rig, control_rig
from torpor.control.main import ControlConfig, control_plane
from torpor.control.reconcile import reconcile, watch
from torpor.control.service.chores import Chore
from torpor.control.service.recovery import RECOVERY, put_back
from torpor.errors import Conflict, NoCapacity, RestoreFailed
from torpor.model.ids import SandboxId, SnapshotId
from torpor.testing.host import FakeHost


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made, made.working(watch(made.plane, 2.0)):
        yield made


async def crashed(rig: Rig, **wish: object) -> tuple[str, str]:
    """Return a sandbox whose machine has died after a checkpoint, and the checkpoint."""
    made = await rig.create(on_crash="restore", **wish)
    await rig.write(made, "saved")
    snapshot: str = (await rig.post(made, "snapshots"))["id"]
    await rig.write(made, "lost")
    rig.host.die(made, "killed by signal 9")
    return made, snapshot


async def test_it_is_put_back_to_its_last_snapshot_under_its_own_id(rig: Rig) -> None:
    made, snapshot = await crashed(rig)
    await rig.clock.jump(2)
    await rig.wait_status(made, "running")
    assert await rig.read(made) == "saved"
    told = await rig.told(made, "failed", "recovered")
    assert told == [
        ("failed", {"reason": "killed by signal 9", "last_snapshot": snapshot}),
        ("recovered", {"snapshot_id": snapshot}),
    ]
    assert (await rig.show(made))["reason"] is None


async def test_a_hibernation_counts_as_a_snapshot(rig: Rig) -> None:
    made = await rig.create(on_crash="restore")
    await rig.write(made, "slept")
    await rig.post(made, "hibernate")
    await rig.post(made, "wake")
    rig.host.vanish(made)
    await rig.clock.jump(2)
    await rig.wait_status(made, "running")
    assert await rig.read(made) == "slept"


async def test_the_command_that_was_under_way_is_told_of_the_loss_and_the_next_one_waits(rig: Rig) -> None:
    made = await rig.create(on_crash="restore")
    await rig.write(made, "saved")
    snapshot = (await rig.post(made, "snapshots"))["id"]
    running = asyncio.create_task(rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "hang"}))
    await rig.host.machines[made].started.wait()
    hold = rig.host.hold("rollback")
    rig.host.die(made)
    answer = await running
    assert (answer.status_code, answer.json()["code"]) == (410, "sandbox_lost")
    assert answer.json()["details"] == {"last_snapshot": snapshot}
    assert "being put back" in answer.json()["hint"]
    await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    assert await rig.status(made) == "restoring"
    reading = asyncio.create_task(rig.read(made))
    snapping = asyncio.create_task(rig.post(made, "snapshots"))
    await rig.clock.jump(1)
    assert not reading.done()
    hold.release()
    assert await asyncio.wait_for(reading, PATIENCE_S) == "saved"
    await asyncio.wait_for(snapping, PATIENCE_S)


@pytest.mark.parametrize("wish", [{}, {"on_crash": "fail"}])
async def test_without_the_wish_it_stays_failed_and_every_use_names_the_last_snapshot(
    rig: Rig, wish: dict[str, str]
) -> None:
    made = await rig.create(**wish)
    snapshot = (await rig.post(made, "snapshots"))["id"]
    rig.host.die(made, "killed by signal 9")
    for _ in range(2):
        answer = await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "true"})
        assert (answer.status_code, answer.json()["code"]) == (410, "sandbox_lost")
        assert answer.json()["details"] == {"last_snapshot": snapshot}
        assert snapshot in answer.json()["hint"]
    await rig.clock.jump(100)
    assert (await rig.status(made), rig.host.calls["rollback"]) == ("failed", 0)


async def test_without_a_snapshot_there_is_nothing_to_go_back_to(rig: Rig) -> None:
    made = await rig.create(on_crash="restore")
    rig.host.die(made)
    await rig.clock.jump(2)
    await rig.wait_status(made, "failed")
    answer = await rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "true"})
    assert answer.json()["code"] == "sandbox_lost"


async def test_after_three_times_within_ten_minutes_it_is_left_as_it_is_and_says_why(rig: Rig) -> None:
    made, _ = await crashed(rig, persistent=True)
    for _ in range(3):
        await rig.clock.jump(2)
        await rig.wait_status(made, "running")
        rig.host.die(made, "killed by signal 9")
    await rig.clock.jump(2)
    await rig.wait_status(made, "failed")
    await rig.clock.jump(100)
    shown = await rig.show(made)
    assert shown["status"] == "failed"
    assert shown["reason"] == (
        "killed by signal 9; it was put back 3 times within 10 minutes, and is left as it is now"
    )
    await rig.post(made, "rollback", snapshot=shown["last_snapshot_id"])
    await rig.clock.jump(600)
    rig.host.die(made)
    await rig.clock.jump(2)
    await rig.wait_status(made, "running")


async def test_a_host_without_room_is_asked_again(rig: Rig) -> None:
    made, snapshot = await crashed(rig)
    rig.host.fail("rollback", NoCapacity("full"), times=2)
    await rig.clock.jump(2)
    assert await rig.status(made) == "failed"
    await rig.clock.jump(5 + 10)
    await rig.wait_status(made, "running")
    assert (await rig.told(made, "recovered")) == [("recovered", {"snapshot_id": snapshot})]


async def test_one_that_cannot_be_put_back_stays_failed_with_the_reason_of_its_loss(rig: Rig) -> None:
    made, _ = await crashed(rig)
    rig.host.fail("rollback", RestoreFailed("no answer from the guest"))
    await rig.clock.jump(2)
    await rig.wait_status(made, "failed")
    await rig.clock.jump(100)
    shown = await rig.show(made)
    assert (shown["status"], shown["reason"]) == ("failed", "killed by signal 9")
    last = (await rig.told(made, "failed"))[-1]
    assert "no answer from the guest" in last[1]["reason"]
    assert rig.host.calls["rollback"] == 1


async def test_one_that_is_deleted_meanwhile_is_gone(rig: Rig) -> None:
    made, _ = await crashed(rig)
    rig.host.fail("rollback", NoCapacity("full"))
    await rig.clock.jump(2)
    assert (await rig.http.delete(f"/v1/sandboxes/{made}")).status_code == 204
    await rig.clock.jump(100)
    assert (await rig.status(made), made in rig.host.machines) == ("deleted", False)


async def test_every_passage_of_a_recovery_is_in_the_events(rig: Rig) -> None:
    made, _ = await crashed(rig)
    await rig.clock.jump(2)
    await rig.wait_status(made, "running")
    states = [(data["from"], data["to"]) for _, data in await rig.told(made, "state")][-3:]
    assert states == [("running", "failed"), ("failed", "restoring"), ("restoring", "running")]


async def test_a_start_after_a_reboot_of_the_host_recovers_what_wished_for_it(tmp_path: Path) -> None:
    host = FakeHost()
    config = ControlConfig(tmp_path / "home", watch_every_s=1000, stop_within_s=0)
    async with control_plane(config, host.transport()) as app, control_rig(app.state.plane.store) as rig:
        rig.host.machines, rig.host.snapshots = host.machines, host.snapshots
        saved, lost, asleep = [await rig.create(on_crash=wish) for wish in ("restore", "fail", "restore")]
        for made in (saved, lost):
            await rig.post(made, "snapshots")
        await rig.post(asleep, "hibernate")
    host.vanish(saved)
    host.vanish(lost)
    async with control_plane(config, host.transport()) as app:
        await app.state.plane.chores.wait_over("recovery", saved)
        states = {sandbox.id: sandbox.state.value for sandbox in await app.state.plane.store.living()}
    assert states == {saved: "running", lost: "failed", asleep: "hibernated"}
    assert list(host.machines) == [asleep, saved] or list(host.machines) == [saved, asleep]


async def test_a_recovery_that_a_kill_cut_short_is_done_by_the_next_start(rig: Rig) -> None:
    made, _ = await crashed(rig)
    hold = rig.host.hold("rollback")
    await rig.clock.jump(2)
    await asyncio.wait_for(hold.reached.wait(), PATIENCE_S)
    await rig.plane.chores.aclose()
    assert await rig.status(made) == "restoring"
    async with control_rig(rig.store) as second:
        second.host.machines, second.host.snapshots = rig.host.machines, rig.host.snapshots
        await reconcile(second.plane)
        await second.wait_status(made, "running")
        assert await second.read(made) == "saved"


async def test_one_that_dies_again_while_it_is_being_put_back_is_put_back_again(rig: Rig) -> None:
    made, _ = await crashed(rig)
    telling = rig.host.hold("deadline")
    await rig.clock.jump(2)
    await asyncio.wait_for(telling.reached.wait(), PATIENCE_S)
    await rig.wait_status(made, "running")
    rig.host.die(made, "killed by signal 9")
    await reconcile(rig.plane)
    telling.release()
    await rig.plane.chores.wait_over(Chore.RECOVERY, SandboxId(made))
    assert (await rig.status(made), rig.host.calls["rollback"]) == ("running", 2)


async def test_one_whose_life_is_over_is_not_put_back(rig: Rig) -> None:
    made, _ = await crashed(rig, ttl_seconds=10)
    await rig.clock.jump(2)
    await rig.wait_status(made, "running")
    rig.host.fail("rollback", NoCapacity("full"), times=10)
    rig.host.die(made, "killed by signal 9")
    await rig.clock.jump(100)
    calls = rig.host.calls["rollback"]
    assert 1 < calls <= 4
    await rig.clock.jump(100)
    assert (await rig.status(made), rig.host.calls["rollback"]) == ("failed", calls)


async def test_a_recovery_undoes_nobodys_rollback(rig: Rig) -> None:
    made = await rig.create(on_crash="restore")
    await rig.write(made, "old")
    old = (await rig.post(made, "snapshots"))["id"]
    await rig.write(made, "new")
    await rig.post(made, "snapshots")
    rig.host.fail("rollback", NoCapacity("full"))
    rig.host.die(made)
    await rig.clock.jump(2)
    await rig.wait_status(made, "failed")
    await rig.clock.jump(1)
    await rig.post(made, "rollback", snapshot=old)
    await rig.clock.jump(100)
    assert (await rig.read(made), rig.host.calls["rollback"]) == ("old", 2)


async def test_a_recovery_starts_from_nothing_but_a_loss(rig: Rig) -> None:
    made, snapshot = await crashed(rig)
    rig.host.revive(made, rig.host.snapshots[snapshot])
    record = await rig.store.snapshot(SnapshotId(snapshot))
    assert record is not None
    with pytest.raises(Conflict):
        await put_back(rig.plane, SandboxId(made), record, RECOVERY)
    assert rig.host.calls["rollback"] == 0


async def test_a_host_without_room_is_asked_for_as_long_as_it_takes_and_nobody_waits_for_it(rig: Rig) -> None:
    made, _ = await crashed(rig, persistent=True)
    rig.host.fail("rollback", NoCapacity("full"), times=8)
    await rig.clock.jump(2)
    await rig.wait_status(made, "failed")
    await rig.clock.jump(20)
    answer = await asyncio.wait_for(rig.http.post(f"/v1/sandboxes/{made}/exec", json={"cmd": "true"}), PATIENCE_S)
    assert answer.json()["code"] == "sandbox_lost"
    assert 2 <= rig.host.calls["rollback"] <= 3, "each wait is longer than the one before"
    await rig.clock.jump(600)
    await rig.wait_status(made, "running")
    assert [kind for kind, _ in await rig.told(made, "failed", "recovered")] == ["failed", "failed", "recovered"]


async def test_what_a_start_could_not_begin_to_recover_is_begun_later(tmp_path: Path) -> None:
    async with control_rig() as rig:
        made, _ = await crashed(rig)
        await rig.plane.chores.aclose()
        await reconcile(rig.plane)
        assert await rig.status(made) == "failed"
        async with control_rig(rig.store) as second:
            second.host.machines, second.host.snapshots = rig.host.machines, rig.host.snapshots
            second.host.down = True
            async with second.working(watch(second.plane, 2.0)):
                await second.clock.jump(10)
                assert await second.status(made) == "failed"
                second.host.down = False
                await second.clock.jump(2)
                await second.wait_status(made, "running")
