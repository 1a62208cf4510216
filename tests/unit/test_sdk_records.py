"""Usage, events and the tree of snapshots as the SDK gives them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Any

import httpx2
import pytest

from scripted_server import RESIGNED, SNAPSHOT, VIEW, Script, answer, refusal, streamed
from torpor import AsyncClient, AsyncSandbox, Busy, InvalidRequest, OutcomeUnknown, Retry, Sandbox, Snapshot, Snapshots
from torpor.sdk.results import SandboxInfo
from torpor.wire.events import EventView
from torpor.wire.public import SandboxView, SnapshotView

INFO = SandboxInfo.of(SandboxView.model_validate(VIEW))
MOMENT = "2030-01-01T00:00:00Z"
USED: dict[str, Any] = {
    "since": MOMENT,
    "until": "2030-01-01T00:10:00Z",
    "running_seconds": 60.0,
    "hibernated_seconds": 540.0,
    "active_share": 0.1,
    "cpu_seconds": 30.0,
    "cost": 0.001035,
    "always_on_cost": 0.01035,
    "saved_share": 0.9,
}
OF_ONE = USED | {
    "sandbox_id": VIEW["id"],
    "template": "base",
    "cpu": 1,
    "memory_mb": 512,
    "created_at": MOMENT,
    "metadata": {"run": "1"},
}
REPORT = {"total": USED, "items": [OF_ONE], "prices": {"vcpu_second": 0.000015, "gib_second": 0.0000045}}


def happened(number: int, kind: str = "state") -> EventView:
    return EventView(cursor=str(number), at=datetime(2030, 1, 1, tzinfo=UTC), type=kind, sandbox_id=INFO.id)


def page(*events: EventView, next_cursor: str | None = None) -> dict[str, Any]:
    return {"items": [one.model_dump(mode="json") for one in events], "next_cursor": next_cursor}


def told(one: EventView) -> bytes:
    return f"id: {one.cursor}\nevent: {one.type}\ndata: {one.model_dump_json()}\n\n".encode()


def test_the_usage_of_a_sandbox_is_asked_for_in_a_span_of_time_and_reads_well() -> None:
    script = Script([answer(OF_ONE)])
    with script.client() as client:
        used = Sandbox(client, INFO).usage(datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=1))))
    assert script.received[0].path.endswith(f"/sandboxes/{INFO.id}/usage")
    since = script.received[0].query["since"]
    assert datetime.fromisoformat(since) == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert (used.running_seconds, used.active_share, dict(used.metadata)) == (60.0, 0.1, {"run": "1"})
    assert "ran 60.0 s of 600.0 s (10%)" in str(used)
    assert "90% saved" in str(used)


def test_the_usage_of_many_is_filtered_by_labels_and_summed_up() -> None:
    script = Script([answer(REPORT)])
    with script.client() as client:
        report = client.usage({"run": "1"}, until=datetime(2030, 1, 1, tzinfo=UTC))
    assert script.received[0].query["metadata.run"] == "1"
    assert "since" not in script.received[0].query
    assert (report.total.cost, report.items[0].sandbox_id, report.prices.currency) == (0.001035, VIEW["id"], "USD")
    assert str(report).count("\n") == 1


def test_what_is_no_moment_is_refused_before_anything_is_sent() -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="since has to be a datetime"):
        client.usage(since="yesterday")  # type: ignore[arg-type]


def test_events_are_read_page_after_page_to_the_last() -> None:
    script = Script(
        [
            answer(page(happened(1), happened(2), next_cursor="2")),
            answer(page(happened(3), next_cursor="3")),
            answer(page(next_cursor="3")),
        ]
    )
    with script.client() as client:
        events = list(Sandbox(client, INFO).events(types=["state", "exec"]))
    assert [one.cursor for one in events] == ["1", "2", "3"]
    assert [one.query.get("cursor") for one in script.received] == [None, "2", "3"]
    assert script.received[0].path.endswith(f"/sandboxes/{INFO.id}/events")


def test_a_single_text_in_the_place_of_types_is_refused() -> None:
    with Script([]).client() as client, pytest.raises(InvalidRequest, match="list"):
        list(client.events(types="state"))


def test_following_goes_on_after_the_last_event_when_the_line_breaks() -> None:
    cut = httpx2.ReadError("cut")
    script = Script(
        [
            streamed(b": beat\n\n", told(happened(5)), told(happened(6))[:-7], breaks=cut),
            httpx2.ConnectError("restarting"),
            refusal(Busy("wait")),
            streamed(told(happened(6)), told(happened(7))),
            streamed(told(happened(8)), told(happened(9))),
        ]
    )
    with script.client() as client:
        events = list(islice(client.events("4", follow=True), 4))
    assert [one.cursor for one in events] == ["5", "6", "7", "8"]
    assert [one.query["cursor"] for one in script.received] == ["4", "5", "5", "5", "7"]
    assert {one.query["follow"] for one in script.received} == {"true"}


def test_following_ends_with_the_patience() -> None:
    script = Script([streamed(told(happened(1)), breaks=httpx2.ReadError("cut"))])
    with script.client(RESIGNED) as client:
        events = client.events(follow=True)
        assert next(iter(events)).cursor == "1"
        with pytest.raises(OutcomeUnknown):
            next(iter(events))


def test_a_stream_that_always_ends_in_good_order_is_not_asked_for_ever() -> None:
    script = Script([streamed(b": beat\n\n") for _ in range(100_000)])
    patient = Retry(first_delay_s=0.0, longest_delay_s=0.0, reattach_s=0.05)
    with script.client(patient) as client, pytest.raises(OutcomeUnknown, match="ended the stream of events"):
        list(client.events(follow=True))
    assert len(script.received) > 1


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"cursor": 5}'])
def test_an_event_that_cannot_be_read_is_told_of_and_not_asked_for_again(data: bytes) -> None:
    script = Script([streamed(b"event: state\ndata: " + data + b"\n\n")])
    with script.client() as client, pytest.raises(OutcomeUnknown, match="not in the form"):
        list(client.events(follow=True))


async def test_the_async_twin_has_usage_and_events() -> None:
    script = Script([answer(OF_ONE), answer(REPORT), answer(page(happened(1))), streamed(told(happened(2)))])
    async with script.async_client() as client:
        box = AsyncSandbox(client, INFO)
        assert (await box.usage()).running_seconds == 60.0
        assert (await client.usage()).total.running_seconds == 60.0
        assert [one.cursor async for one in box.events()] == ["1"]
        async for one in box.events(follow=True):
            assert one.cursor == "2"
            break
    assert isinstance(client, AsyncClient)


def snapshots(*facts: dict[str, Any]) -> Snapshots[Snapshot]:
    client = Script([]).client()
    return Snapshots([Snapshot.of(SnapshotView.model_validate(SNAPSHOT | one), client) for one in facts])


def test_snapshots_print_as_a_tree_of_what_was_taken_after_what() -> None:
    listed = snapshots(
        {"id": "snp-d", "parent_id": "snp-b", "created_at": "2030-01-01T00:00:04Z", "kind": "automatic"},
        {"id": "snp-c", "parent_id": "snp-a", "created_at": "2030-01-01T00:00:03Z"},
        {"id": "snp-b", "parent_id": "snp-a", "created_at": "2030-01-01T00:00:02Z", "name": "deps"},
        {"id": "snp-a", "parent_id": "snp-gone", "created_at": "2030-01-01T00:00:01Z", "kind": "hibernation"},
    )
    lines = str(listed).splitlines()
    assert [line.split("snp-")[0] for line in lines] == ["└── ", "    ├── ", "    │   └── ", "    └── "]
    assert [line.split("snp-")[1].split()[0] for line in lines] == ["a", "b", "d", "c"]
    assert "'deps', checkpoint, 16.0 MiB" in lines[1]
    assert "automatic" in lines[2]
    assert [branch.snapshot.id for branch in listed.tree()] == ["snp-a"]
    assert [one.id for one in listed] == ["snp-d", "snp-c", "snp-b", "snp-a"]


def test_without_snapshots_there_is_no_tree() -> None:
    assert (str(snapshots()), snapshots().tree()) == ("no snapshots", [])


def test_a_snapshot_that_names_itself_or_a_younger_one_as_its_parent_is_shown_all_the_same() -> None:
    listed = snapshots(
        {"id": "snp-b", "parent_id": "snp-b", "created_at": "2030-01-01T00:00:02Z"},
        {"id": "snp-a", "parent_id": "snp-b", "created_at": "2030-01-01T00:00:01Z"},
    )
    assert [branch.snapshot.id for branch in listed.tree()] == ["snp-a", "snp-b"]
