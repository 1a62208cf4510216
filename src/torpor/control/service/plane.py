"""The control plane's collaborators in one record, which every verb is given."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.control.hosts import HostClient
from torpor.control.service.activity import Activity
from torpor.control.service.attempts import Attempts
from torpor.control.service.chores import Chores
from torpor.control.service.deadlines import Deadlines
from torpor.control.service.noter import COMMAND_TEXT, Noter
from torpor.control.service.once import Once
from torpor.control.service.pace import Pace
from torpor.control.service.passage import Bells, Gate
from torpor.control.service.shelf import Shelf
from torpor.control.store.contract import Store
from torpor.kit.clock import Clock
from torpor.model.ids import WorkspaceId
from torpor.model.usage import Prices

# One server, one key, one workspace; the store and the verbs know of more already.
DEFAULT_WORKSPACE = WorkspaceId("default")


@dataclass(frozen=True, slots=True)
class Plane:
    """What a verb works with. Build it with `plane_of`, so that the parts belong together."""

    store: Store
    host: HostClient
    clock: Clock
    bells: Bells
    gate: Gate
    shelf: Shelf
    noter: Noter
    prices: Prices
    activity: Activity
    pace: Pace
    deadlines: Deadlines
    chores: Chores
    recoveries: Attempts
    once: Once


def plane_of(
    store: Store, host: HostClient, clock: Clock, prices: Prices | None = None, *, tells_commands: bool = True
) -> Plane:
    """Return the record of collaborators over a store, a host and a clock.

    `tells_commands`: whether events have the text of commands in them.
    """
    bells = Bells()
    return Plane(
        store=store,
        host=host,
        clock=clock,
        bells=bells,
        gate=Gate(store, clock, bells),
        shelf=Shelf(),
        noter=Noter(store, clock, bells.news, left_out=frozenset() if tells_commands else COMMAND_TEXT),
        prices=prices or Prices(),
        activity=Activity(clock),
        pace=Pace(clock, bells.pace),
        deadlines=Deadlines(store, host, clock),
        chores=Chores(),
        recoveries=Attempts(clock),
        once=Once(),
    )
