"""What is tried in the branches of an exploration, what came of it, and which branch is the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from torpor.errors import ExploreFailed, InvalidRequest
from torpor.sdk.results import ExecResult
from torpor.wire.public import MAX_TTL_SECONDS
from torpor.wire.trees import MAX_TREE

S = TypeVar("S")

# So much of the end of each stream is kept with an outcome, in characters.
TAIL = 64 * 1024
_SHOWN_LABEL = 32
_SHOWN_ERROR = 60

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Candidate:
    """What one branch tries.

    `run`: a string (run by the guest's shell), a list of words, or a function that is given the branch's sandbox. A
    function that returns the result of an `exec` has that for its own. `env` and `cwd` are the command's.
    `timeout_seconds` bounds it; None means the exploration's.
    """

    label: str
    run: str | Sequence[str] | Function
    env: dict[str, str] | None = field(default=None, repr=False)
    cwd: str | None = None
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        if callable(self.run) and (self.env is not None or self.cwd is not None):
            raise InvalidRequest(f"candidate {self.label!r} is a function, and `env` and `cwd` are for commands")
        if not callable(self.run) and not (isinstance(self.run, str | list | tuple) and self.run):
            raise InvalidRequest(f"candidate {self.label!r} is neither a command nor a function")
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise InvalidRequest(f"candidate {self.label!r}: timeout_seconds has to be more than 0")


@dataclass(frozen=True)
class Outcome:
    """What came of one branch.

    `ok`: its command ended with 0, or its function returned. `score`: None if it has none, and then it cannot be the
    winner. `stdout`, `stderr`: the last 65,536 characters. `value`: what its function returned. `error`: in one
    sentence why it, or its scoring, did not work out; None otherwise. `sandbox_id` is there until the losers are gone.
    """

    label: str
    index: int
    sandbox_id: str
    ok: bool = False
    score: float | None = None
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    duration_ms: int = 0
    value: Any = None
    error: str | None = None
    timed_out: bool = False
    is_broken: bool = field(default=False, repr=False)

    def of(self, result: ExecResult) -> Outcome:
        """Return it with what a command came to."""
        return replace(
            self,
            ok=result.exit_code == 0,
            exit_code=result.exit_code,
            stdout=result.stdout[-TAIL:],
            stderr=result.stderr[-TAIL:],
        )

    def why(self) -> str:
        """Return in a few words how it ended."""
        if self.error is not None:
            return self.error
        return "timed out" if self.timed_out else f"exit code {self.exit_code}" if self.exit_code else "ok"


Score = Callable[[Any, Outcome], Any]
Select = str | Callable[[list[Outcome]], Outcome]


@dataclass(frozen=True)
class Exploration(Generic[S]):
    """An exploration that has found its `winner`, which is promoted and the caller's to delete.

    `outcomes`: of all branches, the winner's first, then the best first. `tree_id`: the winner's fork tree (None: there
    was one branch only). `reaped`: the ids of the losers that are gone. `errors`: what did not work out beside that,
    such as a loser that could not be deleted now and ends with its ttl.
    """

    winner: S
    outcomes: tuple[Outcome, ...]
    tree_id: str | None
    reaped: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def best(self) -> Outcome:
        """What the winner did."""
        return self.outcomes[0]

    def table(self) -> str:
        """Return the outcomes as lines of text: the winner has a star."""
        rows = [("", "label", "score", "exit", "seconds", "how it ended")]
        for outcome in self.outcomes:
            rows.append(("*" if outcome is self.best else "", *cells(outcome)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        padded = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in padded)


def cells(outcome: Outcome) -> tuple[str, str, str, str, str]:
    """Return an outcome for a table: label, score, exit code, seconds, and how it ended."""
    return (
        _short(outcome.label, _SHOWN_LABEL),
        "" if outcome.score is None else f"{outcome.score:g}",
        "" if outcome.exit_code is None else str(outcome.exit_code),
        f"{outcome.duration_ms / 1000:.1f}",
        _short(outcome.why(), _SHOWN_ERROR),
    )


def _short(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


@dataclass(frozen=True)
class Plan:
    """An exploration as it is asked for; see `explore`."""

    candidates: tuple[Candidate, ...]
    score: Score | str | None = None
    select: Select = "max"
    require_success: bool = True
    max_concurrency: int = 4
    ttl_seconds: int = 600
    timeout_seconds: float | None = 60
    keep_losers: bool = False
    on_outcome: Callable[[Outcome], Any] | None = None

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InvalidRequest("there is nothing to explore: candidates is empty")
        if not (callable(self.select) or self.select in ("max", "min")):
            raise InvalidRequest(f"select has to be 'max', 'min' or a function, not {self.select!r}")
        if self.max_concurrency < 1:
            raise InvalidRequest("max_concurrency has to be at least 1")
        if not 1 <= self.ttl_seconds <= MAX_TTL_SECONDS:
            raise InvalidRequest(f"ttl_seconds has to be from 1 to {MAX_TTL_SECONDS}")
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise InvalidRequest("timeout_seconds has to be more than 0")

    def rounds(self) -> list[range]:
        """Return which candidates are tried together: at most as many as fit into a fork tree, and evenly so."""
        total = len(self.candidates)
        count = -(-total // MAX_TREE)
        bounds = [total * number // count for number in range(count + 1)]
        return [range(low, high) for low, high in itertools.pairwise(bounds)]

    def timeout_of(self, candidate: Candidate) -> float | None:
        """Return how long a candidate may take, in seconds."""
        return self.timeout_seconds if candidate.timeout_seconds is None else candidate.timeout_seconds

    def wants_score(self, outcome: Outcome) -> bool:
        """Tell whether a branch may be the winner if its score is the best."""
        return not outcome.is_broken and (outcome.ok or not self.require_success)

    def chosen(self, outcomes: Sequence[Outcome]) -> Outcome | None:
        """Return the best of what has a score; of equals the faster one, then the earlier one; None if there is none.

        Raises InvalidRequest where a function selects what it was not given.
        """
        able = sorted((one for one in outcomes if one.score is not None), key=self._rank)
        if not able or not callable(self.select):
            return able[0] if able else None
        picked = self.select(sorted(able, key=lambda one: one.index))
        if not any(picked is one for one in able):
            raise InvalidRequest("the function in `select` has to return one of the outcomes that it is given")
        return picked

    def ordered(self, outcomes: Sequence[Outcome], first: Outcome | None = None) -> tuple[Outcome, ...]:
        """Return outcomes, `first` before the others and then the best first; those without a score are the last."""
        return tuple(sorted(outcomes, key=lambda one: (one is not first, self._rank(one))))

    def _rank(self, outcome: Outcome) -> tuple[bool, float, int, int]:
        if outcome.score is None:
            return (True, 0.0, 0, outcome.index)
        return (
            False,
            outcome.score if self.select == "min" else -outcome.score,
            outcome.duration_ms,
            outcome.index,
        )


def plan_of(candidates: Sequence[Candidate | str | Sequence[str] | Function], **wishes: Any) -> Plan:
    """Return the plan of an exploration. Raises InvalidRequest."""
    if isinstance(candidates, str):
        raise InvalidRequest(f"candidates has to be a list such as [{candidates!r}]")
    return Plan(tuple(_candidate(one, number) for number, one in enumerate(candidates)), **wishes)


def _candidate(given: Candidate | str | Sequence[str] | Function, number: int) -> Candidate:
    if isinstance(given, Candidate):
        return given
    if isinstance(given, str):
        return Candidate(given, given)
    if callable(given):
        return Candidate(getattr(given, "__name__", f"candidate {number + 1}"), given)
    words = [str(word) for word in given]
    return Candidate(" ".join(words), words)


def number_of(score: Any) -> float:
    """Return a score as a number. Raises InvalidRequest for what is none."""
    try:
        number = float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"{_short(repr(score), _SHOWN_LABEL)} is no number")
    return number


def number_in(text: str) -> float:
    """Return the last word of a text as a number. Raises InvalidRequest if it is none."""
    words = text.split()
    if not words:
        raise InvalidRequest("nothing was printed, and a number is needed")
    return number_of(words[-1])


def none_wins(plan: Plan, outcomes: Sequence[Outcome]) -> ExploreFailed:
    """Return the error for an exploration without a winner."""
    ordered = plan.ordered(outcomes)
    told = "; ".join(f"{_short(one.label, _SHOWN_LABEL)}: {one.why()}" for one in ordered[:4])
    more = f"; and {len(outcomes) - 4} more" if len(outcomes) > 4 else ""
    return ExploreFailed(
        f"none of {len(outcomes)} branches can be the winner: {told}{more}",
        outcomes=ordered,
        hint="`outcomes` of this error has what each of them wrote",
    )
