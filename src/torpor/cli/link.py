"""The command line's connection to the server, and how what a person calls a sandbox or a snapshot is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torpor.errors import Conflict, NotFound, TorporError
from torpor.model.ids import is_sandbox_id, is_snapshot_id
from torpor.sdk import Client, Retry, Sandbox, Snapshot

# A person who waits for an answer would rather be told than wait.
_RETRY = Retry(attempts=3, first_delay_s=0.1, patience_s=5.0)


@contextmanager
def connection(request_timeout: float | None = None) -> Iterator[Client]:
    """Give a client of the configured server."""
    with Client(request_timeout=request_timeout, retry=_RETRY) as client:
        yield client


def find(client: Client, text: str) -> Sandbox:
    """Return the sandbox with this id or name. Raises NotFound, and Conflict for a name that several bear."""
    if is_sandbox_id(text) or is_snapshot_id(text):  # of a snapshot it is said that it is one
        return Sandbox.connect(text, client=client)
    found = [sandbox for sandbox in Sandbox.iterate(client=client) if sandbox.name == text]
    if not found:
        raise NotFound(f"there is no sandbox with the id or name {text!r}", hint="`torpor list` shows them")
    if len(found) > 1:
        raise Conflict(f"{len(found)} sandboxes are named {text!r}", hint="use the id that `torpor list` shows")
    return found[0]


def find_snapshot(client: Client, text: str, sandbox: Sandbox | None = None) -> Snapshot:
    """Return the snapshot with this id, or this name: one of `sandbox`, or of all there are.

    Raises NotFound, and Conflict for a name that several bear.
    """
    if is_sandbox_id(text) or is_snapshot_id(text):
        return Snapshot.get(text, client=client)
    found = [snapshot for snapshot in Snapshot.iterate(sandbox, client=client) if snapshot.name == text]
    if not found:
        raise NotFound(f"there is no snapshot with the id or name {text!r}", hint="`torpor snapshots` shows them")
    if len(found) > 1:
        raise Conflict(f"{len(found)} snapshots are named {text!r}", hint="use the id that `torpor snapshots` shows")
    return found[0]


def ids_beginning_with(start: str) -> list[tuple[str, str]]:
    """Return ids and names to complete with, each with a word about it; none if the server cannot be asked."""
    try:
        with Client(request_timeout=2, retry=Retry(attempts=1)) as client:
            sandboxes = Sandbox.list(client=client)
    except TorporError:
        # A completion has nowhere to print an error.
        return []
    named = [(box.name or box.id, f"{box.template}, {box.state}") for box in sandboxes]
    return [pair for pair in named if pair[0].startswith(start)]


def snapshots_beginning_with(start: str) -> list[tuple[str, str]]:
    """Return ids of snapshots to complete with, each with a word about it; none if the server cannot be asked."""
    try:
        with Client(request_timeout=2, retry=Retry(attempts=1)) as client:
            snapshots = Snapshot.list(client=client)
    except TorporError:
        return []
    told = [(one.id, f"{one.name or one.kind} of {one.sandbox_id}") for one in snapshots]
    return [pair for pair in told if pair[0].startswith(start)]


def templates_beginning_with(start: str) -> list[str]:
    """Return the names of templates to complete with; none if the server cannot be asked."""
    try:
        with Client(request_timeout=2, retry=Retry(attempts=1)) as client:
            return [template.name for template in client.templates.list() if template.name.startswith(start)]
    except TorporError:
        return []
