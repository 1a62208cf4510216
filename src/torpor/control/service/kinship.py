"""Kinship: the labels by which the children of a fork tree are known, which only the server gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torpor.control.service.sandboxes import life_of
from torpor.errors import InvalidRequest
from torpor.model.ids import SandboxId, sandbox_id_from
from torpor.model.sandbox import Sandbox
from torpor.wire.public import MAX_METADATA, MAX_TTL_SECONDS, ForkSandbox
from torpor.wire.trees import CHILD, TREE_ID, TREE_INDEX, TREE_PARENT, TREE_ROLE, TREE_TTL, WINNER

_SERVERS_OWN = frozenset({TREE_ID, TREE_PARENT, TREE_ROLE, TREE_INDEX})


def metadata_of_child(parent: Sandbox, wish: ForkSandbox) -> dict[str, str]:
    """Return a child's labels: the parent's, and over them what is wished for, but nobody else's kinship.

    Raises InvalidRequest for more than a sandbox can have.
    """
    inherited = {key: value for key, value in parent.metadata.items() if key != TREE_TTL}
    metadata = {key: value for key, value in (inherited | wish.metadata).items() if key not in _SERVERS_OWN}
    check_fits(metadata)
    return metadata


def check_fits(metadata: Mapping[str, str]) -> None:
    """Raise InvalidRequest for more labels than a sandbox can have."""
    if len(metadata) > MAX_METADATA:
        message = (
            f"with the parent's, a child would have {len(metadata)} pairs of metadata, and at most {MAX_METADATA} fit"
        )
        raise InvalidRequest(message)


def ttl_of_child(parent: Sandbox, wish: ForkSandbox, *, is_tree: bool) -> int | None:
    """Return how long a child lives, in seconds: as is wished for, else as its parent. Raises InvalidRequest."""
    if is_tree and TREE_TTL in wish.metadata:
        if wish.ttl_seconds is not None or wish.persistent:
            raise InvalidRequest(f"metadata.{TREE_TTL} says how long the children live, so nothing else may say it too")
        return _tree_ttl(wish.metadata[TREE_TTL])
    if wish.persistent or wish.ttl_seconds is not None:
        return life_of(wish.ttl_seconds, persistent=wish.persistent)
    return parent.ttl_seconds


def _tree_ttl(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_TTL_SECONDS))
    if not is_number or not 1 <= int(text) <= MAX_TTL_SECONDS:
        raise InvalidRequest(f"metadata.{TREE_TTL} has to be whole seconds from 1 to {MAX_TTL_SECONDS}")
    return int(text)


def as_tree(children: Sequence[Sandbox], parent: SandboxId) -> list[Sandbox]:
    """Return children with the labels of one tree. Its id follows from the first one's. Raises InvalidRequest."""
    tree = "tree-" + sandbox_id_from("tree", children[0].id).removeprefix("sbx-")
    labelled = []
    for index, child in enumerate(children):
        own = {TREE_ID: tree, TREE_PARENT: parent, TREE_ROLE: CHILD, TREE_INDEX: str(index)}
        labelled.append(replace(child, metadata={**child.metadata, **own}))
    check_fits(labelled[0].metadata)
    return labelled


def tree_of(sandbox: Sandbox) -> str | None:
    """Return the tree that a sandbox is a child of, None if it is of none.

    Labels alone say nothing: who makes a sandbox can give it any.
    """
    return None if sandbox.parent is None else sandbox.metadata.get(TREE_ID)


def is_winner(sandbox: Sandbox) -> bool:
    """Tell whether a child of a tree was promoted."""
    return tree_of(sandbox) is not None and sandbox.metadata.get(TREE_ROLE) == WINNER


def metadata_of_winner(child: Sandbox) -> dict[str, str]:
    """Return the labels of a child that is promoted."""
    kept = {key: value for key, value in child.metadata.items() if key != TREE_TTL}
    return kept | {TREE_ROLE: WINNER} if tree_of(child) is not None else kept
