"""What is measured: one server and template, and everything that is made there meanwhile."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from torpor.bench.floors import Floors
from torpor.bench.machine import Machine
from torpor.bench.processes import machines_running
from torpor.errors import NotFound, Unsupported
from torpor.model.snapshot import Kind
from torpor.sdk import Client, Sandbox, Snapshot
from torpor.storage.layout import Layout
from torpor.wire.public import TemplateView

_LABEL = "torpor-bench"
# Long enough for the longest measure; what a killed run leaves ends with it.
_TTL_S = 900
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Local:
    """A server that runs on this machine, in a data directory that may be looked into.

    `fresh`: it was started for this run, and has done nothing yet. `restart` kills it and returns when the next one is
    ready; None for a server that was there before, and may be others' too.
    """

    layout: Layout
    pid: int
    machine: Machine
    floors: Floors
    fresh: bool
    restart: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A server under measurement. All that is made through it bears a label of this run, and is found by it.

    `local` is None for a server of another machine.
    """

    client: Client
    template: TemplateView
    local: Local | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(4))

    def here(self) -> Local:
        """Return the server's host. Raises Unsupported for one that is elsewhere."""
        if self.local is None:
            raise Unsupported("this can only be measured on the machine of the server", hint="run it there")
        return self.local

    def create(self) -> Sandbox:
        """Make a sandbox."""
        return Sandbox.create(self.template.name, ttl_seconds=_TTL_S, metadata=self._label, client=self.client)

    def restore(self, snapshot: Snapshot) -> Sandbox:
        """Make a sandbox from a snapshot."""
        return Sandbox.restore(snapshot, ttl_seconds=_TTL_S, metadata=self._label, client=self.client)

    def newest(self, sandbox: Sandbox) -> Snapshot:
        """Return the snapshot that a sandbox was last frozen into. Raises NotFound if there is none."""
        if sandbox.info.last_snapshot_id is None:
            raise NotFound(f"{sandbox.id} has no snapshot")
        return Snapshot.get(sandbox.info.last_snapshot_id, client=self.client)

    @contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        """Make a sandbox, and discard it after the block."""
        made = self.create()
        try:
            yield made
        finally:
            self.discard([made])

    def pids(self, sandbox: Sandbox) -> dict[str, int]:
        """Return the processes here that a sandbox's bytes go through: the client; server and VMM if they are here."""
        pids = {"client": os.getpid()}
        if self.local is not None:
            pids["server"] = self.local.pid
            for pid in machines_running(self.local.layout, sandbox.id):
                pids["vmm"] = pid
        return pids

    def discard(self, sandboxes: Iterable[Sandbox]) -> None:
        """Delete sandboxes with all their snapshots, some at a time. Deleted ones are fine."""
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
            list(threads.map(self._discard_one, sandboxes))

    def _discard_one(self, sandbox: Sandbox) -> None:
        _forget_checkpoints(sandbox)
        sandbox.delete()
        _forget_checkpoints(sandbox)  # one that was being taken, when the run was interrupted

    def discard_all(self) -> None:
        """Delete whatever this run has made and not deleted yet, also what it has never heard of."""
        self.discard(list(Sandbox.iterate(self._label, client=self.client)))

    @property
    def _label(self) -> dict[str, str]:
        return {_LABEL: self.run}


def _forget_checkpoints(sandbox: Sandbox) -> None:
    """Delete what outlives a sandbox; other snapshots go with it."""
    for snapshot in sandbox.snapshots():
        if snapshot.kind == Kind.CHECKPOINT:
            snapshot.delete()
