"""The console of a sandbox's machine, followed as it grows."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator

from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, show
from torpor.errors import NotFound, SandboxLost, Unavailable
from torpor.model.lifecycle import State

# How often it is looked at, in seconds.
LOOK_S = 1.0
# A longer line is told in pieces, each at most so many characters.
MOST_LINE = 16 * 1024


async def follow_console(plane: Plane, owned: Owned) -> AsyncGenerator[str, None]:
    """Yield the lines of a console, without their ends, those that are kept first; ends when the sandbox is deleted.

    It is neither woken by that nor used. A sandbox that went back to a snapshot has a console of its own again, which
    is told from its beginning. Raises NotFound if there is none, at the first line.
    """
    await show(plane, owned)
    lines, position = _Lines(), ""
    while await _is_there(plane, owned):
        try:
            part = await plane.host.log_after(owned.id, position)
        except (NotFound, SandboxLost, Unavailable):  # it comes back, or the next look finds out what became of it
            pass
        else:
            position = part.position
            for line in lines.taken(part.data):
                yield line
        await plane.clock.sleep(LOOK_S)
    for line in lines.rest():
        yield line


async def _is_there(plane: Plane, owned: Owned) -> bool:
    sandbox = await plane.store.get(owned.id)
    return sandbox is not None and sandbox.state is not State.DELETED


class _Lines:
    """Makes lines of bytes, of which any may be cut anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def taken(self, data: bytes) -> list[str]:
        """Take bytes in, and return the lines that are whole."""
        *whole, self._held = (self._held + self._decoder.decode(data)).split("\n")
        while len(self._held) > MOST_LINE:
            whole.append(self._held[:MOST_LINE])
            self._held = self._held[MOST_LINE:]
        return [line[at : at + MOST_LINE].rstrip("\r") for line in whole for at in range(0, len(line) or 1, MOST_LINE)]

    def rest(self) -> list[str]:
        """Return what has no end yet."""
        return [self._held] if self._held else []
