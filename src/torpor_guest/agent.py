"""The agent put together: which request goes where."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from torpor_guest import VERSION
from torpor_guest.accounts import Accounts
from torpor_guest.cgroups import CgroupTree
from torpor_guest.connection import Connection, Stream
from torpor_guest.defaults import Setting
from torpor_guest.execs import Execs
from torpor_guest.files import Files
from torpor_guest.hooks import Hooks
from torpor_guest.identity import Adoption, Machine
from torpor_guest.jobs import Jobs
from torpor_guest.loop import Loop
from torpor_guest.ports import Ports
from torpor_guest.quiesce import Quiescence, User
from torpor_guest.reaper import Reaper
from torpor_guest.refusal import invalid
from torpor_guest.requests import Request
from torpor_guest.volumes import Volumes


class Place(NamedTuple):
    """Where an agent serves: the descriptor to the host, whether it outlives its hosts, and what it works on."""

    fd: int
    lasting: bool
    machine: Machine
    tree: CgroupTree | None
    hooks: str


class _Users(NamedTuple):
    """Everything of the user's, as an adoption sees it."""

    mark: Callable[[dict[bytes, bytes], dict[bytes, bytes] | None], None]
    count_hooks: Callable[[str], int]
    thaw: Callable[[], None]


class Agent:
    """Serves the host on one descriptor until `run` returns."""

    def __init__(self, place: Place) -> None:
        self._loop = Loop()
        self._tree = place.tree
        accounts = Accounts()
        execs = Execs(self._loop, Reaper(self._loop), accounts, place.tree)
        hooks = Hooks(execs, place.hooks)
        volumes = Volumes(self._loop)
        user = User(place.tree, hooks, volumes.sync)
        quiescence = Quiescence(self._loop, user, place.machine.set_clock)
        adoption = Adoption(place.machine, _Users(execs.mark, hooks.count, quiescence.thaw))
        self._operations: dict[str, Callable[[Stream, Request], None]] = {
            "ping": _ping,
            "adopt": adoption.adopt,
            "quiesce": quiescence.quiesce,
            "unquiesce": quiescence.unquiesce,
            "hooks": hooks.serve,
            "defaults": Setting(accounts, execs.set_defaults).serve,
            **Jobs(execs).operations(),
            **Files(self._loop, accounts).operations(),
            **Ports(self._loop).operations(),
            **volumes.operations(),
        }
        connection = Connection(self._loop, place.fd, lasting=place.lasting, features=features(place.tree))
        connection.serve = self._serve

    def _serve(self, stream: Stream, fields: dict[str, Any]) -> None:
        request = Request(fields)
        name = request.text("op")
        operation = self._operations.get(name)
        if operation is None:
            raise invalid(f"this agent knows no operation {name[:64]!r}")
        operation(stream, request)

    def run(self) -> None:
        """Serve until the host is gone for good. Then everything that was started is killed."""
        self._loop.run()
        if self._tree is not None:
            self._tree.close()


def _ping(stream: Stream, request: Request) -> None:
    """`ping` {}: RESULT {}."""
    del request
    stream.result({})


def features(tree: CgroupTree | None) -> dict[str, Any]:
    """Return what WELCOME tells: the agent's version, how commands are held together, the kernel's boot id."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    return {
        "agent": VERSION,
        "containment": "sessions" if tree is None else "cgroups",
        "boot_id": boot_id,
        "pid": os.getpid(),
    }
