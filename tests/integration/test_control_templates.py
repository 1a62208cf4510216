"""Templates belong to workspaces, or to everybody: who sees, uses, replaces and removes which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from build_rig import BUILD, BUILDS, IMAGE, building, order, wait_status
from control_rig import Rig, control_rig
from torpor.control.service.templates import naming
from torpor.errors import Busy, NotFound, RestoreFailed
from torpor.model.builds import is_private
from torpor.model.ids import BuildId
from two_workspaces import new_key

TEMPLATES = "/v1/templates"


@dataclass(frozen=True)
class Two:
    """A server, and the keys of two workspaces."""

    rig: Rig
    ours: str
    theirs: str

    async def ask(self, key: str, method: str, path: str, **more: Any) -> Any:
        return await self.rig.http.request(method, path, headers={"authorization": f"Bearer {key}"}, **more)

    async def build(self, key: str, **fields: Any) -> str:
        """Build a template to its end and return its name on the host."""
        build = await order(self.rig, key=key, **fields)
        async with building(self.rig):
            await self.rig.clock.wait_sleepers(1)
        found = await self.rig.store.build(BuildId(build.id))
        assert found is not None
        assert found.status.value == "done", found
        return found.host_name

    def private(self) -> list[str]:
        """Return the names of the templates on the host that belong to a workspace."""
        return [name for name in self.rig.host.templates if is_private(name)]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with control_rig() as rig:
        yield Two(rig, await new_key(rig, "ours"), await new_key(rig, "theirs"))


async def test_two_workspaces_have_templates_of_one_name_and_neither_sees_the_others(two: Two) -> None:
    await two.build(two.ours, cpu=2)
    await two.build(two.theirs, cpu=3)
    assert len(two.private()) == 2
    for key, cpu, workspace in ((two.ours, 2, "ours"), (two.theirs, 3, "theirs")):
        shown = (await two.ask(key, "GET", f"{TEMPLATES}/tools")).json()
        assert (shown["cpu"], shown["workspace"], shown["is_global"]) == (cpu, workspace, False)
        assert shown["description"] == f"made from image {IMAGE}"
        listed = (await two.ask(key, "GET", TEMPLATES)).json()["items"]
        assert [(one["name"], one["is_global"]) for one in listed] == [
            ("agent", True),
            ("base", True),
            ("tools", False),
        ]
        made = (await two.ask(key, "POST", "/v1/sandboxes", json={"template": "tools"})).json()
        assert (made["template"], made["cpu"]) == ("tools", cpu)
    assert (await two.rig.http.get(f"{TEMPLATES}/tools")).status_code == 404


async def test_the_name_that_a_template_has_on_the_host_is_shown_nowhere_and_opens_nothing(two: Two) -> None:
    host_name = await two.build(two.ours)
    made = (await two.ask(two.ours, "POST", "/v1/sandboxes", json={"template": "tools"})).json()
    snapshot = (await two.ask(two.ours, "POST", f"/v1/sandboxes/{made['id']}/snapshots", json={})).json()
    again = (await two.ask(two.ours, "POST", "/v1/sandboxes", json={"from_snapshot": snapshot["id"]})).json()
    forked = (await two.ask(two.ours, "POST", f"/v1/sandboxes/{made['id']}/fork", json={})).json()
    assert [one["template"] for one in (made, snapshot, again, forked["sandbox"])] == ["tools"] * 4
    for key in (two.ours, two.theirs):
        for method in ("GET", "DELETE"):
            assert (await two.ask(key, method, f"{TEMPLATES}/{host_name}")).status_code == 404
        refused = await two.ask(key, "POST", "/v1/sandboxes", json={"template": host_name})
        assert refused.status_code == 400
    two.rig.host.fail("restore", RestoreFailed(f"template {host_name!r} was baked elsewhere"))
    failed = await two.ask(two.ours, "POST", "/v1/sandboxes", json={"template": "tools"})
    assert failed.json()["error"] == "template 'tools' was baked elsewhere"


async def test_a_template_that_is_built_anew_takes_the_place_of_the_old_one_and_sandboxes_live_on(two: Two) -> None:
    first = await two.build(two.ours, cpu=1)
    made = (await two.ask(two.ours, "POST", "/v1/sandboxes", json={"template": "tools"})).json()
    second = await two.build(two.ours, cpu=2)
    assert first != second
    assert two.private() == [second]
    assert (await two.ask(two.ours, "GET", f"{TEMPLATES}/tools")).json()["cpu"] == 2
    assert (await two.ask(two.ours, "GET", f"/v1/sandboxes/{made['id']}")).json()["status"] == "running"


async def test_a_build_that_fails_leaves_the_older_template(two: Two) -> None:
    first = await two.build(two.ours)
    two.rig.host.builds.failure = RestoreFailed("no")
    failed = await order(two.rig, key=two.ours)
    async with building(two.rig):
        await two.rig.clock.wait_sleepers(1)
    found = await two.rig.store.build(BuildId(failed.id))
    assert found is not None
    assert found.status.value == "failed"
    assert two.private() == [first]


async def test_an_own_template_comes_before_everybodys_of_that_name_until_it_is_removed(two: Two) -> None:
    await two.build(two.ours, name="base", cpu=4)
    shown = [(await two.ask(key, "GET", f"{TEMPLATES}/base")).json() for key in (two.ours, two.theirs)]
    assert [(one["cpu"], one["is_global"]) for one in shown] == [(4, False), (1, True)]
    assert (await two.ask(two.ours, "DELETE", f"{TEMPLATES}/base")).status_code == 204
    assert two.private() == []
    assert (await two.ask(two.ours, "GET", f"{TEMPLATES}/base")).json()["is_global"]


async def test_members_make_and_remove_their_own_and_admins_everybodys(two: Two) -> None:
    forbidden = await two.ask(two.ours, "DELETE", f"{TEMPLATES}/base")
    assert (forbidden.status_code, forbidden.json()["code"]) == (403, "forbidden")
    for wish in ({"name": "t", "image_ref": IMAGE, "is_global": True}, {"name": "base", "recipe": "base"}):
        assert (await two.ask(two.ours, "POST", BUILD, json=wish)).status_code == 403
    assert (await two.ask(two.ours, "DELETE", f"{TEMPLATES}/unknown")).status_code == 404
    build = await order(two.rig, name="shared")
    assert build.is_global
    async with building(two.rig):
        await wait_status(two.rig, build.id, "done")
    assert (await two.ask(two.theirs, "GET", f"{TEMPLATES}/shared")).json()["is_global"]
    own = await order(two.rig, name="private", is_global=False)
    assert not own.is_global
    assert (await two.rig.http.delete(f"{TEMPLATES}/shared")).status_code == 204
    assert (await two.ask(two.theirs, "GET", f"{TEMPLATES}/shared")).status_code == 404


async def test_builds_of_another_workspace_are_not_there(two: Two) -> None:
    build = await order(two.rig, key=two.ours)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/logs")):
        assert (await two.ask(two.theirs, method, f"{BUILDS}/{build.id}{path}")).status_code == 404
        assert (await two.ask(two.ours, "GET", f"{BUILDS}/{build.id}")).json()["status"] == "queued"
    assert (await two.ask(two.theirs, "GET", BUILDS)).json() == {"items": []}


async def test_a_dockerfile_may_begin_with_the_workspaces_own_templates_and_no_others(two: Two) -> None:
    ours = await two.build(two.ours)
    await two.build(two.theirs, name="other")
    build = await order(two.rig, key=two.ours, name="on-top", dockerfile="FROM tools")
    async with building(two.rig):
        await two.rig.clock.wait_sleepers(1)
    assert two.rig.host.builds.orders[build.id].names == {"tools": ours}


async def test_what_belongs_to_nobody_is_cleared_away_at_start_and_what_is_used_is_not(two: Two) -> None:
    kept = await two.build(two.ours)
    stray = "tpl-0000000000000000"
    two.rig.host.templates[stray] = two.rig.host.templates["base"].model_copy(update={"name": stray})
    with two.rig.plane.templates.using(stray):
        async with building(two.rig):
            await two.rig.clock.wait_sleepers(1)
        assert set(two.private()) == {kept, stray}
    async with building(two.rig):
        await two.rig.clock.wait_sleepers(1)
    assert two.private() == [kept]


async def test_a_template_that_is_replaced_under_a_create_is_worth_another_try(two: Two) -> None:
    host_name = await two.build(two.ours)
    hold = two.rig.host.hold("restore")
    creating = asyncio.create_task(two.ask(two.ours, "POST", "/v1/sandboxes", json={"template": "tools"}))
    await hold.reached.wait()
    await two.ask(two.ours, "DELETE", f"{TEMPLATES}/tools")
    assert host_name in two.rig.host.templates  # it is in use
    del two.rig.host.templates[host_name]
    hold.release()
    answer = await creating
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert "replaced or removed just now" in answer.json()["error"]


def test_only_a_template_that_its_host_has_not_was_replaced_just_now() -> None:
    with pytest.raises(Busy, match="template 'tools' was replaced"), naming("tpl-1", "tools"):
        raise NotFound("there is no template 'tpl-1'")
    with pytest.raises(NotFound, match="the file of the volume"), naming("tpl-1", "tools"):
        raise NotFound("the file of the volume vol-1 is not on this host")
