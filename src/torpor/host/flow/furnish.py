"""furnish: what a guest is given before it is frozen into a template: its commands' defaults, and its start command."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from torpor.errors import Failed, TorporError
from torpor.guest.client import Guest
from torpor.model.ids import JobId, job_id_from
from torpor.model.template import Defaults, Template
from torpor.wire.frames import Kind
from torpor.wire.host import JobOrder

# A start command that fails mostly does so soon.
_START_S = 5.0
_LAST_WORDS = 2000


async def furnish(guest: Guest, template: Template) -> None:
    """Tell a guest what its commands get, and start what is to run in it from the first moment on.

    Raises InvalidRequest if the guest has no such user, Failed.
    """
    defaults = template.defaults
    if defaults.cwd is not None:
        await guest.mkdir(defaults.cwd)
    if defaults != Defaults():
        await guest.set_defaults(defaults)
    if template.start:
        await guest.start(JobOrder(job=_job_of(template), argv=list(template.start)))
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S), guest.attach(_job_of(template)) as frames:
                async for _ in frames:
                    pass


async def check_start(guest: Guest, template: Template) -> None:
    """Raise Failed, with its last words, if the start command has ended with an error by now."""
    if not template.start:
        return
    outcome = (await guest.job(_job_of(template))).outcome
    if outcome is not None and outcome.exit_code != 0:
        said = await _last_words(guest, _job_of(template))
        raise Failed(f"the start command ended with code {outcome.exit_code}", hint=said or None)


async def _last_words(guest: Guest, job: JobId) -> str:
    kept = bytearray()
    with suppress(TorporError):  # what it said first may not be kept any more
        async with guest.attach(job) as frames:
            async for kind, payload in frames:
                if kind in {Kind.STDOUT, Kind.STDERR}:
                    kept += payload
                    del kept[:-_LAST_WORDS]
    return kept.decode(errors="replace").strip()


def _job_of(template: Template) -> JobId:
    return job_id_from("start", template.digest)
