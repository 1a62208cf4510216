"""Events: what happened to sandboxes, in pages, or followed as it happens. A deleted sandbox's stay readable."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import replace

import structlog

from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, known
from torpor.control.store.contract import Event, EventListing
from torpor.errors import InvalidRequest, TorporError
from torpor.model.ids import WorkspaceId

_log = structlog.get_logger("torpor.control")

# What stands for the place behind the newest event: only what happens from now on.
LATEST = "latest"
_NUMBER = re.compile(r"[0-9]{1,18}")


async def place_of(plane: Plane, cursor: str | None) -> int:
    """Return the number of the event that a cursor stands right behind. Raises InvalidRequest if it is none of ours."""
    if cursor is None:
        return 0
    if cursor == LATEST:
        await _flush(plane)
        return await plane.store.last_event()
    if _NUMBER.fullmatch(cursor) is None:
        raise InvalidRequest(f"cursor is not one that a listing of events returned, and not {LATEST!r}")
    return int(cursor)


async def owner_of(plane: Plane, owned: Owned) -> WorkspaceId:
    """Return whose a sandbox is, also of a deleted one. Raises NotFound as `known`."""
    return (await known(plane, owned)).workspace


async def page(plane: Plane, listing: EventListing) -> list[Event]:
    """Return a page of events, the earliest first, up to what was noted before the call, if that could be written."""
    await _flush(plane)
    return await plane.store.events(listing)


async def follow(plane: Plane, listing: EventListing) -> AsyncGenerator[Event, None]:
    """Yield the events behind `listing.after`, and then each that comes, for ever; none is left out or told twice."""
    while True:
        coming = plane.bells.news.coming  # taken before looking, so that nothing falls in between
        await _flush(plane)
        newest = await plane.store.last_event()
        found = await plane.store.events(listing)
        for event in found:
            yield event
        if len(found) == listing.limit:
            listing = replace(listing, after=found[-1].number)
            continue
        # What is of no type that is asked for has been seen, and need not be looked at again.
        seen = max(newest, listing.after, *(event.number for event in found[-1:]))
        listing = replace(listing, after=seen)
        if not found:
            await coming.wait()


async def _flush(plane: Plane) -> None:
    """Have written what was noted. What cannot be written is no reason not to read what is there."""
    try:
        await plane.noter.flush()
    except TorporError as error:
        _log.warning("events not written yet", error=error.message)
