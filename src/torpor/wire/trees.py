"""The JSON of fork trees: children of one instant of a sandbox, of which one is to be kept."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from torpor.wire.public import ForkSandbox, SandboxView, Strict

# Children of one tree.
MIN_TREE, MAX_TREE = 2, 16

# Labels that only the server gives: which tree a child is of and whose, what it is in it ("child", or "winner" once it
# is promoted), and which child it is, from 0.
TREE_ID, TREE_PARENT, TREE_ROLE, TREE_INDEX = "fork_tree_id", "fork_parent_id", "fork_tree_role", "fork_index"
CHILD, WINNER = "child", "winner"
# A wish in the place of a label: how long each child lives, in seconds.
TREE_TTL = "explore_ttl"


class ForkTree(ForkSandbox):
    """`POST .../fork-tree`: as a fork of `count` children, each with labels that say which tree it is of.

    `metadata.explore_ttl`, in seconds and as text, is their ttl, in the place of `ttl_seconds`.
    """

    count: int = Field(ge=MIN_TREE, le=MAX_TREE)


class ForkedTree(BaseModel):
    """`POST .../fork-tree`: the children, the first first. All are there, or none, so there are never `errors`."""

    tree_id: str
    parent_id: str
    snapshot_id: str | None
    children: list[SandboxView]
    errors: list[str] = Field(default_factory=list)
    at: datetime


class Promote(Strict):
    """`POST .../promote`: with `cleanup_siblings` the others of its tree are deleted.

    A `tree_id` other than its own is refused.
    """

    cleanup_siblings: bool = False
    tree_id: str | None = Field(default=None, min_length=1, max_length=64)


class Promoted(BaseModel):
    """`POST .../promote`: the id of the `winner`, and of its tree (None: it is not of one).

    `deleted`: the siblings that are gone by this call, in their order; `failures`: those that could not be deleted, and
    why. Asked again, the rest is done.
    """

    winner: str
    tree_id: str | None
    deleted: list[str] = Field(default_factory=list)
    failures: dict[str, str] = Field(default_factory=dict)
