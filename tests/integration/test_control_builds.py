"""Builds of templates: queued, run one at a time in fair order, followed, cancelled, and settled after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from build_rig import BUILD, BUILDS, IMAGE, building, form, order, part, send_form, wait_status
from control_rig import Rig, control_rig
from store_records import opened
from torpor import errors
from torpor.model.builds import Status
from torpor.model.capacity import Quota
from torpor.testing.clock import JumpClock
from torpor.testing.host import FakeHost
from torpor.wire.builds import BuildOrder, DockerfileSource, ImageSource, SnapshotSource
from two_workspaces import new_key


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with control_rig() as rig:
        yield rig


async def log(rig: Rig, build: str, follow: str = "") -> str:
    answer = await rig.http.get(f"{BUILDS}/{build}/logs{follow}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return answer.text


async def test_a_template_is_built_from_order_to_sandbox(rig: Rig) -> None:
    queued = await order(rig, size_mb=5000, cpu=2, memory_mb=512, start_command="serve")
    assert (queued.status, queued.position, queued.kind, queued.image_ref) == ("queued", 1, "image", IMAGE)
    async with building(rig):
        done = await wait_status(rig, queued.id, "done")
    assert (done.error, done.position, done.size_mb) == (None, None, 5000)
    assert done.started_at is not None
    assert done.ended_at is not None
    assert done.bytes == rig.host.templates["tools"].size_bytes
    assert rig.host.builds.orders[queued.id] == BuildOrder(
        template="tools",
        source=ImageSource(reference=IMAGE),
        cpu=2,
        memory_mb=512,
        disk_gb=5,
        start_command="serve",
    )
    made = await rig.show(await rig.create(template="tools"))
    assert (made["template"], made["cpu"], made["memory_mb"]) == ("tools", 2, 512)
    told = await log(rig, queued.id)
    assert "data: step 1/1: made by a fake\n" in told
    assert told.endswith("event: end\ndata: end\n\n")


async def test_a_form_without_files_orders_as_a_client_elsewhere_sends_it(rig: Rig) -> None:
    asked = {"name": "tools", "dockerfile": "FROM base\nRUN true\n", "size_mb": "1024", "build_args": '{"A": "1"}'}
    answer = await rig.http.post(BUILD, data=asked)
    assert answer.status_code == 202, answer.text
    async with building(rig):
        await wait_status(rig, answer.json()["id"], "done")
    source = rig.host.builds.orders[answer.json()["id"]].source
    assert source == DockerfileSource(dockerfile="FROM base\nRUN true\n", arguments={"A": "1"})


async def test_builds_of_several_workspaces_take_turns_and_run_one_at_a_time(rig: Rig) -> None:
    keys = {name: await new_key(rig, name) for name in ("greedy", "modest")}
    builds = [await order(rig, key=keys["greedy"], name=f"g{number}") for number in range(3)]
    builds.append(await order(rig, key=keys["modest"], name="m"))
    listed = (await rig.http.get(BUILDS, headers={"authorization": f"Bearer {keys['greedy']}"})).json()["items"]
    assert [(one["name"], one["position"]) for one in listed] == [("g2", 4), ("g1", 3), ("g0", 1)]
    async with building(rig):
        for build in builds:
            await asyncio.wait_for(_over(rig, build.id), 30)
    assert list(rig.host.builds.orders) == [builds[place].id for place in (0, 3, 1, 2)]


async def _over(rig: Rig, build: str) -> None:
    while True:
        coming = rig.plane.bells.builds.coming
        if not any(one.id == build for one in await rig.store.open_builds()):
            return
        await coming.wait()


async def test_a_build_that_fails_says_why_and_leaves_the_template_as_it_was(rig: Rig) -> None:
    await order(rig)
    async with building(rig):
        rig.host.builds.failure = errors.Failed("step 2/3: RUN make ended with 2", hint="look above")
        failed = await wait_status(rig, (await order(rig, name="base")).id, "failed")
    assert failed.error == "step 2/3: RUN make ended with 2 (look above)"
    assert not failed.cancelled
    assert "data: error: step 2/3: RUN make ended with 2\n" in await log(rig, failed.id)
    await rig.create(template="base")


async def test_a_log_is_followed_from_its_beginning_to_the_end_of_the_build(rig: Rig) -> None:
    rig.host.builds.lines = ["first", "", "end", " end ", "a\u2028b\x1b[31mc"]
    rig.host.builds.hold()
    build = await order(rig)
    following = asyncio.create_task(log(rig, build.id, "?follow=1"))
    async with building(rig):
        await rig.host.builds.reached.wait()
        assert not following.done()
        rig.host.builds.go.set()
        told = await following
    data = [line.removeprefix("data: ") for line in told.splitlines() if line.startswith("data:")]
    assert data[:3] == ["first", "", "end\u200b"]
    assert data[3:5] == [" end \u200b", "a bc"]
    assert data[-1] == "end"
    assert data.count("end") == 1


async def test_a_log_without_follow_ends_with_what_there_is(rig: Rig) -> None:
    build = await order(rig)
    assert await log(rig, build.id) == ": beat\n\nevent: end\ndata: end\n\n"


async def test_a_queued_build_is_cancelled_before_it_begins(rig: Rig) -> None:
    build = await order(rig, dockerfile="FROM base")
    rig.host.builds.files[build.id] = {"context/a": b"a"}
    for _ in range(2):
        assert (await rig.http.delete(f"{BUILDS}/{build.id}")).status_code == 204
    cancelled = await wait_status(rig, build.id, "failed")
    assert (cancelled.status, cancelled.error, cancelled.cancelled) == ("failed", "cancelled", True)
    assert rig.host.builds.files == {}
    async with building(rig):
        await wait_status(rig, (await order(rig)).id, "done")
    assert build.id not in rig.host.builds.orders


async def test_a_running_build_is_cancelled_and_the_next_one_begins(rig: Rig) -> None:
    rig.host.builds.hold()
    build, following = await order(rig), await order(rig, name="next")
    async with building(rig):
        await rig.host.builds.reached.wait()
        assert (await rig.http.delete(f"{BUILDS}/{build.id}")).status_code == 204
        assert rig.host.builds.left == [build.id]
        cancelled = await wait_status(rig, build.id, "failed")
        assert (cancelled.error, cancelled.cancelled) == ("cancelled", True)
        assert "tools" not in rig.host.templates
        rig.host.builds.go.set()
        await wait_status(rig, following.id, "done")
    assert "data: cancelled\n" in await log(rig, build.id)


async def test_builds_wait_while_the_host_builds_for_somebody_else_or_is_away(rig: Rig) -> None:
    rig.host.fail("build", errors.Busy("another template is being built on this host"), times=2)
    build = await order(rig)
    async with building(rig):
        for times in (1, 2):
            await rig.clock.wait_sleepers(1)
            assert rig.host.calls["build"] == times
            assert (await wait_status(rig, build.id, "queued")).position == 1
            await rig.clock.jump(5)
        await wait_status(rig, build.id, "done")


async def test_what_was_built_when_the_server_stopped_has_failed_and_what_waited_goes_on(tmp_path: Path) -> None:
    host, clock = FakeHost(), JumpClock()
    host.builds.hold()
    async with opened("sql", tmp_path) as store, control_rig(store, host, clock) as rig:
        running = await order(rig)
        sent = await send_form(rig, form(part("rootfs", b"tar", filename="r.tar"), fields={"name": "sent"}))
        async with building(rig):
            await host.builds.reached.wait()
            waiting = await order(rig, name="waiting")
    assert host.builds.left == [running.id]
    host.builds.go.set()
    host.builds.files.clear()  # as a host does when it starts
    async with opened("sql", tmp_path) as store, control_rig(store, host, clock) as rig:
        async with building(rig):
            done = await wait_status(rig, waiting.id, "done")
        cut_off = await wait_status(rig, running.id, "failed")
        gone = await wait_status(rig, sent.json()["id"], "failed")
    assert done.name == "waiting"
    assert cut_off.error == "the server stopped while the template was being built; build it again"
    assert gone.error is not None
    assert "the files that were sent for it are gone; send it again" in gone.error


async def test_a_lost_answer_of_the_host_fails_the_build_and_leaves_nothing_of_a_workspace(rig: Rig) -> None:
    key = await new_key(rig, "acme")
    rig.host.lose_answer("build")
    build = await order(rig, key=key)
    async with building(rig):
        await _over(rig, build.id)
    answer = await rig.http.get(f"{BUILDS}/{build.id}", headers={"authorization": f"Bearer {key}"})
    assert answer.json()["status"] == "failed"
    assert set(rig.host.templates) == {"base", "agent"}


async def test_a_snapshot_is_promoted_unless_it_holds_secrets(rig: Rig) -> None:
    plain, secretive = await rig.create(), await rig.create(secrets={"TOKEN": "x"})
    snapshots = [(await rig.post(one, "snapshots"))["id"] for one in (plain, secretive)]
    async with building(rig):
        build = await order(rig, from_snapshot=snapshots[0])
        await wait_status(rig, build.id, "done")
    assert rig.host.builds.orders[build.id].source == SnapshotSource(snapshot=snapshots[0])
    refused = await rig.http.post(BUILD, json={"name": "t", "from_snapshot": snapshots[1]})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "holds the secrets TOKEN" in refused.json()["error"]
    unknown = await rig.http.post(BUILD, json={"name": "t", "from_snapshot": "snp-0000000000000000"})
    assert unknown.status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "name is required"),
        ({"name": "Tools", "image_ref": IMAGE}, "'Tools' cannot name a template"),
        ({"name": "builds", "image_ref": IMAGE}, "'builds' cannot name a template"),
        ({"name": "tpl-x", "image_ref": IMAGE}, "'tpl-x' cannot name a template"),
        ({"name": "t"}, "none of them was given"),
        ({"name": "t", "image_ref": IMAGE, "dockerfile": "FROM x"}, "image_ref and dockerfile was given"),
        ({"name": "t", "image_ref": IMAGE, "kernel": "6.1"}, "kernel was given"),
        ({"name": "t", "image_ref": IMAGE, "build_args": {"A": "1"}}, "build_args were given, and only a Dockerfile"),
        ({"name": "t", "image_ref": IMAGE, "size_mb": "many"}, "size_mb has to be a valid integer"),
        ({"name": "t", "image_ref": IMAGE, "size_mb": 0}, "size_mb has to be greater than or equal to 1"),
        ({"name": "t", "image_ref": IMAGE, "cpu": True}, "cpu has to be a valid integer"),
        ({"name": "t", "from_snapshot": "snp-0000000000000000", "cpu": 2}, "a template of a snapshot has its size"),
        ({"name": "t", "dockerfile": "x", "build_args": {"A=": "1"}}, "build_args.A= has to match pattern"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_in_one_sentence(
    rig: Rig, body: dict[str, object], said: str
) -> None:
    answer = await rig.http.post(BUILD, json=body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]
    assert (await rig.http.get(BUILDS)).json() == {"items": []}


async def test_a_request_sent_again_is_built_once_and_another_one_with_its_key_refused(rig: Rig) -> None:
    headers = {"idempotency-key": "k"}
    body = form(part("rootfs", b"tar", filename="r"), fields={"name": "tools"})
    first, again = await send_form(rig, body, **headers), await send_form(rig, body, **headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert list(rig.host.builds.files) == [first.json()["id"]]
    other = await send_form(rig, body.replace(b"tar", b"TAR"), **headers)
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert list(rig.host.builds.files) == [first.json()["id"]]


async def test_builds_that_wait_and_templates_are_bounded_with_limit_use_and_hint() -> None:
    async with control_rig(quota=Quota(builds=2, templates=1)) as rig:
        key = await new_key(rig, "acme")
        headers = {"authorization": f"Bearer {key}"}
        first = await order(rig, key=key)
        second = await rig.http.post(BUILD, json={"name": "more", "image_ref": IMAGE}, headers=headers)
        assert second.status_code == 429
        assert second.json()["details"] == {"resource": "templates", "limit": 1, "used": 1}
        await order(rig, key=key)
        third = await rig.http.post(BUILD, json={"name": "tools", "image_ref": IMAGE}, headers=headers)
        assert third.status_code == 429
        assert third.json()["details"] == {"resource": "builds", "limit": 2, "used": 2}
        assert "torpor template builds" in third.json()["hint"]
        assert (await rig.http.get("/v1/quota", headers=headers)).json()["builds"] == {"limit": 2, "used": 2}
        await rig.http.delete(f"{BUILDS}/{first.id}", headers=headers)
        await order(rig, key=key)
        assert (await order(rig, name="mine")).status == Status.QUEUED


async def test_what_was_ordered_and_what_came_of_it_is_in_the_audit_log_and_the_events(rig: Rig) -> None:
    async with building(rig):
        build = await order(rig)
        await wait_status(rig, build.id, "done")
    await rig.plane.noter.flush()
    events = (await rig.http.get("/v1/events", params={"type": "template.built"})).json()["items"]
    assert [one["data"] for one in events] == [
        {"template": "tools", "build_id": build.id, "kind": "image", "is_global": True}
    ]
    entries = (await rig.http.get("/v1/audit")).json()["items"]
    assert [(one["action"], one["targets"]) for one in entries] == [("POST /v1/templates/build", [build.id, "tools"])]
