"""The states of a sandbox and the only passages between them, as data.

A verb may begin in its `starts` states, shows `during` while it is under way, and settles in `done` or, if it
definitely did not happen, in `undone`. `control/service/passage.py` is the only code that changes a state, and it
reads this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a sandbox stands. Those ending in -ing are passages under way; the others are settled."""

    CREATING = "creating"
    RUNNING = "running"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"


SETTLED = frozenset({State.RUNNING, State.DELETED, State.FAILED})


@dataclass(frozen=True, slots=True)
class Passage:
    """One verb's row of the table. `holds` is where the verb succeeds and does nothing."""

    verb: str
    starts: frozenset[State]
    during: State
    done: State
    undone: State
    holds: frozenset[State] = frozenset()


CREATE = Passage("create", frozenset(), State.CREATING, State.RUNNING, State.DELETED)
DELETE = Passage(
    "delete",
    starts=frozenset({State.RUNNING, State.FAILED}),
    during=State.DELETING,
    done=State.DELETED,
    undone=State.FAILED,
    holds=frozenset({State.DELETED}),
)

PASSAGES = (CREATE, DELETE)
