"""QEMU's monitor protocol behind one small class; the only place that knows the QMP library."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import Any

from qemu.qmp import EventListener, ExecuteError, QMPClient, QMPError

from torpor.kit.race import Overtaken, race
from torpor.kit.shielded import shielded
from torpor.kit.sockets import connect_to
from torpor.vmm.qemu.argv import bay_node, content_node

# The library reports every lost connection at warning level; a machine's end is no news to whoever closes it.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)


# QEMU lets only a few wait to be accepted, those who gave up included, and nothing tells when there is room again.
_AGAIN_S = 0.05


class MonitorLost(Exception):
    """QEMU did not answer: its process has ended, or its monitor is closed."""


class MonitorRefused(Exception):
    """QEMU answered that it will not do it."""


class Monitor:
    """A connection to one QEMU process. Every method raises MonitorLost if that process is gone."""

    def __init__(self, client: QMPClient, line: socket.socket) -> None:
        self._client = client
        # The connection once more: what the library sends descriptors by is not there in every event loop.
        self._line = line

    @classmethod
    async def connect(cls, name: str, path: Path) -> Monitor:
        """Connect to a monitor's socket and wait for QEMU's greeting, however long that is: the caller bounds it."""
        client = QMPClient(name)
        sock = await _connected(path)
        line = sock.dup()
        try:
            await client.connect(sock)
        except BaseException as error:
            line.close()
            sock.close()
            if isinstance(error, QMPError | OSError | EOFError):
                raise MonitorLost(str(error)) from error
            raise
        return cls(client, line)

    async def execute(self, command: str, **arguments: object) -> Any:
        """Run one command and return its answer. Raises MonitorRefused with QEMU's words."""
        try:
            return await self._client.execute(command, arguments)
        except ExecuteError as error:
            raise MonitorRefused(f"{command}: {error}") from error
        except (QMPError, OSError, EOFError) as error:
            raise MonitorLost(f"{command}: {error}") from error

    async def save_state(self, descriptor: int) -> None:
        """Write the machine state to a file that is open for writing only, and that QEMU may not be able to open.

        Raises MonitorRefused if that fails.
        """
        lent = await self._lend(descriptor)
        try:
            # Despite its name it is generic: every device's state, without RAM. live=False: this machine goes on.
            await self.execute("xen-save-devices-state", filename=f"/dev/fdset/{lent}", live=False)
        finally:
            with contextlib.suppress(MonitorLost, MonitorRefused):
                await shielded(self.execute("remove-fd", **{"fdset-id": lent}))

    async def attach(self, bay: str, descriptor: int, size: int) -> None:
        """Let a bay show a file of so many bytes, which QEMU gets by a descriptor and keeps.

        What is loaded has its disks only once it has run. Raises MonitorRefused if that cannot be.
        """
        lent = await self._lend(descriptor)
        content = f"{bay}-content"
        await self.execute("blockdev-add", **content_node(content, f"/dev/fdset/{lent}"))
        await self.execute("blockdev-reopen", options=[bay_node(bay, content)])
        await self.execute("block_resize", **{"node-name": bay, "size": size})  # which tells the guest

    async def _lend(self, descriptor: int) -> int:
        """Give QEMU a descriptor, and return the number of the set that it has it in."""
        try:
            socket.send_fds(self._line, [b" "], [descriptor])  # which comes before the order that takes it
        except OSError as error:
            raise MonitorLost(f"no file could be given to QEMU: {error}") from error
        return int((await self.execute("add-fd"))["fdset-id"])

    async def load_state(self, descriptor: int) -> None:
        """Have a QEMU that waits for one load a machine state from a descriptor it inherited.

        Raises MonitorRefused if it does not fit; some of what does not fit makes QEMU end instead, which is
        MonitorLost.
        """
        events = {"capability": "events", "state": True}
        await self.execute("migrate-set-capabilities", capabilities=[events])
        # QEMU would tell a network of the machine's new place. There is nobody to tell at its tap, and the frames would
        # be counted as some that its guest had no right to send.
        await self.execute("migrate-set-parameters", **{"announce-rounds": 0})
        with self._client.listener("MIGRATION") as progress:
            await self.execute("migrate-incoming", uri=f"fd:{descriptor}")
            while (status := await self._next(progress)) != "completed":
                if status == "failed":
                    raise MonitorRefused("the machine state does not fit")

    async def _next(self, events: EventListener) -> str:
        """Return the status that the next event tells of."""
        try:
            event: Any = await race(events.get(), self._client.runstate_changed())
        except Overtaken as error:
            raise MonitorLost("QEMU ended") from error
        return str(event["data"]["status"])

    async def close(self) -> None:
        """Close the connection; what QEMU does is not touched.

        Idempotent, never raises for a connection already lost.
        """
        self._line.close()
        with contextlib.suppress(QMPError, OSError, EOFError):
            await shielded(self._client.disconnect())


async def _connected(path: Path) -> socket.socket:
    """Return a socket connected to a monitor, as soon as that has room for one more."""
    while True:
        try:
            return connect_to(path)
        except BlockingIOError:
            await asyncio.sleep(_AGAIN_S)
