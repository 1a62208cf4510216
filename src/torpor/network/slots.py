"""The slots of one server in the kernel: some are prepared ahead, and each is used once.

A slot that was used is not cleaned but removed: with its namespace the kernel forgets all that was in it, so nothing of
one sandbox can be met by another. Making one takes some tens of milliseconds, which nobody waits for as long as there
is one ready.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from torpor.errors import Failed, NoCapacity, RestoreFailed, TorporError
from torpor.kit.shielded import shielded, wait_ended
from torpor.model.network import Egress
from torpor.network import netns, outside, programs
from torpor.network.absent import NoNetwork, Nowhere
from torpor.network.config import NetworkConfig
from torpor.network.contract import Network, Slot
from torpor.network.making import Maker, Sockets, is_there
from torpor.network.slot import KernelSlot, new_judgement
from torpor.network.tap import DEVICE
from torpor.network.upstream import Upstream

_log = structlog.get_logger(__name__)
_DIGITS = 6


def digest_of(home: Path) -> str:
    """Return what the names of a server's slots carry, so that servers with other data directories never meet them."""
    return hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:_DIGITS]


@asynccontextmanager
async def network_of(home: Path, config: NetworkConfig) -> AsyncIterator[Network]:
    """Give the sandboxes of a data directory a network while the block lasts, where that can be had.

    Slots that are still used at its end stay, with all that they need; else nothing is left.
    """
    maker = Maker(digest_of(home), config)
    try:
        why = await asyncio.to_thread(_set_up, maker)
    except (TorporError, OSError) as error:
        hint = f"; {error.hint}" if isinstance(error, TorporError) and error.hint else ""
        why = f"{error}{hint}"
    if why:
        _log.warning("sandboxes have no network", why=why)
        yield NoNetwork(why)
        return
    slots = KernelNetwork(maker, Upstream(config.name_servers))
    try:
        yield slots
    finally:
        await shielded(slots.aclose())


def why_none(config: NetworkConfig) -> str:
    """Return why this host can give sandboxes no network, in one sentence; nothing if it can. Raises Unsupported for a
    program that is missing.
    """
    if config.use == "off":
        return "it is switched off by TORPOR_NETWORK=off"
    if os.geteuid() != 0:
        return "only root can make network namespaces for them, and this is not root"
    if not os.path.exists(DEVICE):
        return f"this host has no {DEVICE}; load its kernel module tun"
    for program in programs.PACKAGES:
        if not programs.is_installed(program):
            raise programs.missing(program)
    return ""


def _set_up(maker: Maker) -> str:
    """Prepare the host, and return why that cannot be. Raises TorporError, OSError."""
    if why := why_none(maker.config):
        if os.geteuid() == 0 and maker.config.use == "off":
            _remove_all(maker)
        return why
    outside.check_range(maker.config)
    outside.set_up(maker.digest, maker.config)
    outside.switch_on_forwarding(maker.config)
    return ""


def _remove_all(maker: Maker) -> None:
    """Cut off what an earlier server had connected: it was told not to."""
    if not netns.names(maker.beginning):
        return
    for name in maker.left():
        maker.remove(name)
    outside.remove(maker.digest)


