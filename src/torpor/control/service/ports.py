"""Ports: servers in a sandbox, woken first if it sleeps, and links that let others use one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from torpor.control.proxy.addresses import Address
from torpor.control.service.awake import ask, awake, reached
from torpor.control.service.chores import Chore
from torpor.control.service.keys import LOCAL_KEY_ID
from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, show
from torpor.errors import Busy, OutcomeUnknown, Unavailable
from torpor.kit.race import Overtaken, race
from torpor.kit.shielded import end_tasks
from torpor.model.access import Caller, Role
from torpor.model.lifecycle import ANSWERING, SETTLED, State
from torpor.wire import duplex, host

# A client waits so long for a sandbox to wake before it is told to come again, in seconds. The wake goes on.
WAKE_PATIENCE_S = 10.0
# Bytes that the sandbox does not take for so long may be waiting for it to wake, in seconds.
_STUCK_S = 1.0
# The addresses at which a server is reached from here: it is connected to on the guest's loopback.
_REACHABLE = frozenset({"127.0.0.1", "0.0.0.0", "::1", "::"})  # noqa: S104 - compared, not bound


async def listening(plane: Plane, owned: Owned) -> list[host.Port]:
    """Return on which ports somebody in a sandbox listens, by number; one that sleeps is woken. Raises as `ask`."""
    return await ask(plane, owned, lambda: plane.host.ports(owned.id))


def is_reachable(port: host.Port) -> bool:
    """Tell whether a server can be reached from here: one that listens on another address than loopback cannot."""
    return port.address in _REACHABLE


async def link(plane: Plane, owned: Owned, port: int, key_id: str, lasts_s: int) -> tuple[str, datetime]:
    """Return the token of a new link to a port, and when it expires. Wakes nothing. Raises NotFound as `show`."""
    await show(plane, owned)
    expires_at = (plane.clock.now() + timedelta(seconds=lasts_s + 1)).replace(microsecond=0)
    address = Address(owned.id, port)
    return plane.ports.signer.token(address, owned.workspace, key_id, expires_at), expires_at


@asynccontextmanager
async def connected(plane: Plane, owned: Owned, port: int) -> AsyncIterator[duplex.Connection]:
    """Connect to a server in a sandbox while the block lasts; the sandbox is in use meanwhile.

    One that sleeps is woken first, once for all who ask, and again by what is sent if it is put to sleep meanwhile.
    Raises PortClosed if nobody listens, Busy if the wake takes longer than WAKE_PATIENCE_S (it goes on), Unavailable
    if the guest does not answer; else as `awake`.
    """
    await _wake_within(plane, owned)
    entered = False
    try:
        async with reached(plane, owned, lambda: plane.host.dial(owned.id, port)) as connection:
            entered = True
            yield _Waking(plane, owned, connection)
    except OutcomeUnknown as error:
        if entered:
            raise
        raise Unavailable(f"the guest of sandbox {owned.id} does not answer") from error


async def _wake_within(plane: Plane, owned: Owned) -> None:
    """Return when a sandbox is awake, or cannot be woken, which is found out next. Raises Busy if it takes long."""
    state = (await show(plane, owned)).state
    is_recovering = plane.chores.is_under_way(Chore.RECOVERY, owned.id)
    if state in ANSWERING or (state in SETTLED and state is not State.HIBERNATED and not is_recovering):
        return
    _begin_to_wake(plane, owned)
    try:
        await race(plane.chores.wait_over(Chore.WAKE, owned.id), plane.clock.sleep(WAKE_PATIENCE_S))
    except Overtaken:
        raise Busy(f"sandbox {owned.id} is on its way; it takes longer than {WAKE_PATIENCE_S:g} s") from None


def _begin_to_wake(plane: Plane, owned: Owned) -> None:
    async def work() -> None:
        await awake(plane, owned)

    plane.chores.begin(Chore.WAKE, owned.id, work)


async def sent_awake(plane: Plane, owned: Owned, send: Coroutine[Any, Any, bool]) -> bool:
    """Return what a sending of bytes into a sandbox returns; where they wait because it sleeps, it is woken."""
    sending = asyncio.create_task(send)
    try:
        while not (await asyncio.wait({sending}, timeout=_STUCK_S))[0]:
            if (await show(plane, owned)).state is State.HIBERNATED:
                _begin_to_wake(plane, owned)
        return sending.result()
    finally:
        await end_tasks(sending)


class _Waking:
    """A connection that wakes its sandbox when bytes are to go in while it sleeps."""

    def __init__(self, plane: Plane, owned: Owned, inner: duplex.Connection) -> None:
        self._plane, self._owned, self._inner = plane, owned, inner

    async def receive(self) -> bytes:
        return await self._inner.receive()

    async def send(self, data: bytes) -> bool:
        return await sent_awake(self._plane, self._owned, self._inner.send(data))

    def end(self) -> None:
        self._inner.end()


async def key_of_link(plane: Plane, owned: Owned, key_id: str) -> Caller | None:
    """Return the key that a link was made by, of the sandbox's workspace; None if it opens nothing any more."""
    if key_id == LOCAL_KEY_ID:
        return Caller(key_id, "", owned.workspace, Role.MEMBER)
    key = await plane.keyring.find_by_id(key_id)
    if key is None or key.workspace != owned.workspace or key.is_over(plane.clock.now()):
        return None
    return Caller(key.id, key.prefix, key.workspace, key.role, key.expires_at)
