"""The control plane's collaborators in one record, which every verb is given."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.control.hosts import HostClient
from torpor.control.service.passage import Bells, Gate
from torpor.control.service.shelf import Shelf
from torpor.control.store.contract import Store
from torpor.kit.clock import Clock
from torpor.model.ids import WorkspaceId

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


def plane_of(store: Store, host: HostClient, clock: Clock) -> Plane:
    """Return the record of collaborators over a store, a host and a clock."""
    bells = Bells()
    return Plane(store, host, clock, bells, Gate(store, clock, bells), Shelf())
