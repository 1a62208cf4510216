"""deadline: when a sandbox's machine ends at the latest, though nobody lives who would end it."""

from __future__ import annotations

from torpor.errors import Failed
from torpor.host.host import Host
from torpor.host.record import write_deadline
from torpor.host.trouble import translated
from torpor.model.ids import SandboxId


async def set_deadline(host: Host, sandbox: SandboxId, deadline: float | None) -> None:
    """Note a sandbox's deadline, in seconds since 1970 (None: never); one that sleeps has it when it wakes.

    One that is here is not waited for, whatever is done with it meanwhile: a rollback takes the deadline along. Raises
    NotFound, OutOfSpace, Failed if it cannot be noted: what was noted before holds then.
    """
    if host.live.whatever(sandbox) is None:
        async with host.live.lock(sandbox):  # it may be about to come to be
            _note(host, sandbox, deadline)
    else:
        _note(host, sandbox, deadline)


def _note(host: Host, sandbox: SandboxId, deadline: float | None) -> None:
    with translated(Failed, "the deadline was not noted"):
        write_deadline(host.live.place_of(sandbox).folder, deadline)
