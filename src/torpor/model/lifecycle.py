"""The states of a sandbox and the only passages between them, as data.

A verb may begin in its `starts` states, shows `during` while it is under way, and settles in `done` or, if it
definitely did not happen, in `undone`. `control/service/passage.py` is the only code that changes a state, and it
reads this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a sandbox stands. Those ending in -ing but `running` are passages under way; the others are settled."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    SNAPSHOTTING = "snapshotting"
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    WAKING = "waking"
    RESTORING = "restoring"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"


SETTLED = frozenset({State.RUNNING, State.PAUSED, State.HIBERNATED, State.DELETED, State.FAILED})
# Where the guest answers: also while its snapshot is made durable.
ANSWERING = frozenset({State.RUNNING, State.SNAPSHOTTING})

# With a machine.
STANDING = frozenset({State.RUNNING, State.PAUSED})


@dataclass(frozen=True, slots=True)
class Passage:
    """One verb's row of the table. `holds` is where the verb succeeds and does nothing.

    `during` None: the verb is done in an instant and shows nothing. `done` or `undone` None: the state it began in.
    """

    verb: str
    starts: frozenset[State]
    during: State | None
    done: State | None
    undone: State | None
    holds: frozenset[State] = frozenset()


CREATE = Passage("create", frozenset(), State.CREATING, State.RUNNING, State.DELETED)
SNAPSHOT = Passage("snapshot", starts=STANDING, during=State.SNAPSHOTTING, done=None, undone=None)
HIBERNATE = Passage(
    "hibernate",
    starts=STANDING,
    during=State.HIBERNATING,
    done=State.HIBERNATED,
    undone=None,
    holds=frozenset({State.HIBERNATED}),
)
WAKE = Passage(
    "wake",
    starts=frozenset({State.HIBERNATED}),
    during=State.WAKING,
    done=State.RUNNING,
    undone=State.HIBERNATED,
    holds=frozenset({State.RUNNING}),
)
PAUSE = Passage(
    "pause",
    starts=frozenset({State.RUNNING}),
    during=None,
    done=State.PAUSED,
    undone=None,
    holds=frozenset({State.PAUSED}),
)
RESUME = Passage(
    "resume",
    starts=frozenset({State.PAUSED}),
    during=None,
    done=State.RUNNING,
    undone=None,
    holds=frozenset({State.RUNNING}),
)
ROLLBACK = Passage(
    "rollback",
    starts=frozenset({State.RUNNING, State.PAUSED, State.HIBERNATED, State.FAILED}),
    during=State.RESTORING,
    done=State.RUNNING,
    undone=None,
)
DELETE = Passage(
    "delete",
    starts=SETTLED - {State.DELETED},
    during=State.DELETING,
    done=State.DELETED,
    undone=State.FAILED,
    holds=frozenset({State.DELETED}),
)

PASSAGES = (CREATE, SNAPSHOT, HIBERNATE, WAKE, PAUSE, RESUME, ROLLBACK, DELETE)
