"""Promote: one child of a fork goes on as a sandbox of its own, and its siblings are deleted if that is asked for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from torpor.control.service.delete import delete
from torpor.control.service.kinship import is_winner, metadata_of_winner, tree_of
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, deleting, expiry, standing
from torpor.control.store.contract import Listing
from torpor.errors import Conflict, InvalidRequest, TorporError
from torpor.model.lifecycle import State
from torpor.model.sandbox import Sandbox
from torpor.wire.public import DEFAULT_TTL_SECONDS
from torpor.wire.trees import TREE_ID, TREE_INDEX, Promote

# More than are in any tree.
_ALL = 1000


@dataclass(frozen=True, slots=True)
class Promotion:
    """What came of it: `deleted` siblings, and those that could not be, each with the reason."""

    winner: Sandbox
    tree: str | None
    deleted: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


async def promote(plane: Plane, owned: Owned, wish: Promote) -> Promotion:
    """Give a child of a fork its parent's life back, make it the winner of its tree if it is of one, and return it.

    A tree has one winner at a time. What is asked for again is done once, and the rest of it if it was cut off: the
    winner is on record before the first sibling is deleted. Raises NotFound, SandboxLost, InvalidRequest for a tree
    that is not its own, and Conflict for what is no child, or where a sibling is the winner.
    """
    child = await standing(plane, owned)
    tree = _tree(child, wish)
    if tree is None:
        return Promotion(await _made_independent(plane, child), None)
    async with plane.trees.hold(tree):
        child = await standing(plane, owned)
        siblings = await _siblings(plane, child)
        _refuse_second(child, siblings)
        if not is_winner(child):
            child = await _made_independent(plane, child)
    promotion = Promotion(child, tree)
    if wish.cleanup_siblings:
        await _clean_up(plane, promotion, siblings)
    return promotion


def _tree(child: Sandbox, wish: Promote) -> str | None:
    if child.parent is None:
        raise Conflict(f"sandbox {child.id} is no child of a fork, so it is independent already")
    tree = tree_of(child)
    if wish.tree_id is not None and wish.tree_id != tree:
        belongs = "no fork tree" if tree is None else f"the fork tree {tree}"
        raise InvalidRequest(f"sandbox {child.id} is of {belongs}, and tree_id names another")
    return tree


async def _siblings(plane: Plane, child: Sandbox) -> list[Sandbox]:
    """Return the others of its tree that there still are, in their order."""
    listing = Listing(child.workspace, _ALL, {TREE_ID: child.metadata[TREE_ID]})
    others = [one for one in await plane.store.page(listing) if one.parent == child.parent and one.id != child.id]
    return sorted(others, key=lambda one: int(one.metadata[TREE_INDEX]))


def _refuse_second(child: Sandbox, siblings: list[Sandbox]) -> None:
    for other in siblings:
        if is_winner(other) and other.state is not State.DELETING:
            raise Conflict(
                f"sandbox {child.id} cannot be promoted: its sibling {other.id} is the winner of their tree already",
                hint="delete that one first, or keep this one as it is",
            )


async def _made_independent(plane: Plane, child: Sandbox) -> Sandbox:
    ends, ttl = await _life(plane, child)
    winner = await plane.store.relabel(child.id, metadata_of_winner(child), ends, ttl)
    if winner is None:
        raise deleting(Owned(child.workspace, child.id))
    plane.bells.expiry.set()
    await plane.deadlines.tell(winner.id)
    plane.noter.note("promoted", winner, tree_id=tree_of(winner), parent_id=winner.parent)
    return winner


async def _life(plane: Plane, child: Sandbox) -> tuple[datetime | None, int | None]:
    """Return its new end and ttl: those that its parent would have by a new start, but never an earlier end."""
    parent = None if child.parent is None else await plane.store.get(child.parent)
    ttl = DEFAULT_TTL_SECONDS if parent is None else parent.ttl_seconds
    ends = expiry(plane.clock.now(), ttl)
    if ends is not None and (child.expires_at is None or child.expires_at > ends):
        return child.expires_at, child.ttl_seconds
    return ends, ttl


async def _clean_up(plane: Plane, promotion: Promotion, siblings: list[Sandbox]) -> None:
    async def end(sibling: Sandbox) -> str | None:
        try:
            await delete(plane, Owned(sibling.workspace, sibling.id))
        except TorporError as error:
            return error.message
        return None

    async with asyncio.TaskGroup() as group:
        ending = {sibling.id: group.create_task(end(sibling)) for sibling in siblings}
    for id, task in ending.items():
        if (failure := task.result()) is None:
            promotion.deleted.append(id)
        else:
            promotion.failures[id] = failure
