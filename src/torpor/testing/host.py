"""A host agent that exists in memory only, for whoever needs the other end of `torpor.wire.host`.

It can be told to misbehave: refuse (`fail`), do the work and lose the answer (`lose_answer`), wait (`hold`), not be
there (`down`), lose a machine (`die`), forget one (`vanish`), spoil a snapshot (`spoil`), be killed and started again
(`crash`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict, deque
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from torpor import errors
from torpor.kit.clock import Clock, SystemClock
from torpor.testing.guest import Files
from torpor.testing.host_answers import Hold, Line, Lost, json_answer
from torpor.testing.host_builds import FakeBuilds
from torpor.testing.host_commands import JobAnswers
from torpor.testing.host_files import Act, FileAnswers
from torpor.testing.host_logs import LogAnswers
from torpor.testing.host_machines import FakeMachine, FakeSnapshot, baked, copied, listed
from torpor.testing.host_ports import PortAnswers
from torpor.testing.host_room import HostRoom
from torpor.testing.host_volumes import FakeVolumes
from torpor.wire import host, public
from torpor.wire.errors import status_of, to_body


class _Sized(Protocol):
    cpu: int
    memory_mb: int
    disk_gb: int


class FakeHost:
    """An ASGI application with the host's interface. Verbs, for `fail`, `lose_answer`, `hold` and `calls`:

    capabilities, restore, list, close, network, set_network, deadline, pause, resume, hibernate, wake, snapshot,
    rollback, exec, start, jobs, job, attach, feed, signal, ports, dial, read, write, remove, stat, dir, mkdir, rename,
    walk, logs, snapshots, remove_snapshot, verify_snapshot, templates, remove_template, reserve, capacity, build,
    build_file, remove_build, make_volume, volumes, remove_volume.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.machines: dict[str, FakeMachine] = {}
        self.room = HostRoom(self.machines)
        self.snapshots: dict[str, FakeSnapshot] = {}
        self.templates = {name: baked(name) for name in ("base", "agent")}
        self.builds = FakeBuilds(self.templates, self.snapshots)
        self.volumes = FakeVolumes()
        self.down = False
        self.can = host.Capabilities(network_trouble="it is not there at all")
        self.denied: dict[str, list[host.Denied]] = {}
        self.consoles: dict[str, bytes] = {}  # by id, of those that have not the usual one
        self.servers: dict[int, int] = {}  # of each guest: the port on this machine's loopback for a port in it
        self.reads_first = False  # whether a refused request's body is read before it is refused
        self.calls: Counter[str] = Counter()
        self._failures: dict[str, deque[errors.TorporError]] = defaultdict(deque)
        self._lost: Counter[str] = Counter()
        self._holds: dict[str, deque[Hold]] = defaultdict(deque)
        self._pids = itertools.count(1000)
        self._moments = itertools.count()
        self._cut = asyncio.Event()
        self._app = Starlette(routes=list(self._routes()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def transport(self) -> httpx2.AsyncBaseTransport:
        """Return a transport whose requests come here, or fail to connect while `down`."""
        return Line(self, lambda: self.down)

    def fail(self, verb: str, error: errors.TorporError, times: int = 1) -> None:
        """Answer the next `times` requests of a verb with an error and do nothing."""
        self._failures[verb].extend([error] * times)

    def lose_answer(self, verb: str, times: int = 1) -> None:
        """Do what the next `times` requests of a verb ask, and break off instead of answering."""
        self._lost[verb] += times

    def calm(self, verb: str) -> None:
        """Forget what a verb was told to refuse or to lose, and has not yet."""
        self._failures[verb].clear()
        self._lost[verb] = 0

    def hold(self, verb: str) -> Hold:
        """Make the next request of a verb wait, before anything is done."""
        hold = Hold()
        self._holds[verb].append(hold)
        return hold

    def die(self, sandbox_id: str, reason: str = "the machine process ended") -> None:
        """Let a machine die: its commands end with an error, and it is listed as not alive."""
        machine = self.machines[sandbox_id]
        machine.facts = machine.facts.model_copy(update={"alive": False, "reason": reason})
        machine.died.set()

    def vanish(self, sandbox_id: str) -> None:
        """Forget a machine altogether, as a host does that was set up anew."""
        self.machines.pop(sandbox_id).died.set()

    def crash(self) -> None:
        """Be killed and start again: what is answered breaks off, machines and their jobs live on, and are adopted."""
        self._cut.set()
        self._cut = asyncio.Event()
        for machine in self.machines.values():
            machine.facts = machine.facts.model_copy(update={"adopted": machine.sleeps_in is None})

    def cut(self) -> asyncio.Event:
        """Return the event that will be set when the host agent that runs now is killed."""
        return self._cut

    def use(self, sandbox_id: str, usage: host.Usage) -> None:
        """Let a machine have used so much."""
        machine = self.machines[sandbox_id]
        machine.facts = machine.facts.model_copy(update={"usage": usage})

    async def end_jobs(self) -> None:
        """End every job that still runs."""
        for machine in self.machines.values():
            for job in machine.jobs.values():
                await job.aclose()

    def spoil(self, snapshot_id: str) -> None:
        """Let a snapshot's bytes be others than were written: it is refused wherever it is opened."""
        self.snapshots[snapshot_id] = replace(self.snapshots[snapshot_id], corrupt=True)

    def begin(self, sandbox_id: str, template: str = "base") -> FakeMachine:
        """Bring a machine to life without having been asked, and return it."""
        return self._live(sandbox_id, self.templates[template], template, Files(self.clock))

    def _live(self, sandbox_id: str, size: _Sized, template: str, files: Files) -> FakeMachine:
        self.room.demand(sandbox_id, size)
        facts = host.Incarnation(
            id=sandbox_id,
            template=template,
            cpu=size.cpu,
            memory_mb=size.memory_mb,
            disk_gb=size.disk_gb,
            boot_ms=90,
            pid=next(self._pids),
        )
        self.machines[sandbox_id] = FakeMachine(facts, files, {})
        return self.machines[sandbox_id]

    def revive(self, sandbox_id: str, snapshot: FakeSnapshot) -> FakeMachine:
        """Bring a machine to life from a snapshot."""
        if snapshot.corrupt:
            raise errors.SnapshotCorrupt(f"snapshot {snapshot.frozen.id} is not what was written: memory differs")
        frozen = snapshot.frozen
        machine = self._live(sandbox_id, frozen, frozen.template, copied(snapshot.files))
        machine.facts = machine.facts.model_copy(update={"base": frozen.id})
        machine.env, machine.secrets = dict(snapshot.env), dict(snapshot.secrets)
        return machine

    def freeze(self, sandbox_id: str, order: host.Freeze) -> host.Frozen:
        """Make a snapshot of a machine and return what it says of itself."""
        machine = self.machines[sandbox_id]
        if order.id in self.snapshots:
            raise errors.Conflict(f"there is a snapshot {order.id} already")
        frozen = host.Frozen(
            id=order.id,
            kind=order.kind,
            sandbox=sandbox_id,
            # One after the other, also on a clock that stands still.
            created_at=self.clock.now() + timedelta(microseconds=next(self._moments)),
            template=machine.facts.template,
            cpu=machine.facts.cpu,
            memory_mb=machine.facts.memory_mb,
            disk_gb=machine.facts.disk_gb,
            accelerator="tcg",
            parent=machine.facts.base,
            name=order.name,
            size_bytes=4096,
            pause_ms=20.5,
            took_ms=50.25,
            dirty_bytes=8192,
            written_bytes=4096,
        )
        self.snapshots[order.id] = FakeSnapshot(frozen, copied(machine.files), dict(machine.env), dict(machine.secrets))
        machine.facts = machine.facts.model_copy(update={"base": order.id})
        return frozen.model_copy(update={"usage": machine.facts.usage})

    def _routes(self) -> list[Route]:
        top, one = "/host/v1/incarnations", "/host/v1/incarnations/{id}"
        table: list[tuple[str, str, str, Act]] = [
            ("GET", "/host/v1/capabilities", "capabilities", self._capabilities),
            ("GET", f"{one}/network", "network", self._network),
            ("PUT", f"{one}/network", "set_network", self._set_network),
            ("POST", top, "restore", self._restore),
            ("GET", top, "list", self._list),
            ("DELETE", one, "close", self._close),
            *(("POST", f"{one}/{verb}", verb, act) for verb, act in self._passages().items()),
            ("POST", f"{one}/snapshots", "snapshot", self._snapshot),
            *self.room.routes(),
            *self.builds.routes(),
            *self.volumes.routes(),
            *FileAnswers(self._machine).routes(one),
            *JobAnswers(self._machine, self.clock, self.cut).routes(one),
            *PortAnswers(self._machine, self.servers).routes(one),
            *LogAnswers(self._known, self.consoles).routes(one),
            ("PUT", f"{one}/deadline", "deadline", self._deadline),
            ("GET", "/host/v1/snapshots", "snapshots", self._snapshots),
            ("DELETE", "/host/v1/snapshots/{id}", "remove_snapshot", self._remove_snapshot),
            ("POST", "/host/v1/snapshots/{id}/verify", "verify_snapshot", self._verify_snapshot),
            ("GET", "/host/v1/templates", "templates", self._templates),
            ("DELETE", "/host/v1/templates/{name}", "remove_template", self._remove_template),
        ]
        return [Route(path, self._guarded(verb, act), methods=[method]) for method, path, verb, act in table]

    def _passages(self) -> dict[str, Act]:
        return {
            "pause": self._pause,
            "resume": self._resume,
            "hibernate": self._hibernate,
            "wake": self._wake,
            "rollback": self._rollback,
        }

    def _guarded(self, verb: str, act: Act) -> Act:
        async def endpoint(request: Request) -> Response:
            self.calls[verb] += 1
            if self._holds[verb]:
                hold = self._holds[verb].popleft()
                hold.reached.set()
                await hold.go.wait()
            try:
                if self._failures[verb]:
                    if self.reads_first:
                        await request.body()
                    raise self._failures[verb].popleft()
                answer = await act(request)
            except errors.TorporError as error:
                return json_answer(to_body(error), status_of(error))
            if self._lost[verb]:
                self._lost[verb] -= 1
                return Lost()
            return answer

        return endpoint

    def _machine(self, request: Request) -> FakeMachine:
        return self._known(request).checked("running")

    def _known(self, request: Request) -> FakeMachine:
        machine = self.machines.get(request.path_params["id"])
        if machine is None:
            raise errors.NotFound(f"sandbox {request.path_params['id']} is not alive here")
        return machine

    def _kept(self, snapshot_id: str) -> FakeSnapshot:
        snapshot = self.snapshots.get(snapshot_id)
        if snapshot is None:
            raise errors.NotFound(f"there is no snapshot {snapshot_id}")
        return snapshot

    async def _restore(self, request: Request) -> Response:
        order = host.Restore.model_validate_json(await request.body())
        if order.id in self.machines:
            raise errors.Conflict(f"{order.id} is alive already")
        self.volumes.check(order.volumes)
        machine = self._from(order)
        machine.take(order)
        machine.env |= order.env
        machine.deadline = order.deadline
        return json_answer(machine.facts, 201)

    def _from(self, order: host.Restore) -> FakeMachine:
        if order.snapshot is not None:
            return self.revive(order.id, self._kept(order.snapshot))
        if order.sleeper is not None:
            if order.sleeper not in self.machines:
                raise errors.NotFound(f"sandbox {order.sleeper} does not sleep here")
            parent = self.machines[order.sleeper].checked("asleep")
            machine = self._live(order.id, parent.facts, parent.facts.template, copied(parent.files))
            machine.facts = machine.facts.model_copy(update={"base": parent.facts.base})
            machine.env, machine.secrets = dict(parent.env), dict(parent.secrets)
            return machine
        if order.template not in self.templates:
            raise errors.NotFound(f"there is no template {order.template}")
        return self.begin(order.id, order.template)

    async def _capabilities(self, request: Request) -> Response:
        return json_answer(self.can)

    async def _network(self, request: Request) -> Response:
        machine = self._known(request).checked("running", "paused", "asleep")
        facts = machine.facts
        policy = facts.network or host.Network(mode="none")
        denied = [] if facts.status == "asleep" else self.denied.get(facts.id, [])
        return json_answer(host.NetworkState(policy=policy, guest_ip=facts.guest_ip, denied=denied))

    async def _set_network(self, request: Request) -> Response:
        machine = self._known(request).checked("running", "paused", "asleep")
        machine.reach(host.Network.model_validate_json(await request.body()))
        return Response(status_code=204)

    async def _list(self, request: Request) -> Response:
        items = [machine.facts for machine in self.machines.values()]
        return json_answer(host.IncarnationList(items=items))

    async def _close(self, request: Request) -> Response:
        machine = self.machines.pop(request.path_params["id"], None)
        self.room.reserved.pop(request.path_params["id"], None)
        if machine is not None:
            machine.died.set()
        return json_answer(host.Closed(usage=None if machine is None else machine.facts.usage))

    async def _deadline(self, request: Request) -> Response:
        self._known(request).deadline = host.Deadline.model_validate_json(await request.body()).deadline
        return Response(status_code=204)

    async def _pause(self, request: Request) -> Response:
        self._known(request).checked("running", "paused").become("paused")
        return Response(status_code=204)

    async def _resume(self, request: Request) -> Response:
        self._known(request).checked("running", "paused").become("running")
        return Response(status_code=204)

    async def _hibernate(self, request: Request) -> Response:
        machine = self._known(request).checked("running", "paused", "asleep")
        if machine.sleeps_in is None:
            order = host.Freeze.model_validate_json(await request.body())
            machine.sleeps_in = self.freeze(machine.facts.id, order)
            machine.facts = machine.facts.model_copy(update={"pid": None})
            machine.become("asleep")
        return json_answer(machine.sleeps_in)

    async def _wake(self, request: Request) -> Response:
        machine = self._known(request).checked("running", "asleep")
        if machine.sleeps_in is not None:
            machine.reach(host.Wake.model_validate_json(await request.body()).network)
            self.room.demand(machine.facts.id, machine.facts)
            machine.sleeps_in = None
            machine.facts = machine.facts.model_copy(update={"pid": next(self._pids)})
            machine.become("running")
        return json_answer(machine.facts)

    async def _snapshot(self, request: Request) -> Response:
        machine = self._known(request).checked("running", "paused")
        order = host.Freeze.model_validate_json(await request.body())
        return json_answer(self.freeze(machine.facts.id, order), 201)

    async def _rollback(self, request: Request) -> Response:
        order = host.Rollback.model_validate_json(await request.body())
        snapshot, sandbox_id = self._kept(order.snapshot), request.path_params["id"]
        before = self.machines.get(sandbox_id)
        machine = self.revive(sandbox_id, snapshot)
        machine.take(order)
        if before is not None:
            before.died.set()
        return json_answer(machine.facts)

    async def _snapshots(self, request: Request) -> Response:
        return json_answer(listed(self.snapshots))

    async def _remove_snapshot(self, request: Request) -> Response:
        del self.snapshots[self._kept(request.path_params["id"]).frozen.id]
        return Response(status_code=204)

    async def _verify_snapshot(self, request: Request) -> Response:
        snapshot = self._kept(request.path_params["id"])
        if snapshot.corrupt:
            raise errors.SnapshotCorrupt(f"snapshot {snapshot.frozen.id} is not what was written: memory differs")
        return json_answer(public.Verified(id=snapshot.frozen.id, checked_bytes=123, took_ms=4.5))

    async def _templates(self, request: Request) -> Response:
        return json_answer(public.TemplateList(items=list(self.templates.values())))

    async def _remove_template(self, request: Request) -> Response:
        if self.templates.pop(request.path_params["name"], None) is None:
            raise errors.NotFound(f"there is no template {request.path_params['name']}")
        return Response(status_code=204)
