"""Fork trees: children of one instant, of which the best is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from torpor.sdk._async.explore import AsyncExplorer
from torpor.sdk._async.life import AsyncLife
from torpor.sdk.exploring import Candidate, Exploration, Function, Outcome, Score, Select, plan_of
from torpor.sdk.http import FREEZE_SILENCE_S, changing, making
from torpor.sdk.orders import Forking, Reachable, promoting
from torpor.wire.trees import ForkedTree, Promoted

if TYPE_CHECKING:
    from torpor.sdk._async.sandbox import AsyncSandbox


class AsyncTrees(AsyncLife):
    """What is tried in several copies of a sandbox at once."""

    async def fork_tree(
        self,
        count: int,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: int | None = None,
        persistent: bool = False,
        secrets: Mapping[str, str] | None = None,
        network: Reachable | None = None,
    ) -> list[Self]:
        """Make 2 to 16 copies of it, as `fork` does, that are known to be of one tree, of which `promote` keeps one.

        Their labels say so: `fork_tree_id`, `fork_parent_id`, `fork_tree_role` ("child") and `fork_index` (from 0).
        """
        order = Forking(metadata, ttl_seconds, persistent, secrets, network).tree(count)
        call = making(f"{self._path}/fork-tree", order, FREEZE_SILENCE_S)
        forked = await self._client.fetch_as(ForkedTree, call)
        return [self._child(view) for view in forked.children]

    async def promote(self, *, cleanup_siblings: bool = False, tree_id: str | None = None) -> Promoted:
        """Let it, a child of a fork, go on as a sandbox of its own: it has its parent's ttl, counted from now.

        In a tree it is the winner then, of which there is one. With `cleanup_siblings` the others of its tree are
        deleted. Asked again, what is left of it is done. A `tree_id` makes sure that it is of that tree.

        Raises Conflict (it is no child of a fork, or a sibling is the winner), InvalidRequest (it is of another tree).
        """
        told = await self._client.fetch_as(
            Promoted, changing(f"{self._path}/promote", promoting(cleanup_siblings, tree_id))
        )
        await self.refresh()
        return told

    async def explore(  # noqa: PLR0913 - each is one thing to say about an exploration
        self,
        candidates: Sequence[Candidate | str | Sequence[str] | Function],
        score: Score | str | None = None,
        *,
        select: Select = "max",
        require_success: bool = True,
        max_concurrency: int = 4,
        ttl_seconds: int = 600,
        timeout_seconds: float | None = 60,
        keep_losers: bool = False,
        on_outcome: Callable[[Outcome], Any] | None = None,
    ) -> Exploration[AsyncSandbox]:
        """Try each candidate in a copy of its own, keep the best copy, and end the others; it is itself as it was.

            found = await sbx.explore(["make fast", "make small"], score="stat -c %s a.out", select="min")
            print(found.table())
            await found.winner.exec("./a.out")

        A candidate is a command (a string or a list of words), a function that is given the branch's sandbox, or a
        `Candidate`. `score` says how good a branch is: a function of its sandbox and its outcome, or a command that is
        run in it and whose output ends in a number. Without it what succeeds has 1, and all else 0. `select` takes the
        largest ("max"), the smallest ("min"), or what a function returns of a list of outcomes. Of equals the faster
        one is taken, then the earlier one. Only what succeeds can win, unless `require_success` is False.

        At most `max_concurrency` branches work at a time, each for `timeout_seconds` unless its candidate says
        otherwise. All copies begin in one instant; of more than 16 candidates, so many at a time, evenly. A branch
        that fails is an outcome and no error. `on_outcome` is called with each.

        The winner is promoted, and the caller's. The losers are ended, unless `keep_losers`, and with an error or an
        interruption all of them are, at once. Whatever becomes of this program, a branch lives for `ttl_seconds` only.

        Raises ExploreFailed (no branch could win; nothing is left, and the error has the outcomes), what `fork_tree`
        raises, and what `on_outcome` raises.
        """
        plan = plan_of(
            candidates,
            score=score,
            select=select,
            require_success=require_success,
            max_concurrency=max_concurrency,
            ttl_seconds=ttl_seconds,
            timeout_seconds=timeout_seconds,
            keep_losers=keep_losers,
            on_outcome=on_outcome,
        )
        return await AsyncExplorer(cast("AsyncSandbox", self), self._client, plan).run()
