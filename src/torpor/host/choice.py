"""Which driver runs this host's machines: decided once, when a machine is first wanted.

Not at start: the probe boots a guest's kernel, and the first kernel comes with the first template.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from torpor.errors import NotFound
from torpor.host.config import HostConfig
from torpor.host.containment import contain
from torpor.storage.layout import Layout
from torpor.vmm.driver import Driver
from torpor.vmm.qemu.driver import PROGRAM, QemuDriver, qemu_version
from torpor.vmm.qemu.jail import Jail
from torpor.vmm.qemu.probe import Verdict, accelerator_of, decide

# Returns the driver of this host's machines, always the same; raises Unsupported or NotFound if there can be none.
ChooseDriver = Callable[[], Awaitable[Driver]]

_log = structlog.get_logger(__name__)


class DriverChoice:
    """Chooses QEMU with KVM or emulation, and then always answers with the same driver. `jail`: its jail, once there is
    one.
    """

    def __init__(self, config: HostConfig, layout: Layout) -> None:
        self._config, self._layout = config, layout
        self._lock = asyncio.Lock()
        self._driver: QemuDriver | None = None
        self.jail: Jail | None = None

    async def __call__(self) -> Driver:
        """Return the driver.

        Raises Unsupported without a usable QEMU or what contains it, NotFound while there is no kernel to probe with.
        """
        async with self._lock:
            if self._driver is None:
                version = await qemu_version()
                contained = await contain(self._config.containment, self._layout, PROGRAM)
                verdict = await self._decide(version)
                _log.info("machines are run by QEMU", accelerator=verdict.accelerator, why=verdict.why, version=version)
                self.jail = contained.walls.jail
                accelerator = accelerator_of(verdict)
                self._driver = QemuDriver(accelerator, version, jail=self.jail, groups=contained.groups)
            return self._driver

    async def _decide(self, version: str) -> Verdict:
        kernel = newest_kernel(self._layout)
        memo = verdict_file(self._layout.home)
        return await decide(self._config.accelerator, PROGRAM, version, (kernel / "vmlinuz", kernel / "probe"), memo)


def verdict_file(home: Path) -> Path:
    """Return where the probe's verdict is remembered in a data directory."""
    return home / "accelerator.json"


def newest_kernel(layout: Layout) -> Path:
    """Return the folder of the newest kernel image. Raises NotFound if there is none yet."""
    kernels = sorted(layout.images.glob("kernel-*"), key=lambda path: path.stat().st_mtime)
    if not kernels:
        raise NotFound("there is no kernel for guests yet", hint="run `torpor template build base`")
    return kernels[-1]
