"""The templates, snapshots and machines of the fake host, and the commands on these."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from torpor import errors
from torpor.kit.clock import Clock
from torpor.kit.shielded import end_tasks
from torpor.testing.guest import Call, Files, Killed, Shell
from torpor.testing.host_jobs import FakeJob
from torpor.wire import frames, host, public
from torpor.wire.errors import ErrorBody, to_body

GUEST_IP = "198.51.100.2"


@dataclass
class FakeMachine:
    """One sandbox of the fake host.

    `died`: its machine is dead; `killed`: the commands that were cut off; `goes`: unset while it stands still or
    sleeps, which holds its commands back; `sleeps_in`: the snapshot it is hibernated in; `counters`: of the command
    `count`; `deadline`: when it ends at the latest; `secrets`: what it holds of these.
    """

    facts: host.Incarnation
    files: Files
    env: dict[str, str]
    sleeps_in: host.Frozen | None = None
    died: asyncio.Event = field(default_factory=asyncio.Event)
    goes: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    killed: asyncio.Queue[list[str]] = field(default_factory=asyncio.Queue)
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    deadline: float | None = None
    secrets: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.goes.set()

    def take(self, order: host.Restore | host.Rollback) -> None:
        """Come to life as ordered: with other secrets if there are some, and with what it may reach."""
        if order.secrets is not None:
            self.secrets = dict(order.secrets)
        self.reach(order.network)

    def reach(self, network: host.Network | None) -> None:
        """May reach this from now on, and has an address if that is anything at all."""
        address = None if network is None or network.mode == "none" else GUEST_IP
        self.facts = self.facts.model_copy(update={"network": network, "guest_ip": address})

    def become(self, status: Literal["running", "paused", "asleep"]) -> None:
        """Run, stand still or sleep."""
        self.facts = self.facts.model_copy(update={"status": status})
        if status == "running":
            self.goes.set()
        else:
            self.goes.clear()

    def checked(self, *allowed: str) -> FakeMachine:
        """Return the machine if it is in one of these conditions. Raises SandboxLost if it is dead, Busy otherwise."""
        if not self.facts.alive:
            raise errors.SandboxLost(self.facts.reason or "the machine died")
        if self.facts.status not in allowed:
            raise errors.Busy(f"{self.facts.id} is {self.facts.status}")
        return self


@dataclass(frozen=True)
class FakeSnapshot:
    """One snapshot of the fake host: what it says of itself, and what it holds. `unreadable`: its manifest is."""

    frozen: host.Frozen
    files: Files
    env: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict)
    corrupt: bool = False
    unreadable: bool = False


def listed(snapshots: dict[str, FakeSnapshot]) -> host.FrozenList:
    """Return what the host tells of its snapshots."""
    items = [snapshot.frozen for snapshot in snapshots.values() if not snapshot.unreadable]
    return host.FrozenList(items=items, unreadable=[name for name, each in snapshots.items() if each.unreadable])


def copied(files: Files) -> Files:
    """Return the same files once more, for a machine or a snapshot of its own."""
    return Files(files.clock, {name: replace(node) for name, node in files.nodes.items()})


def baked(name: str) -> public.TemplateView:
    """Return a template as the fake host lists it."""
    return public.TemplateView(
        name=name,
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        fingerprint="f" * 64,
        cpu=1,
        memory_mb=512,
        disk_gb=8,
        accelerator="tcg",
        size_bytes=100_000_000,
        cold_boot_ms=4500,
    )


class Execution:
    """One command without an id under way on a fake machine, whose host is killed when `cut` is set."""

    def __init__(self, machine: FakeMachine, order: host.ExecOrder, clock: Clock, cut: asyncio.Event) -> None:
        self._machine, self._order, self._clock, self._cut = machine, order, clock, cut
        self._queue: asyncio.Queue[frames.Frame | None] = asyncio.Queue(maxsize=4)
        self._killed = False

    async def output(self) -> AsyncIterator[bytes]:
        """Yield the command's frames; closing the iterator kills the command."""
        task = asyncio.create_task(self._run())
        self._machine.started.set()
        ended = False
        try:
            while (frame := await self._queue.get()) is not None:
                yield frames.encode(frame)
            ended = True
            if self._cut.is_set():
                raise ConnectionResetError("the host agent was killed")
        finally:
            if not ended:
                self._machine.killed.put_nowait(self._order.argv)
            await end_tasks(task)

    async def _run(self) -> None:
        begin = self._clock.monotonic()
        command = asyncio.create_task(self._command())
        timer = asyncio.create_task(self._clock.sleep(self._order.timeout_s or 10**9))
        death = asyncio.create_task(self._machine.died.wait())
        cut = asyncio.create_task(self._cut.wait())
        held: list[asyncio.Task[Any]] = [command, timer, death, cut]
        try:
            await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
            # What ended while the machine stood still is told when it goes on.
            going = asyncio.create_task(self._machine.goes.wait())
            held.append(going)
            await asyncio.wait([going, death, cut], return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                lost = errors.SandboxLost(self._machine.facts.reason or "the machine was closed")
                body: ErrorBody = to_body(lost)
                await self._queue.put(frames.Frame(frames.Kind.ERROR, body.model_dump_json().encode()))
            elif not cut.done():
                outcome = self._outcome(command, round((self._clock.monotonic() - begin) * 1000))
                await self._queue.put(frames.Frame(frames.Kind.EXIT, outcome.model_dump_json().encode()))
            await self._queue.put(None)
        finally:
            await end_tasks(*held)

    def _outcome(self, command: asyncio.Task[int], duration_ms: int) -> host.ExecOutcome:
        if not command.done():
            return host.ExecOutcome(exit_code=137, signal="SIGKILL", timed_out=True, duration_ms=duration_ms)
        try:
            return host.ExecOutcome(exit_code=command.result(), duration_ms=duration_ms)
        except Killed:
            return host.ExecOutcome(exit_code=137, signal="SIGKILL", duration_ms=duration_ms)

    async def _command(self) -> int:
        order = self._order
        call = Call(
            words=order.argv,
            stdin=base64.b64decode(order.stdin or ""),
            env=self._machine.env | self._machine.secrets | order.env,
            cwd=order.cwd or "/root",
            user=order.user or "root",
            out=partial(self._write, frames.Kind.STDOUT),
            err=partial(self._write, frames.Kind.STDERR),
        )
        return await Shell(self._machine.files, self._clock, self._machine.counters).run(call)

    async def _write(self, kind: frames.Kind, data: bytes) -> None:
        for start in range(0, len(data), frames.MAX_PAYLOAD):
            await self._machine.goes.wait()
            await self._queue.put(frames.Frame(kind, data[start : start + frames.MAX_PAYLOAD]))
