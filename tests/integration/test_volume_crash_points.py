"""The server is killed at each step of what is done with volumes: nothing is lost, and nothing is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chaos_world import Answer
from fake_world import FakeWorld
from torpor.host.volume_notes import volume_file
from torpor.kit.faultpoints import VOLUME_POINTS
from torpor.model.ids import VolumeId

NOTHING: dict[str, Any] = {"params": {}, "content": None, "json": None, "key": None}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    world = FakeWorld(tmp_path)
    with world.started():
        yield world


class Scene:
    """A volume, and what is asked of the server about it."""

    def __init__(self, world: FakeWorld, key: str) -> None:
        self.world, self.key = world, key
        self.ask("POST", "/volumes", 201, json={"name": "data", "size_mb": 16})

    def ask(self, method: str, path: str, expected: int | None = None, **more: Any) -> Answer:
        answer = self.world.request(method, path, **NOTHING | more)
        assert expected is None or answer.status == expected, (method, path, answer)
        return answer

    def make(self) -> Answer:
        return self.ask("POST", "/volumes", json={"name": "more", "size_mb": 16})

    def remove(self) -> Answer:
        return self.ask("DELETE", "/volumes/data")

    def create(self) -> Answer:
        return self.ask("POST", "/sandboxes", json={"volumes": [{"name": "data"}], "name": "one"}, key=self.key)

    def wake(self) -> Answer:
        return self.ask("POST", f"/sandboxes/{self.sandbox()}/wake", json={})

    def roll_back(self) -> Answer:
        body = {"snapshot": self.ask("GET", "/snapshots", 200).body["items"][0]["id"]}
        return self.ask("POST", f"/sandboxes/{self.sandbox()}/rollback", json=body)

    def delete(self) -> Answer:
        return self.ask("DELETE", f"/sandboxes/{self.sandbox()}")

    def sandbox(self) -> str:
        """Return the sandbox that there is, or nobody's id."""
        there = self.ask("GET", "/sandboxes", 200).body["items"]
        return str(there[0]["id"]) if there else "sbx-0000000000000000"

    def prepare(self, *steps: str) -> None:
        """Have a sandbox with the volume, that has done these."""
        if steps:
            assert self.create().status == 201
        for step in steps[1:]:
            assert self.ask("POST", f"/sandboxes/{self.sandbox()}/{step}", json={}).status < 300

    def check(self) -> None:
        """See that what is recorded is there, and nothing else, and that who writes has the very file."""
        listed = self.ask("GET", "/volumes", 200).body["items"]
        volumes = self.world.server.rig.host.volumes
        assert all(each["problem"] is None for each in listed)
        assert {each.id for each in volumes.all()} == {each["id"] for each in listed}
        for incarnation in self.world.server.rig.host.live.all():
            assert volume_file(incarnation.place.folder, 0).samefile(volumes.path(VolumeId(listed[0]["id"])))

    def clean_up(self) -> None:
        self.ask("DELETE", f"/sandboxes/{self.sandbox()}")
        for each in self.ask("GET", "/snapshots", 200).body["items"]:
            self.ask("DELETE", f"/snapshots/{each['id']}", 204)
        for each in self.ask("GET", "/volumes", 200).body["items"]:
            self.ask("DELETE", f"/volumes/{each['name']}", 204)
        layout = self.world.server.rig.layout
        for folder in (layout.sandboxes, layout.snapshots, layout.named_volumes):
            assert list(folder.iterdir()) == []


CASES: list[tuple[Callable[[Scene], Answer], tuple[str, ...], int, list[str]]] = [
    (Scene.make, (), 201, ["volume.recorded", "volume.made"]),
    (Scene.remove, (), 204, ["volume.marked", "volume.removed"]),
    (Scene.create, (), 201, ["passage.begun", "volume.linked", "restore.adopted", "passage.answered"]),
    (Scene.wake, ("create", "hibernate"), 200, ["restore.adopted", "volume.placed", "wake.settled"]),
    (Scene.roll_back, ("create", "snapshots"), 200, ["rollback.aside", "volume.placed", "rollback.replaced"]),
    (Scene.delete, ("create",), 204, ["delete.ended", "passage.answered"]),
]


@pytest.mark.parametrize(("verb", "steps", "status", "points"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_verb_cut_off_at_any_step_leaves_volumes_whole_and_can_be_asked_for_again(
    world: FakeWorld, verb: Callable[[Scene], Answer], steps: tuple[str, ...], status: int, points: list[str]
) -> None:
    for point in points:
        scene = Scene(world, point)
        scene.prepare(*steps)
        hit = world.crash_at(point)
        with ThreadPoolExecutor(1) as other:
            cut = other.submit(verb, scene)
            assert hit.wait(30), f"it did not come to {point}"
            world.kill_now()
            assert cut.result(30).lost
        answer = verb(scene)
        # What is gone is gone, and what is there is there, if the first time had come so far.
        assert answer.status in (status, 404 if status == 204 else status), (point, answer)
        scene.check()
        scene.clean_up()


def test_every_point_there_is_belongs_to_some_verb() -> None:
    assert {point for case in CASES for point in case[3]} >= set(VOLUME_POINTS)
