"""What the same work costs without Torpor, on the same machine in the same run: the least there is to pay."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from pathlib import Path

from torpor.bench.figures import Figure, Floor
from torpor.errors import Failed
from torpor.guest.client import Guest, connect
from torpor.host.choice import DriverChoice
from torpor.host.config import HostConfig
from torpor.host.hardware import hardware_of
from torpor.kit.files import DRAFT_PREFIX, clone
from torpor.model.identity import NOBODY
from torpor.model.ids import TemplateName
from torpor.storage.frozen import DISK, MEMORY, STATE
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import Templates
from torpor.vmm.driver import Driver, Machine, Place, Saved
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder

MIB = 1024 * 1024
_STARTS = 20
_CONNECT_S = 30.0
_SIZES = (1, 16, 64, 256)


class Floors:
    """The floors of one data directory and template. The start of the VMM is measured once, when it is first wanted."""

    def __init__(self, layout: Layout, template: str) -> None:
        self._layout, self._template = layout, TemplateName(template)

    def write(self, count: int) -> float:
        """Write `count` random bytes into a new file where snapshots are, and return the milliseconds until they are
        durable.
        """
        block = os.urandom(MIB)
        with _scratch(self._layout) as folder:
            started = time.perf_counter()
            with (folder / "plain").open("wb", buffering=0) as file:
                for _ in range(count // MIB):
                    file.write(block)
                file.write(block[: count % MIB])
                os.fsync(file.fileno())
            return (time.perf_counter() - started) * 1000

    @cached_property
    def vmm(self) -> Floor:
        """How long a VMM takes from process start to its monitor saying that the template's guest is loaded."""
        return Floor("VMM alone", tuple(asyncio.run(self._starts())))

    async def _starts(self) -> list[float]:
        driver = await self.driver(HostConfig.from_environment(self._layout.home))
        return [await self.start(driver) for _ in range(_STARTS)]

    async def driver(self, config: HostConfig) -> Driver:
        """Return the driver of a host agent that is configured so, on this data directory."""
        return await DriverChoice(config, self._layout)()

    async def start(self, driver: Driver) -> float:
        """Have a VMM load the template's guest and end, and return the milliseconds until it was loaded."""
        taken: list[float] = []
        async with self._loaded(driver, taken.append):
            return taken[0]

    @asynccontextmanager
    async def _loaded(self, driver: Driver, took: Callable[[float], None] = lambda _: None) -> AsyncIterator[Machine]:
        """Have a VMM load the template's guest, which stands still, and end after the block.

        `took` is given the milliseconds until it was loaded.
        """
        template = Templates(self._layout).open(self._template)
        with _scratch(self._layout) as folder:
            clone(template.folder / DISK, folder / DISK)
            hardware = hardware_of(Images(self._layout), template.template, folder / DISK)
            saved = Saved(template.folder / MEMORY, template.folder / STATE)
            started = time.perf_counter()
            machine = await driver.load(Place("bench", folder), hardware, saved)
            took((time.perf_counter() - started) * 1000)
            try:
                yield machine
            finally:
                await machine.aclose()

    def first_bytes(self, argv: list[str], rounds: int) -> list[float]:
        """Have the guest of a machine run a command so often, and return the milliseconds until each one's first
        output, over nothing but the guest's own channel.
        """
        return asyncio.run(self._first_bytes(argv, rounds))

    async def _first_bytes(self, argv: list[str], rounds: int) -> list[float]:
        driver = await self.driver(HostConfig.from_environment(self._layout.home))
        async with self._loaded(driver) as machine:
            await machine.resume()
            async with await connect(machine.open_channel(), timeout_s=_CONNECT_S) as guest:
                await guest.adopt(NOBODY)
                await _first_byte(guest, argv)
                return [await _first_byte(guest, argv) for _ in range(rounds)]

    def figures(self, rounds: int) -> Iterator[Figure]:
        """Measure the floors for themselves."""
        start = self.vmm
        yield Figure("floor-vmm", f"{start.title}: process start to state loaded", "ms", start.values)
        for size in _SIZES:
            values = tuple(self.write(size * MIB) for _ in range(rounds))
            yield Figure(f"floor-write-{size}", f"plain write + fsync, {size} MiB", "ms", values, at=float(size))


@contextmanager
def _scratch(layout: Layout) -> Iterator[Path]:
    """Yield a new folder on the file system of snapshots; a server's start removes one that a crash has left."""
    with tempfile.TemporaryDirectory(prefix=f"{DRAFT_PREFIX}bench-", dir=layout.snapshots) as folder:
        yield Path(folder)


async def _first_byte(guest: Guest, argv: list[str]) -> float:
    started, first = time.perf_counter(), None
    async with guest.exec(ExecOrder(argv=argv)) as frames:
        async for kind, _ in frames:
            if kind is Kind.STDOUT and first is None:
                first = (time.perf_counter() - started) * 1000
    if first is None:
        raise Failed("a command that writes has written nothing")
    return first
