"""Who came from whom: sandboxes and snapshots by descent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli import output, wording
from torpor.cli.options import Json, complete_id
from torpor.errors import Conflict, NotFound
from torpor.model.ids import is_snapshot_id

if TYPE_CHECKING:
    from torpor.sdk import SandboxInfo, Snapshot


@dataclass
class Node:
    """A sandbox or a snapshot with what came from it. `fact` is None where it was deleted and only its id is known."""

    id: str
    fact: SandboxInfo | Snapshot | None = None
    above: Node | None = field(default=None, repr=False)
    below: list[Node] = field(default_factory=list)

    def born(self) -> datetime:
        """Return when it was made; of what was deleted, when the first that came from it was."""
        if self.fact is not None:
            return self.fact.created_at
        return min((node.born() for node in self.below), default=datetime.now(UTC))

    def hang(self, above: Node | None) -> None:
        """Put it below another, unless that itself hangs below it."""
        upwards = above
        while upwards is not None:
            if upwards is self:
                return
            upwards = upwards.above
        if above is not None:
            self.above = above
            above.below.append(self)


def tree(
    sandbox: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Only this sandbox or snapshot and what came from it.", autocompletion=complete_id
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show sandboxes and snapshots by descent: which were taken, restored or forked from which.

    Examples:

    * everything: `torpor tree`
    * one, and what came from it: `torpor tree demo`
    """
    from torpor.cli.link import connection  # noqa: PLC0415
    from torpor.sdk import Sandbox, Snapshot  # noqa: PLC0415

    with connection() as client:
        boxes = [box.info for box in Sandbox.iterate(client=client)]
        snapshots = list(Snapshot.iterate(client=client))
    nodes = grown(boxes, snapshots)
    roots = [node for node in nodes if node.above is None] if sandbox is None else [_named(nodes, sandbox)]
    if json:
        output.show_json([_record(node) for node in roots])
        return
    output.tree([_branch(node) for node in roots], empty="There are no sandboxes. `torpor create` makes one.")


def grown(boxes: Iterable[SandboxInfo], snapshots: Iterable[Snapshot]) -> Sequence[Node]:
    """Return a node for each of them, and for what was deleted and has left something: the earlier born first.

    A snapshot hangs below its sandbox. A sandbox hangs below the snapshot it came to life from, or else the sandbox it
    was forked from.
    """
    boxes, snapshots = list(boxes), list(snapshots)
    everything: list[SandboxInfo | Snapshot] = [*boxes, *snapshots]
    nodes = {fact.id: Node(fact.id, fact) for fact in everything}
    for snapshot in snapshots:
        nodes[snapshot.id].hang(nodes.setdefault(snapshot.sandbox_id, Node(snapshot.sandbox_id)))
    for box in boxes:
        if box.from_snapshot is not None and box.from_snapshot not in nodes:
            nodes[box.from_snapshot] = Node(box.from_snapshot)
            nodes[box.from_snapshot].hang(nodes.get(box.parent_id or ""))
        nodes[box.id].hang(nodes.get(box.from_snapshot or box.parent_id or ""))
    for node in nodes.values():
        node.below.sort(key=Node.born)
    return sorted(nodes.values(), key=Node.born)


def _named(nodes: Iterable[Node], text: str) -> Node:
    found = [node for node in nodes if node.id == text or (node.fact and node.fact.name == text)]
    if not found:
        raise NotFound(
            f"there is no sandbox or snapshot with the id or name {text!r}", hint="`torpor tree` shows all there are"
        )
    if len(found) > 1:
        raise Conflict(f"{len(found)} sandboxes and snapshots are named {text!r}", hint="use an id in its place")
    return found[0]


def _branch(node: Node) -> output.Branch:
    return output.Branch(node.id, list(_words(node.fact)), [_branch(below) for below in node.below])


def _words(fact: SandboxInfo | Snapshot | None) -> Iterator[str]:
    from torpor.sdk import SandboxInfo  # noqa: PLC0415

    if fact is None:
        yield "deleted"
        return
    yield fact.name or ""
    if isinstance(fact, SandboxInfo):
        yield fact.state
        yield f"{fact.template}, {fact.memory_mb} MiB"
    else:
        yield f"{fact.kind}, {wording.size(fact.size_bytes)}"
    yield f"{wording.ago(fact.created_at)} ago"


def _record(node: Node) -> dict[str, Any]:
    kind = "snapshot" if is_snapshot_id(node.id) else "sandbox"
    facts = {"id": node.id, "state": "deleted"} if node.fact is None else output.facts(node.fact)
    return {"type": kind, **facts, "children": [_record(below) for below in node.below]}
