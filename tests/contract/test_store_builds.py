"""What both stores keep of builds, their logs and workspaces' templates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from store_records import HERE, NOON, opened
from torpor.control.store.builds import MOST_ENDED, BuildClaim
from torpor.control.store.contract import Store
from torpor.errors import Conflict
from torpor.model.builds import Build, LogLine, OwnTemplate, Status
from torpor.model.ids import BuildId, TemplateName, WorkspaceId

ELSEWHERE = WorkspaceId("elsewhere")
LATER = NOON + timedelta(hours=1)


@pytest.fixture(params=["sql", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(request.param, tmp_path) as store:
        yield store


def ordered(number: int, **changes: object) -> Build:
    build = Build(
        id=BuildId(f"bld-{number:016d}"),
        workspace=HERE,
        name=TemplateName("tools"),
        is_global=False,
        kind="image",
        created_at=NOON + timedelta(seconds=number),
        order='{"the": "order"}',
        image_ref="registry.example/tools:1",
        size_mb=1024,
    )
    return replace(build, **changes)  # type: ignore[arg-type]  # the tests name fields


def own(number: int, name: str = "tools", workspace: WorkspaceId = HERE) -> OwnTemplate:
    host_name = TemplateName(f"tpl-{number:016d}")
    return OwnTemplate(workspace, TemplateName(name), host_name, "an image", NOON)


async def test_a_build_is_found_and_listed_where_it_belongs(store: Store) -> None:
    first, second, other = ordered(1), ordered(2, has_files=True), ordered(3, workspace=ELSEWHERE)
    for build in (first, second, other):
        assert await store.add_build(build) == build
    assert await store.build(second.id) == second
    assert await store.build(BuildId("bld-unknown")) is None
    assert await store.builds(HERE) == [second, first]
    assert await store.open_builds() == [first, second, other]


async def test_a_request_sent_again_gets_the_build_of_before_and_another_one_is_refused(store: Store) -> None:
    first = await store.add_build(ordered(1), BuildClaim("k", "digest"))
    assert await store.add_build(ordered(2), BuildClaim("k", "digest")) == first
    with pytest.raises(Conflict, match="which made the build bld-0000000000000001"):
        await store.add_build(ordered(3), BuildClaim("k", "another"))
    elsewhere = ordered(4, workspace=ELSEWHERE)
    assert await store.add_build(elsewhere, BuildClaim("k", "another")) == elsewhere
    assert await store.is_build_claimed(HERE, "k")
    assert not await store.is_build_claimed(HERE, "other")
    assert await store.builds(HERE) == [first]


async def test_a_status_changes_only_from_one_that_was_seen(store: Store) -> None:
    await store.add_build(build := ordered(1))
    began = await store.move_build(build.id, {Status.QUEUED}, Status.RUNNING, LATER)
    assert began == replace(build, status=Status.RUNNING, started_at=LATER)
    assert await store.move_build(build.id, {Status.QUEUED}, Status.FAILED, LATER, "no") is None
    baking = await store.move_build(build.id, {Status.RUNNING}, Status.BAKING, LATER)
    assert baking is not None
    assert baking.status is Status.BAKING
    failed = await store.move_build(build.id, {Status.BAKING}, Status.FAILED, LATER, "because")
    assert failed == replace(began, status=Status.FAILED, ended_at=LATER, error="because", order=None)
    assert await store.open_builds() == []


async def test_a_build_that_ends_well_puts_its_template_in_the_place_of_the_one_before(store: Store) -> None:
    for number in (1, 2):
        await store.add_build(ordered(number))
        await store.move_build(ordered(number).id, {Status.QUEUED}, Status.RUNNING, LATER)
        done = await store.finish_build(ordered(number).id, LATER, 77, own(number))
        assert done is not None
        assert (done.status, done.bytes, done.ended_at, done.order) == (Status.DONE, 77, LATER, None)
    assert await store.own_template(HERE, TemplateName("tools")) == own(2)
    assert await store.own_templates(HERE) == [own(2)]


async def test_a_build_that_has_ended_or_not_begun_puts_no_template_anywhere(store: Store) -> None:
    await store.add_build(build := ordered(1))
    assert await store.finish_build(build.id, LATER, 77, own(1)) is None
    await store.move_build(build.id, {Status.QUEUED}, Status.FAILED, LATER, "cancelled")
    assert await store.finish_build(build.id, LATER, 77, own(1)) is None
    assert await store.own_templates(None) == []


async def test_templates_of_one_name_in_two_workspaces_are_two(store: Store) -> None:
    for number, where in ((1, HERE), (2, ELSEWHERE)):
        await store.add_build(ordered(number, workspace=where))
        await store.move_build(ordered(number).id, {Status.QUEUED}, Status.RUNNING, LATER)
        await store.finish_build(ordered(number).id, LATER, 77, own(number, workspace=where))
    assert await store.own_templates(HERE) == [own(1)]
    assert await store.own_templates(None) == [own(1), own(2, workspace=ELSEWHERE)]
    assert await store.remove_own_template(HERE, TemplateName("tools")) == own(1)
    assert await store.remove_own_template(HERE, TemplateName("tools")) is None
    assert await store.own_templates(None) == [own(2, workspace=ELSEWHERE)]


async def test_it_is_known_when_each_workspace_had_its_last_turn(store: Store) -> None:
    for number, where in ((1, HERE), (2, HERE), (3, ELSEWHERE)):
        await store.add_build(ordered(number, workspace=where))
    await store.move_build(ordered(1).id, {Status.QUEUED}, Status.RUNNING, NOON)
    await store.move_build(ordered(2).id, {Status.QUEUED}, Status.RUNNING, LATER)
    assert await store.served() == {HERE: LATER}


async def test_a_log_grows_at_its_end_and_is_cut_at_its_beginning(store: Store) -> None:
    await store.add_build(build := ordered(1))
    lines = [LogLine(number, f"line {number}") for number in range(1, 8)]
    await store.add_lines(build.id, lines[:4], keep_from=1)
    await store.add_lines(build.id, lines[4:], keep_from=3)
    assert await store.lines(build.id, 0, 100) == lines[2:]
    assert await store.lines(build.id, 4, 2) == lines[4:6]
    await store.add_lines(BuildId("bld-unknown"), lines, keep_from=1)
    assert await store.lines(BuildId("bld-unknown"), 0, 100) == []


async def test_of_builds_that_ended_the_newest_are_remembered_and_those_that_wait_all(store: Store) -> None:
    await store.add_build(waiting := ordered(1))
    for number in range(2, MOST_ENDED + 4):
        await store.add_build(ordered(number))
        await store.add_lines(ordered(number).id, [LogLine(1, "said")], keep_from=1)
        await store.move_build(ordered(number).id, {Status.QUEUED}, Status.FAILED, LATER, "no")
    await store.add_build(ordered(500))
    found = await store.builds(HERE)
    assert len(found) == MOST_ENDED + 2
    assert found[-1] == waiting
    assert await store.build(ordered(2).id) is None
    assert await store.lines(ordered(2).id, 0, 10) == []


async def test_what_a_workspace_has_of_templates_and_builds_is_counted(store: Store) -> None:
    await store.add_build(ordered(1))
    await store.add_build(ordered(2))
    await store.add_build(ordered(3, workspace=ELSEWHERE))
    await store.move_build(ordered(1).id, {Status.QUEUED}, Status.RUNNING, LATER)
    await store.finish_build(ordered(1).id, LATER, 77, own(1))
    held = await store.holdings(HERE)
    assert (held.templates, held.builds) == (1, 1)
