"""A guest's agent that exists in memory only, and speaks the real protocol over a socket pair, inside the event loop.

Commands and files are those of `torpor.testing.guest`. It can be told to refuse or leave unanswered what freezes and
restores ask of it, and to talk garbage. All that it has in memory can be saved, and become another fake guest's: a call
under way goes on there, where the host goes on without a greeting.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from dataclasses import dataclass, field
from typing import Any

from torpor.kit.clock import Clock, SystemClock
from torpor.testing.fake_guest_call import Request, UnderWay
from torpor.testing.fake_guest_jobs import Job, Jobs
from torpor.testing.fake_guest_line import Line
from torpor.testing.guest import Files, Node

_FORMAT = "fake-guest-4"


@dataclass
class FakeGuest:
    """One guest. `serve` may be called again with another socket, as a real one is connected to anew.

    What it is told to do wrong: `refuse_adopt`, `refuse_quiesce`, `refuse_thaw`, `refuse_mount` are sentences to refuse
    with; `silent_quiesce` and `silent_hooks` leave these unanswered (and stop nothing), `silent` everything. `garbage`:
    bytes to send right after the welcome. `hooks`: how many hooks there are for every event, of which `failing_hooks`
    fail.

    What it has in memory: `frozen` (it was quiesced, and not let go since: calls under way stand still), `identities`
    (the `adopt` requests it took), `env`, `secrets`, `defaults`, `files`, `counters` (of the command `count`),
    `hooks_run` (the events), `mounts` (the `mount` requests it took), `under_way` (calls by number), `jobs`. These run
    while it is served.
    """

    clock: Clock = field(default_factory=SystemClock)
    refuse_adopt: str | None = None
    refuse_quiesce: str | None = None
    refuse_thaw: str | None = None
    refuse_mount: str | None = None
    silent_quiesce: bool = False
    silent_hooks: bool = False
    silent: bool = False
    garbage: bytes = b""
    hooks: int = 0
    failing_hooks: list[str] = field(default_factory=list)

    frozen: bool = field(default=False, init=False)
    greeted: bool = field(default=False, init=False)
    identities: list[Request] = field(default_factory=list, init=False)
    env: dict[str, str] = field(default_factory=dict, init=False)
    secrets: dict[str, str] = field(default_factory=dict, init=False)
    defaults: Request = field(default_factory=dict, init=False)
    counters: dict[str, int] = field(default_factory=dict, init=False)
    hooks_run: list[str] = field(default_factory=list, init=False)
    mounts: list[Request] = field(default_factory=list, init=False)
    under_way: dict[int, UnderWay] = field(default_factory=dict, init=False)
    files: Files = field(init=False)
    jobs: Jobs = field(init=False)
    _thawed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.files = Files(self.clock)
        self.jobs = Jobs(self)

    async def serve(self, sock: socket.socket) -> None:
        """Serve the host at the other end until it closes the line. Closes the socket, whatever happens."""
        with sock:
            sock.setblocking(False)
            line = Line(self, sock)
            self.jobs.begin_all()
            try:
                await line.run()
            finally:
                await line.drop_all()
                await self.jobs.stop_all()

    def freeze(self) -> None:
        """Let all calls under way stand still."""
        self.frozen = True

    def thaw(self) -> None:
        """Let them go on."""
        self.frozen = False
        self._thawed.set()
        self._thawed = asyncio.Event()

    async def wait_thawed(self) -> None:
        """Return when calls may go on."""
        while self.frozen:
            await self._thawed.wait()

    async def take_defaults(self, request: Request) -> Request:
        """Serve `defaults`; only what they say of variables makes a difference here."""
        self.defaults = {name: request[name] for name in ("env", "cwd", "user")}
        return {}

    def save(self) -> bytes:
        """Return all that it has in memory, as text. What is under way is complete in it if it is frozen."""
        state = {
            "format": _FORMAT,
            "frozen": self.frozen,
            "greeted": self.greeted,
            "identities": self.identities,
            "env": self.env,
            "secrets": self.secrets,
            "defaults": self.defaults,
            "counters": self.counters,
            "hooks_run": self.hooks_run,
            "mounts": self.mounts,
            "jobs": {name: job.dump() for name, job in self.jobs.known.items()},
            "under_way": {number: state.dump() for number, state in self.under_way.items()},
            "files": {path: _dump_node(node) for path, node in self.files.nodes.items()},
        }
        return json.dumps(state).encode()

    def load(self, data: bytes) -> None:
        """Become the guest that was saved; what it is told to do wrong stays. Raises ValueError for what is none."""
        state: dict[str, Any] = json.loads(data)
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise ValueError("this is not the memory of a fake guest")
        self.frozen, self.greeted = state["frozen"], state["greeted"]
        self.identities, self.env, self.counters = state["identities"], state["env"], state["counters"]
        self.secrets, self.hooks_run, self.defaults = state["secrets"], state["hooks_run"], state["defaults"]
        self.mounts = state["mounts"]
        self.under_way = {int(number): UnderWay.load(values) for number, values in state["under_way"].items()}
        self.jobs.known = {name: Job.load(values) for name, values in state["jobs"].items()}
        self.files.nodes = {path: _load_node(*values) for path, values in state["files"].items()}


def _dump_node(node: Node) -> tuple[str | None, int, str]:
    return None if node.data is None else base64.b64encode(node.data).decode(), node.mode, node.user


def _load_node(data: str | None, mode: int, user: str) -> Node:
    return Node(None if data is None else base64.b64decode(data), mode, user)
