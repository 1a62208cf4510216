"""The control plane's collaborators in one record, which every verb is given."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from torpor.control.hosts import HostClient
from torpor.control.proxy.addresses import Domain
from torpor.control.proxy.links import Ports, Signer
from torpor.control.service.activity import Activity
from torpor.control.service.attempts import Attempts
from torpor.control.service.auditor import Auditor
from torpor.control.service.builder import Builder
from torpor.control.service.chores import Chores
from torpor.control.service.deadlines import Deadlines
from torpor.control.service.fresh import Fresh
from torpor.control.service.in_use import InUse
from torpor.control.service.keyring import Keyring
from torpor.control.service.noter import COMMAND_TEXT, Noter
from torpor.control.service.once import Once
from torpor.control.service.pace import Pace
from torpor.control.service.passage import Bells, Gate
from torpor.control.service.quotas import Quotas
from torpor.control.service.shelf import Shelf
from torpor.control.store.contract import Store
from torpor.kit.clock import Clock
from torpor.kit.locks import KeyedLocks
from torpor.model.capacity import Quota
from torpor.model.ids import VolumeId, WorkspaceId
from torpor.model.usage import Prices

# The workspace of the server's own key.
DEFAULT_WORKSPACE = WorkspaceId("default")


@dataclass(frozen=True, slots=True)
class Rules:
    """What is set for a whole server. `tells_commands`: whether events have the text of commands in them.

    `quota`: what every workspace is held to. `ports_domain`: below what the hosts of servers in sandboxes are.
    """

    prices: Prices = field(default_factory=Prices)
    tells_commands: bool = True
    quota: Quota = field(default_factory=Quota)
    ports_domain: Domain = field(default_factory=Domain)


@dataclass(frozen=True, slots=True)
class Plane:
    """What a verb works with. Build it with `plane_of`, so that the parts belong together.

    `trees`: whose turn it is to promote a child of a fork tree, `contexts`: to send a code context an order.
    `templates`: those that a sandbox is being made of, by their names on the host. `seal`: the server's own secret,
    under which it notes what nobody is to find out from its records.
    """

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
    quotas: Quotas
    keyring: Keyring
    auditor: Auditor
    fresh: Fresh
    ports: Ports
    making_volumes: KeyedLocks[VolumeId]
    trees: KeyedLocks[str]
    contexts: KeyedLocks[str]
    builder: Builder
    templates: InUse
    seal: bytes = field(repr=False)


def plane_of(
    store: Store, host: HostClient, clock: Clock, rules: Rules | None = None, *, seal: bytes | None = None
) -> Plane:
    """Return the record of collaborators over a store, a host and a clock. `seal` is a fresh one unless given."""
    bells, rules, seal = Bells(), rules or Rules(), seal or secrets.token_bytes(32)
    noter = Noter(store, clock, bells.news, left_out=frozenset() if rules.tells_commands else COMMAND_TEXT)
    shelf = Shelf()
    return Plane(
        store=store,
        host=host,
        clock=clock,
        bells=bells,
        gate=Gate(store, clock, bells),
        shelf=shelf,
        noter=noter,
        prices=rules.prices,
        activity=Activity(clock),
        pace=Pace(clock, bells.pace),
        deadlines=Deadlines(store, host, clock),
        chores=Chores(),
        recoveries=Attempts(clock),
        once=Once(),
        quotas=Quotas(store, rules.quota),
        keyring=Keyring(store, clock),
        auditor=Auditor(store, clock),
        fresh=Fresh(),
        ports=Ports(rules.ports_domain, Signer(seal)),
        making_volumes=KeyedLocks(),
        trees=KeyedLocks(),
        contexts=KeyedLocks(),
        builder=Builder(store, host, clock, bells, noter=noter, shelf=shelf),
        templates=InUse(),
        seal=seal,
    )
