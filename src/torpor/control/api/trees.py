"""`/v1/sandboxes/{id}/fork-tree` and `/promote`: several children of one instant, of which one is kept."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from torpor import errors
from torpor.control.api.answers import PatientPassage
from torpor.control.api.deps import IdempotencyKey, Targets, ThePlane, TheSandbox
from torpor.control.api.problems import refusals
from torpor.control.api.views import view
from torpor.control.service.fork import fork
from torpor.control.service.promote import promote
from torpor.model.sandbox import Sandbox
from torpor.wire.trees import TREE_ID, ForkedTree, ForkTree, Promote, Promoted

router = APIRouter(prefix="/v1/sandboxes/{id}", tags=["sandboxes"])

_FORKING = refusals(
    errors.NotFound, errors.Conflict, errors.QuotaExceeded, errors.SandboxLost, errors.OutOfSpace, errors.FreezeFailed
)
_PROMOTING = refusals(errors.NotFound, errors.Conflict, errors.SandboxLost)


@router.post(
    "/fork-tree",
    status_code=201,
    response_class=Response,
    responses={**_FORKING, 201: {"model": ForkedTree, "description": "Every child runs."}},
)
async def fork_tree(
    plane: ThePlane, owned: TheSandbox, targets: Targets, wish: ForkTree, idempotency_key: IdempotencyKey = None
) -> Response:
    """Bring 2 to 16 children of a sandbox to life, all of them or none, with labels that say which tree they are of.

    Long answers are padded as a create's.
    """

    async def forked() -> ForkedTree:
        children = await fork(plane, owned, wish, idempotency_key, is_tree=True)
        targets.extend(child.id for child in children)
        return _tree_view(owned.id, children)

    return PatientPassage(plane.clock, forked, 201)


@router.post(
    "/promote",
    response_class=Response,
    responses={**_PROMOTING, 200: {"model": Promoted, "description": "It is independent."}},
)
async def promote_sandbox(plane: ThePlane, owned: TheSandbox, targets: Targets, wish: Promote) -> Response:
    """Let a child of a fork go on as a sandbox of its own, with its parent's ttl counted from now.

    With `cleanup_siblings` the others of its tree are deleted. Long answers are padded as hibernate's.
    """

    async def promoted() -> Promoted:
        done = await promote(plane, owned, wish)
        targets.extend(done.deleted)
        return Promoted(winner=done.winner.id, tree_id=done.tree, deleted=done.deleted, failures=done.failures)

    return PatientPassage(plane.clock, promoted)


def _tree_view(parent: str, children: list[Sandbox]) -> ForkedTree:
    first = children[0]
    return ForkedTree(
        tree_id=first.metadata[TREE_ID],
        parent_id=parent,
        snapshot_id=first.from_snapshot,
        children=[view(child) for child in children],
        at=first.created_at,
    )
