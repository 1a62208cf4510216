"""Events: what happened to sandboxes, in pages, or followed as it happens. A deleted sandbox's stay readable."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import replace

from torpor.control.service.plane import Plane
from torpor.control.service.sandboxes import Owned, known
from torpor.control.store.contract import Event, EventListing
from torpor.errors import InvalidRequest
from torpor.model.ids import WorkspaceId

# What stands for the place behind the newest event: only what happens from now on.
LATEST = "latest"
_NUMBER = re.compile(r"[0-9]{1,18}")


async def place_of(plane: Plane, cursor: str | None) -> int:
    """Return the number of the event that a cursor stands right behind. Raises InvalidRequest if it is none of ours."""
    if cursor is None:
        return 0
    if cursor == LATEST:
        await plane.noter.flush()
        return await plane.store.last_event()
    if _NUMBER.fullmatch(cursor) is None:
        raise InvalidRequest(f"cursor is not one that a listing of events returned, and not {LATEST!r}")
    return int(cursor)


async def owner_of(plane: Plane, owned: Owned) -> WorkspaceId:
    """Return whose a sandbox is, also of a deleted one. Raises NotFound as `known`."""
    return (await known(plane, owned)).workspace


async def page(plane: Plane, listing: EventListing) -> list[Event]:
    """Return a page of events, the earliest first, up to what was noted before the call."""
    await plane.noter.flush()
    return await plane.store.events(listing)


async def follow(plane: Plane, listing: EventListing) -> AsyncGenerator[Event, None]:
    """Yield the events behind `listing.after`, and then each that comes, for ever; none is left out or told twice."""
    while True:
        coming = plane.bells.news.coming  # taken before looking, so that nothing falls in between
        found = await page(plane, listing)
        for event in found:
            yield event
        if found:
            listing = replace(listing, after=found[-1].number)
        else:
            await coming.wait()
