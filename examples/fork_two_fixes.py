"""A decision point: fork the sandbox, try two fixes side by side, keep the better one.

Both children begin where the parent stands: the same checkout, the same installed packages, the same running server.
Nothing large is copied for it, and what one does is not seen by the other, nor by the parent.

Run it with a server on this machine: `torpor up`, then `python examples/fork_two_fixes.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from material import FIXED_SERVICE, JOINED_SERVICE
from story import brief, run, timed
from torpor import ExecResult, Sandbox, TorporError
from workspace import CALL_SERVER, RUN_TESTS, START_SERVER, set_up

# What two trains of thought of a model came up with, for the comma that "Hello Ada!" lacks.
FIXES = {"write the comma": FIXED_SERVICE, "join with commas": JOINED_SERVICE}


@dataclass(frozen=True)
class Outcome:
    """What became of one fix, in the sandbox that tried it."""

    fix: str
    sandbox: Sandbox
    tests: ExecResult

    @property
    def rank(self) -> tuple[bool, int]:
        """The better of two has the greater one: passing counts, then speed."""
        return self.tests.exit_code == 0, -self.tests.duration_ms


def main() -> None:
    """Tell the story. Whatever happens in it, every sandbox is deleted at its end."""
    with ExitStack() as undo:
        with timed("create the sandbox") as words:
            parent = undo.enter_context(Sandbox.create(template="agent", metadata={"run": "two-fixes"}))
            words.append(parent.id)
        set_up(parent)
        with timed("start the server") as words:
            parent.exec(START_SERVER, check=True)
            words.append(brief(parent.exec(CALL_SERVER, check=True)))
        with timed("run the tests") as words:
            words.append(brief(parent.exec(RUN_TESTS)))

        with timed("fork in two") as words:
            children = parent.fork(len(FIXES))
            for child in children:
                undo.callback(child.delete)
            words.append(" ".join(child.id for child in children))
        best = try_side_by_side(children)
        with timed("the parent's tests") as words:
            words.append(f"as before: {brief(parent.exec(RUN_TESTS))}")
        go_on_with(best)


def try_side_by_side(children: list[Sandbox]) -> Outcome:
    """Try each fix in a child of its own, all at once, and delete all children but that with the better one."""
    with ThreadPoolExecutor(len(children)) as pool, timed("try both, side by side"):
        outcomes = list(pool.map(try_fix, children, FIXES))
    for outcome in outcomes:
        print(f"  {outcome.fix:<30}{outcome.tests.duration_ms / 1000:7.2f} s   {brief(outcome.tests)}")
    best = max(outcomes, key=lambda outcome: outcome.rank)
    if best.tests.exit_code != 0:
        raise TorporError("neither fix passes the tests")
    with timed("delete the other") as words:
        for outcome in outcomes:
            if outcome is not best:
                outcome.sandbox.delete()
        words.append(f"kept: {best.fix}, in {best.sandbox.id}")
    return best


def try_fix(child: Sandbox, fix: str) -> Outcome:
    """Write a fix in a child and run the tests there."""
    child.filesystem.write("/work/service.py", FIXES[fix])
    return Outcome(fix, child, child.exec(RUN_TESTS, timeout_seconds=120))


def go_on_with(best: Outcome) -> None:
    """Go on in the child that was kept. The server in it is the parent's, and answers as that did; so start it anew."""
    with timed("call the server in it") as words:
        words.append(brief(best.sandbox.exec(CALL_SERVER, check=True)))
    with timed("start it anew, and call it") as words:
        best.sandbox.exec(["pkill", "-f", "service.py"], check=True)
        best.sandbox.exec(START_SERVER, check=True)
        words.append(brief(best.sandbox.exec(CALL_SERVER, check=True)))


if __name__ == "__main__":
    run(main)
