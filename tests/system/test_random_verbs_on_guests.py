"""A few random verbs on real guests, against a model of what they mean. The long run of it is on a fake VMM."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from torpor import Client, Sandbox, Snapshot

NOTE = "/work/note"


class OnGuests(RuleBasedStateMachine):
    """One sandbox at a time: a fork or a restore takes the place of the one it came from."""

    client: ClassVar[Client]
    sandbox: Sandbox
    note = ""
    state = "running"

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Snapshot, str]] = []
        self.all: list[Sandbox] = []
        self.count = 0

    @initialize()
    def create(self) -> None:
        self.sandbox = Sandbox.create(client=self.client, ttl_seconds=1200)
        self.all.append(self.sandbox)
        self.write()

    @rule()
    @precondition(lambda self: self.state != "paused")
    def write(self) -> None:
        self.count += 1
        self.note = f"note {self.count}"
        self.sandbox.exec(["sh", "-c", f"echo -n '{self.note}' > {NOTE}; echo $$ > /dev/shm/memory"], check=True)
        self.state = "running"

    @rule()
    def hibernate(self) -> None:
        self.sandbox.hibernate()
        self.state = "hibernated"

    @rule()
    @precondition(lambda self: self.state != "paused")
    def wake(self) -> None:
        self.sandbox.wake()
        self.state = "running"

    @rule()
    @precondition(lambda self: self.state == "running")
    def pause(self) -> None:
        self.sandbox.pause()
        self.state = "paused"

    @rule()
    @precondition(lambda self: self.state == "paused")
    def resume(self) -> None:
        self.sandbox.resume()
        self.state = "running"

    @rule()
    @precondition(lambda self: self.state != "hibernated")
    def snapshot(self) -> None:
        self.kept.append((self.sandbox.snapshot(), self.note))

    @rule(data=st.data())
    @precondition(lambda self: self.kept)
    def roll_back_or_restore(self, data: st.DataObject) -> None:
        snapshot, note = data.draw(st.sampled_from(self.kept))
        if snapshot.sandbox_id == self.sandbox.id:
            self.sandbox.rollback(snapshot)
        else:
            self._follow(Sandbox.restore(snapshot, client=self.client, ttl_seconds=1200))
        self.note, self.state = note, "running"

    @rule()
    def fork(self) -> None:
        self._follow(self.sandbox.fork())
        self.state = "running"

    def _follow(self, other: Sandbox) -> None:
        self.sandbox.delete()
        self.sandbox = other
        self.all.append(other)

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        if not self.all:
            return
        assert self.sandbox.refresh().state == self.state
        if self.state == "running":
            assert self.sandbox.filesystem.read_text(NOTE) == self.note

    def teardown(self) -> None:
        for sandbox in self.all:
            sandbox.delete()
        for snapshot, _ in self.kept:
            snapshot.delete()


def test_random_verbs_on_real_guests_mean_what_the_model_says(client: Client) -> None:
    few = settings(
        max_examples=3, stateful_step_count=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    OnGuests.client = client
    run_state_machine_as_test(OnGuests, settings=few)
    assert Sandbox.list(client=client, state="paused") == []
