"""What the API tells of usage, and the heartbeat that counts it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from control_rig import NOBODY, Rig, control_rig, mine
from torpor.control.forgetting import forget
from torpor.control.keys import load_or_make_key
from torpor.control.main import DATABASE_FILE, ControlConfig, control_plane
from torpor.control.metering import beat, meter
from torpor.control.reconcile import reconcile
from torpor.control.service.sandboxes import Owned
from torpor.control.service.usage import ReportListing, Span, report, sandbox_usage
from torpor.control.store.contract import AccountListing
from torpor.control.store.rules import KEEP_CLAIMS, KEEP_SANDBOXES
from torpor.control.store.sql import open_store
from torpor.errors import HostUnreachable, NotFound
from torpor.model.ids import SandboxId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.usage import Interval, Prices
from torpor.testing.clock import JumpClock
from torpor.testing.host import FakeHost
from torpor.wire import host
from torpor.wire.memory import MemoryTransport

CPU_PRICE, GIB_PRICE = 0.000015, 0.0000045


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as made:
        yield made


async def usage(rig: Rig, sandbox_id: str, **query: str) -> Any:
    answer = await rig.http.get(f"/v1/sandboxes/{sandbox_id}/usage", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ledger(rig: Rig, sandbox_id: str) -> list[Interval]:
    (account,) = await rig.store.accounts(AccountListing(mine(sandbox_id).workspace, sandbox=SandboxId(sandbox_id)))
    return list(account.intervals)


def iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def test_a_known_duty_cycle_is_what_usage_tells(rig: Rig) -> None:
    made = await rig.create()
    for _ in range(10):
        await rig.clock.jump(6)
        await rig.post(made, "hibernate")
        await rig.clock.jump(54)
        await rig.post(made, "wake")
    shown = await usage(rig, made)
    assert (shown["running_seconds"], shown["hibernated_seconds"], shown["paused_seconds"]) == (60, 540, 0)
    assert shown["active_share"] == pytest.approx(0.1)
    rate = CPU_PRICE + 0.5 * GIB_PRICE
    assert shown["cost"] == pytest.approx(60 * rate)
    assert shown["always_on_cost"] == pytest.approx(600 * rate)
    assert shown["saved_share"] == pytest.approx(0.9)


async def test_what_the_host_read_is_told_at_once_after_a_passage_and_after_each_heartbeat(rig: Rig) -> None:
    made = await rig.create()
    rig.host.use(made, host.Usage(cpu_seconds=2.5, resident_byte_seconds=1000, resident_bytes=9, disk_bytes=4096))
    await rig.clock.jump(5)
    assert (await usage(rig, made))["cpu_seconds"] == 0
    await rig.post(made, "snapshots")
    assert (await usage(rig, made))["cpu_seconds"] == 2.5
    rig.host.use(made, host.Usage(cpu_seconds=4, resident_byte_seconds=1500, resident_bytes=9, disk_bytes=8192))
    await beat(rig.plane)
    shown = await usage(rig, made)
    assert (shown["cpu_seconds"], shown["resident_byte_seconds"], shown["disk_bytes"]) == (4, 1500, 8192)
    rig.host.use(made, host.Usage(cpu_seconds=5, resident_byte_seconds=1500, disk_bytes=8192))
    await rig.post(made, "hibernate")
    assert (await usage(rig, made))["cpu_seconds"] == 5
    await rig.post(made, "wake")
    rig.host.use(made, host.Usage(cpu_seconds=7, resident_byte_seconds=1600, disk_bytes=8192))
    await rig.http.delete(f"/v1/sandboxes/{made}")
    shown = await usage(rig, made)
    assert (shown["cpu_seconds"], shown["resident_byte_seconds"]) == (7, 1600)
    assert shown["deleted_at"] is not None


async def test_a_part_of_the_time_can_be_asked_about(rig: Rig) -> None:
    made = await rig.create()
    began = rig.clock.now()
    await rig.clock.jump(100)
    await rig.post(made, "hibernate")
    await rig.clock.jump(100)
    shown = await usage(rig, made, since=iso(began + timedelta(seconds=90)), until=iso(began + timedelta(seconds=130)))
    assert (shown["running_seconds"], shown["hibernated_seconds"]) == (10, 30)
    assert shown["since"] == iso(began + timedelta(seconds=90))
    assert shown["until"] == iso(began + timedelta(seconds=130))
    ahead = await usage(rig, made, until=iso(began + timedelta(days=1)))
    assert (ahead["hibernated_seconds"], ahead["until"]) == (100, iso(rig.clock.now()))
    before = await usage(rig, made, until=iso(began - timedelta(days=1)))
    assert (before["running_seconds"], before["cost"], before["saved_share"]) == (0, 0, 0)


async def test_usage_is_reported_by_metadata_with_its_sum_also_of_the_deleted(rig: Rig) -> None:
    first = await rig.create(metadata={"run": "7"}, name="first")
    await rig.create(metadata={"run": "8"})
    await rig.clock.jump(10)
    second = await rig.create(metadata={"run": "7", "who": "me"})
    await rig.clock.jump(30)
    await rig.http.delete(f"/v1/sandboxes/{first}")
    await rig.clock.jump(60)
    shown = (await rig.http.get("/v1/usage", params={"metadata.run": "7"})).json()
    assert [(item["sandbox_id"], item["running_seconds"]) for item in shown["items"]] == [(second, 90), (first, 40)]
    assert [item["deleted_at"] is None for item in shown["items"]] == [True, False]
    assert shown["items"][0]["metadata"] == {"run": "7", "who": "me"}
    assert shown["total"]["running_seconds"] == 130
    assert shown["total"]["cost"] == pytest.approx(sum(item["cost"] for item in shown["items"]))
    assert shown["prices"] == {"vcpu_second": CPU_PRICE, "gib_second": GIB_PRICE, "currency": "USD"}
    everything = (await rig.http.get("/v1/usage")).json()
    assert everything["total"]["running_seconds"] == 230
    later = iso(rig.clock.now() - timedelta(seconds=20))
    recent = (await rig.http.get("/v1/usage", params={"metadata.run": "7", "since": later})).json()
    assert [(item["sandbox_id"], item["running_seconds"]) for item in recent["items"]] == [(second, 20)]
    assert recent["total"]["since"] == later


async def test_of_nobody_there_is_an_empty_report(rig: Rig) -> None:
    shown = (await rig.http.get("/v1/usage", params={"metadata.run": "none"})).json()
    assert shown["items"] == []
    assert (shown["total"]["running_seconds"], shown["total"]["active_share"]) == (0, 0)


async def test_the_same_can_be_had_as_csv_that_no_spreadsheet_computes(rig: Rig) -> None:
    made = await rig.create(metadata={"note": '=cmd("x"),\n+1'}, name="one")
    await rig.clock.jump(7)
    answer = await rig.http.get("/v1/usage", params={"format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    (row,) = list(csv.DictReader(io.StringIO(answer.text)))
    assert (row["sandbox_id"], row["name"], row["running_seconds"], row["deleted_at"]) == (made, "one", "7.0", "")
    assert json.loads(row["metadata"]) == {"note": '=cmd("x"),\n+1'}
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())
    assert answer.text.count("\r\n") == 2


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize(
    "text", ["yesterday", "1893456000", "2030-01-01", "2030-01-01T00:00:00", "0001-01-01T00:00:00+10:00"]
)
async def test_what_is_no_time_is_refused_by_its_name(rig: Rig, name: str, text: str) -> None:
    made = await rig.create()
    for path in ("/v1/usage", f"/v1/sandboxes/{made}/usage"):
        answer = await rig.http.get(path, params={name: text})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(f"{name} has to be a time")


async def test_a_time_that_ends_before_it_begins_is_refused(rig: Rig) -> None:
    span = {"since": "2030-01-02T00:00:00Z", "until": "2030-01-01T00:00:00Z"}
    answer = await rig.http.get("/v1/usage", params=span)
    assert (answer.status_code, answer.json()["error"]) == (400, "until has to be after since")


async def test_who_is_unknown_or_anothers_has_no_usage_here(rig: Rig) -> None:
    made = await rig.create()
    for name in (NOBODY, "nonsense"):
        assert (await rig.http.get(f"/v1/sandboxes/{name}/usage")).status_code == 404
    elsewhere = await report(rig.plane, ReportListing(WorkspaceId("other")))
    assert elsewhere.each == []
    with pytest.raises(NotFound):
        await sandbox_usage(rig.plane, Owned(WorkspaceId("other"), SandboxId(made)), Span())


async def test_metrics_tell_how_the_living_stand(rig: Rig) -> None:
    old, new = await rig.create(name="old"), await rig.create()
    gone = await rig.create()
    await rig.http.delete(f"/v1/sandboxes/{gone}")
    rig.host.use(old, host.Usage(cpu_seconds=3, resident_bytes=77, disk_bytes=88))
    async with rig.plane.activity.using(SandboxId(new)):
        shown = (await rig.http.get("/v1/metrics")).json()
    assert shown["at"] == iso(rig.clock.now())
    of = {item["sandbox_id"]: item for item in shown["items"]}
    assert of.keys() == {old, new}
    assert (of[old]["name"], of[old]["status"], of[old]["in_flight"]) == ("old", "running", 0)
    assert (of[old]["cpu_seconds"], of[old]["resident_bytes"], of[old]["disk_bytes"]) == (3, 77, 88)
    assert of[new]["in_flight"] == 1
    rig.host.down = True
    assert (await rig.http.get("/v1/metrics")).status_code == 503


async def test_the_heartbeat_comes_again_and_again_and_once_more_at_the_end(rig: Rig) -> None:
    made = await rig.create()
    async with rig.working(meter(rig.plane, 10)):
        await rig.clock.jump(25)
        assert (await ledger(rig, made))[-1].ended_at == rig.clock.now() - timedelta(seconds=5)
        rig.host.down = True
        await rig.clock.jump(10)
        rig.host.down = False
        await rig.clock.jump(3)
        assert (await ledger(rig, made))[-1].ended_at == rig.clock.now() - timedelta(seconds=18)
    assert (await ledger(rig, made))[-1].ended_at == rig.clock.now()


async def test_a_machine_that_was_lost_is_paid_until_the_last_heartbeat(rig: Rig) -> None:
    made = await rig.create()
    await rig.clock.jump(10)
    await beat(rig.plane)
    await rig.clock.jump(7)
    rig.host.die(made)
    await beat(rig.plane)
    await rig.clock.jump(3600)
    await reconcile(rig.plane)
    shown = await usage(rig, made)
    assert (shown["running_seconds"], shown["always_on_cost"]) == (
        10,
        pytest.approx(10 * (CPU_PRICE + 0.5 * GIB_PRICE)),
    )
    assert [one.state for one in await ledger(rig, made)] == [State.CREATING, State.RUNNING, State.FAILED]


async def test_a_sandbox_that_is_found_asleep_has_slept_since_its_snapshot(rig: Rig) -> None:
    made = await rig.create()
    await rig.clock.jump(10)
    rig.host.lose_answer("hibernate")
    rig.host.fail("list", HostUnreachable("away"))
    await rig.http.post(f"/v1/sandboxes/{made}/hibernate")
    assert await rig.status(made) == "hibernating"
    await rig.clock.jump(500)
    await reconcile(rig.plane)
    shown = await usage(rig, made)
    assert shown["running_seconds"] == pytest.approx(10, abs=0.01)
    assert shown["hibernated_seconds"] == pytest.approx(500, abs=0.01)


async def test_a_kill_costs_the_ledger_one_heartbeat_at_most_and_leaves_no_gap(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    store = await open_store(tmp_path / "home" / "torpor.db")
    async with control_rig(store) as rig:
        kept, died, asleep = [await rig.create() for _ in range(3)]
        await rig.post(asleep, "hibernate")
        await rig.clock.jump(100)
        await beat(rig.plane)
        for name in (kept, died):
            rig.host.use(name, host.Usage(cpu_seconds=50))
        await rig.clock.jump(9)
        shutil.copytree(tmp_path / "home", tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm"))
        host_then, clock_then = rig.host, rig.clock
    await store.aclose()
    host_then.die(died)
    await clock_then.jump(1000)
    again = await open_store(tmp_path / "killed" / "torpor.db")
    async with control_rig(again, host_then, clock_then) as rig:
        await reconcile(rig.plane)
        await beat(rig.plane)
        await rig.clock.jump(1)
        for name, running, hibernated, cpu in ((kept, 1110, 0, 50), (died, 100, 0, 50), (asleep, 0, 1110, 0)):
            shown = await usage(rig, name)
            assert (shown["running_seconds"], shown["hibernated_seconds"], shown["cpu_seconds"]) == (
                running,
                hibernated,
                cpu,
            )
            stays = await ledger(rig, name)
            assert all(one.ended_at == other.began_at for one, other in pairwise(stays))
    await again.aclose()


async def later(rig: Rig, time: timedelta) -> None:
    """Let time pass, and then forget what is old by then."""
    await rig.clock.jump(time.total_seconds())
    async with rig.working(forget(rig.plane)):
        pass


async def test_what_was_deleted_long_ago_is_forgotten_with_its_ledger_and_its_key_before_that(rig: Rig) -> None:
    async def keyed() -> httpx2.Response:
        return await rig.http.post("/v1/sandboxes", json={}, headers={"idempotency-key": "k"})

    made = (await keyed()).json()["id"]
    await rig.http.delete(f"/v1/sandboxes/{made}")
    await later(rig, KEEP_CLAIMS)
    assert (await keyed()).status_code == 409
    await later(rig, timedelta(seconds=1))
    fresh = await keyed()
    assert fresh.status_code == 201
    await later(rig, KEEP_SANDBOXES - KEEP_CLAIMS - timedelta(seconds=1))
    assert (await usage(rig, made))["deleted_at"] is not None
    await later(rig, timedelta(seconds=1))
    assert (await rig.http.get(f"/v1/sandboxes/{made}/usage")).status_code == 404
    assert (await usage(rig, fresh.json()["id"]))["deleted_at"] is None


async def test_forgetting_comes_again_every_hour(rig: Rig) -> None:
    made = await rig.create()
    await rig.http.delete(f"/v1/sandboxes/{made}")
    await rig.clock.jump((KEEP_SANDBOXES - timedelta(minutes=90)).total_seconds())
    async with rig.working(forget(rig.plane)):
        await rig.clock.jump(3600)
        assert await rig.status(made) == "deleted"
        await rig.clock.jump(3600)
        assert await rig.status(made) is None


async def test_a_server_counts_from_its_start_to_its_end_and_by_its_prices(tmp_path: Path) -> None:
    clock = JumpClock()
    fake = FakeHost(clock)
    config = ControlConfig(tmp_path, clock=clock, stop_within_s=0, beat_every_s=10, prices=Prices(2.0, 0.0))
    async with control_plane(config, fake.transport()) as app:
        headers = {"authorization": f"Bearer {load_or_make_key(tmp_path)}"}
        async with httpx2.AsyncClient(
            transport=MemoryTransport(app), base_url="http://localhost", headers=headers, timeout=None
        ) as client:
            made = (await client.post("/v1/sandboxes", json={})).json()["id"]
            fake.use(made, host.Usage(cpu_seconds=6))
            await clock.jump(25)
            shown = (await client.get(f"/v1/sandboxes/{made}/usage")).json()
            assert (shown["running_seconds"], shown["cost"]) == (25, 50)
            fake.use(made, host.Usage(cpu_seconds=8))
    await clock.jump(1000)
    async with control_plane(config, fake.transport()):
        pass
    store = await open_store(tmp_path / DATABASE_FILE)
    (account,) = await store.accounts(AccountListing(WorkspaceId("default")))
    await store.aclose()
    running = account.intervals[-1]
    assert (running.state, running.cpu_seconds) == (State.RUNNING, 8)
    assert (running.ended_at - running.began_at).total_seconds() == 1025


async def test_a_long_report_is_told_in_pages_and_each_has_the_sum_of_all(rig: Rig) -> None:
    made = [await rig.create() for _ in range(7)]
    await rig.clock.jump(10)
    whole = (await rig.http.get("/v1/usage")).json()
    assert (len(whole["items"]), whole["next_cursor"], whole["total"]["running_seconds"]) == (7, None, 70)
    listed, query = [], {"limit": "3"}
    while True:
        answer = await rig.http.get("/v1/usage", params=query)
        assert answer.json()["total"] == whole["total"]
        listed += answer.json()["items"]
        table = await rig.http.get("/v1/usage", params=query | {"format": "csv"})
        assert table.headers.get("x-next-cursor") == answer.json()["next_cursor"]
        if answer.json()["next_cursor"] is None:
            break
        query["cursor"] = answer.json()["next_cursor"]
    assert listed == whole["items"]
    assert {item["sandbox_id"] for item in listed} == set(made)
    for bad in ({"cursor": "?"}, {"limit": "0"}, {"limit": "1001"}):
        assert (await rig.http.get("/v1/usage", params=bad)).status_code == 400
