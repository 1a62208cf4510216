"""One exploration: branches are made, tried and scored, the best is promoted, and the others end."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torpor.errors import CommandFailed, ExecTimeout, NotFound, TorporError
from torpor.sdk.branching import Overran, sync_called, sync_side_by_side, sync_to_its_end, sync_within
from torpor.sdk.exploring import TAIL, Candidate, Exploration, Outcome, Plan, none_wins, number_in, number_of
from torpor.sdk.http import Call
from torpor.sdk.orders import filters
from torpor.sdk.results import ExecResult
from torpor.wire.public import SandboxPage
from torpor.wire.trees import TREE_ID

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client
    from torpor.sdk._sync.sandbox import Sandbox

# The label by which all branches of an exploration are found, also those whose making was cut off.
_LABEL = "explore"


class Explorer:
    """Explores once; see `Sandbox.explore`."""

    def __init__(self, parent: Sandbox, client: Client, plan: Plan) -> None:
        self._parent = parent
        self._client = client
        self._plan = plan
        self._label = {_LABEL: secrets.token_hex(8)}
        self._branches: dict[int, Sandbox] = {}
        self._outcomes: list[Outcome] = []
        self._reaped: list[str] = []
        self._errors: list[str] = []
        self._is_given_up = False

    def run(self) -> Exploration[Sandbox]:
        """Explore. Whatever is raised, no branch is left."""
        try:
            for candidates in self._plan.rounds():
                self._try_out(candidates)
            return self._kept(self._best())
        except BaseException as error:
            sync_to_its_end(self._end_all)
            for left in self._errors:
                error.add_note(left)
            raise

    def _try_out(self, candidates: range) -> None:
        """Try some candidates, each in a branch, and end what cannot win any more, to make room for others."""
        for number, branch in zip(candidates, self._forked(len(candidates)), strict=True):
            self._branches[number] = branch
        jobs = [partial(self._branch, number) for number in candidates]
        sync_side_by_side(jobs, self._plan.max_concurrency, self._end_all)
        if callable(self._plan.select) or self._plan.keep_losers or len(self._outcomes) == len(self._plan.candidates):
            return
        best = self._plan.chosen(self._outcomes)
        for number in list(self._branches):
            if best is None or number != best.index:
                self._end(number)

    def _forked(self, count: int) -> list[Sandbox]:
        ttl = self._plan.ttl_seconds
        if count == 1:
            return self._parent.fork(1, metadata=self._label, ttl_seconds=ttl)
        return self._parent.fork_tree(count, metadata=self._label, ttl_seconds=ttl)

    def _branch(self, number: int) -> None:
        candidate, sandbox = self._plan.candidates[number], self._branches[number]
        outcome = self._tried(candidate, Outcome(candidate.label, number, sandbox.id), sandbox)
        if self._is_given_up:  # it has lost its sandbox, and nobody asks any more
            return
        if self._plan.wants_score(outcome):
            outcome = self._scored(outcome, sandbox)
        self._outcomes.append(outcome)
        if self._plan.on_outcome is not None:
            sync_called(self._plan.on_outcome, outcome)

    def _tried(self, candidate: Candidate, blank: Outcome, sandbox: Sandbox) -> Outcome:
        """Return what came of a branch. What goes wrong in it is told, and not raised."""
        began = time.monotonic()
        try:
            value = self._done(candidate, sandbox)
            outcome = blank.of(value) if isinstance(value, ExecResult) else replace(blank, ok=True)
            outcome = replace(outcome, value=value if callable(candidate.run) else None)
        except Overran:  # the function may still be at work in it
            outcome = replace(blank, timed_out=True, is_broken=True)
        except ExecTimeout as error:
            outcome = replace(blank, timed_out=True, stdout=error.stdout[-TAIL:], stderr=error.stderr[-TAIL:])
        except CommandFailed as error:
            result = ExecResult(error.stdout, error.stderr, error.exit_code, 0)
            outcome = blank.of(result)
        except Exception as error:
            outcome = replace(blank, error=_sentence(error), is_broken=True)
        return replace(outcome, duration_ms=round((time.monotonic() - began) * 1000))

    def _done(self, candidate: Candidate, sandbox: Sandbox) -> Any:
        timeout = self._plan.timeout_of(candidate)
        if callable(candidate.run):
            return sync_within(timeout, candidate.run, sandbox)
        return sandbox.exec(candidate.run, timeout_seconds=timeout, env=candidate.env, cwd=candidate.cwd)

    def _scored(self, outcome: Outcome, sandbox: Sandbox) -> Outcome:
        score = self._plan.score
        try:
            if isinstance(score, str):
                said = sandbox.exec(score, timeout_seconds=self._plan.timeout_seconds, check=True)
                return replace(outcome, score=number_in(said.stdout))
            if score is not None:
                return replace(outcome, score=number_of(sync_called(score, sandbox, outcome)))
        except Exception as error:
            return replace(outcome, error=f"no score: {_sentence(error)}")
        return replace(outcome, score=1.0 if outcome.ok else 0.0)

    def _best(self) -> Outcome:
        best = self._plan.chosen(self._outcomes)
        if best is None:
            raise none_wins(self._plan, self._outcomes)
        return best

    def _kept(self, best: Outcome) -> Exploration[Sandbox]:
        winner = self._branches[best.index]
        is_kept = self._plan.keep_losers
        told = winner.promote(cleanup_siblings=not is_kept, tree_id=winner.metadata.get(TREE_ID))
        del self._branches[best.index]
        self._reaped += told.deleted
        for number, branch in list(self._branches.items()):
            if branch.id in told.deleted:
                del self._branches[number]
            elif not is_kept:
                self._end(number)
        outcomes = self._plan.ordered(self._outcomes, best)
        return Exploration(winner, outcomes, told.tree_id, tuple(self._reaped), tuple(self._errors))

    def _end_all(self) -> None:
        """End every branch; also those that were made, and of which the answer never came."""
        self._is_given_up = True
        for number in list(self._branches):
            self._end(number)
        try:
            call = Call("GET", "/sandboxes", params=filters(self._label))
            found = self._client.fetch_as(SandboxPage, call)
            for view in found.items:
                with suppress(NotFound):  # it has just ended
                    self._client.fetch(Call("DELETE", f"/sandboxes/{view.id}"))
        except TorporError as error:
            self._errors.append(f"perhaps not every branch is ended yet: {error.message}")

    def _end(self, number: int) -> None:
        branch = self._branches.pop(number)
        try:
            branch.delete()
        except TorporError as error:
            self._errors.append(f"branch {branch.id} ends with its ttl, for it could not be deleted: {error.message}")
        else:
            self._reaped.append(branch.id)


def _sentence(error: Exception) -> str:
    return error.message if isinstance(error, TorporError) else f"{type(error).__name__}: {error}"