class KernelNetwork:
    """Makes slots in the kernel, and owns what is done beside that: making some ahead, and removing those given up."""

    trouble = ""

    def __init__(self, maker: Maker, upstream: Upstream) -> None:
        self._maker, self._upstream = maker, upstream
        self._ready: deque[KernelSlot] = deque()
        self._works: set[asyncio.Task[None]] = set()
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self) -> Slot:
        slot = self._ready.popleft() if self._ready else await self._make()
        self._fill()
        return slot

    async def _make(self) -> KernelSlot:
        making = asyncio.create_task(asyncio.to_thread(self._making))
        try:
            await wait_ended(making)
        except asyncio.CancelledError:
            if making.exception() is None:
                name, sockets = making.result()
                sockets.close()
                self._give_up(name)
            raise
        try:
            name, sockets = making.result()
        except NoCapacity:
            raise
        except (TorporError, OSError) as error:
            raise RestoreFailed(f"no place in the network could be made: {error}") from error
        return self._slot(name, sockets, Egress())

    def _making(self) -> tuple[str, Sockets]:
        outside.switch_on_forwarding(self._maker.config)  # the ways out may be others by now
        return self._maker.make(new_judgement())

    def _slot(self, name: str, sockets: Sockets, egress: Egress) -> KernelSlot:
        slot = KernelSlot(name, sockets, egress, self._maker.config, self._give_up)
        slot.serve_names(self._upstream)
        return slot

    def _fill(self) -> None:
        """Begin to make slots ahead, unless there are enough, or it is done already."""
        enough = len(self._ready) >= self._maker.config.ready
        if not enough and not self._closed and (self._filling is None or self._filling.done()):
            self._filling = self._own(self._make_ahead())

    async def _make_ahead(self) -> None:
        try:
            while len(self._ready) < self._maker.config.ready and not self._closed:
                self._ready.append(await self._make())
        except TorporError as error:  # the next who needs one tries again, and hears why
            _log.warning("no slot was made ahead", error=error.message)

    def _give_up(self, name: str) -> None:
        self._own(self._removed(name))

    async def _removed(self, name: str) -> None:
        await shielded(asyncio.to_thread(self._maker.remove, name))

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    async def adopt(self, name: str, egress: Egress) -> Slot:
        if not is_there(name):
            _log.error("a sandbox has lost its network: its slot is gone", slot=name)
            return Nowhere()
        try:
            sockets = await asyncio.to_thread(self._maker.adopt, name)
        except (Failed, OSError) as error:
            raise RestoreFailed(f"the network of a sandbox could not be taken over: {error}") from error
        slot = self._slot(name, sockets, egress)
        try:
            # It may have been told something else, or nothing yet, when its server died.
            await slot.put_in_force_again()
            slot.open_gate()
        except BaseException as error:
            await slot.leave()
            if isinstance(error, Failed):
                raise RestoreFailed(error.message) from error
            raise
        return slot

    async def discard(self, name: str) -> None:
        if is_there(name):
            await self._removed(name)

    async def sweep(self, keep: Collection[str]) -> None:
        await asyncio.to_thread(self._sweep, set(keep))
        self._fill()

    def _sweep(self, keep: set[str]) -> None:
        try:
            for name in self._maker.left():
                if name not in keep and not self._is_held(name):
                    _log.info("removed a slot that an earlier server had left", slot=name)
                    self._maker.remove(name)
        except (TorporError, OSError) as error:
            _log.error("what an earlier server has left of its network could not be removed", error=str(error))

    def _is_held(self, name: str) -> bool:
        """Tell whether a process has a slot that nobody names: a machine whose record cannot be read, say."""
        try:
            held = is_there(name) and self._maker.is_held(name)
        except (TorporError, OSError) as error:
            _log.warning("a slot cannot be looked into", slot=name, error=str(error))
            return False
        if held:
            _log.warning("a slot that nobody names is used by a process; it is left alone", slot=name)
        return held

    async def settled(self) -> None:
        while self._works:
            await wait_ended(*self._works)

    async def aclose(self) -> None:
        """Remove what nobody uses; and if nobody uses anything any more, all that was changed on the host."""
        self._closed = True
        await self.settled()
        while self._ready:
            await self._ready.popleft().aclose()
        await self.settled()
        try:
            await asyncio.to_thread(self._leave_host)
        except (TorporError, OSError) as error:
            _log.error("what was changed in the host's network is still so", error=str(error))

    def _leave_host(self) -> None:
        if left := self._maker.left():
            _log.info("sandboxes that live on keep their network, but for names", slots=len(left))
        else:
            outside.remove(self._maker.digest)
