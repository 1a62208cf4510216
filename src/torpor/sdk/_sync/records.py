"""What the server keeps account of: usage and events."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from torpor.errors import OutcomeUnknown, TorporError
from torpor.sdk.http import STREAM_SILENCE_S, Call, Query
from torpor.sdk.listening import BEAT_S
from torpor.sdk.orders import event_query, filters, period
from torpor.sdk.results import Event
from torpor.sdk.retry import Reattaching
from torpor.sdk.sse import EventReader, Unreadable
from torpor.sdk.usage import SandboxUsage, UsageReport
from torpor.sdk.waiting import sync_sleep
from torpor.wire import usage as wire
from torpor.wire.events import EventPage

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client


def sandbox_usage(client: Client, sandbox_id: str, since: datetime | None, until: datetime | None) -> SandboxUsage:
    """Return what one sandbox used, also one that was deleted."""
    call = Call("GET", f"/sandboxes/{sandbox_id}/usage", params=period(since, until))
    return SandboxUsage.of(client.fetch_as(wire.SandboxUsage, call))


def usage(
    client: Client, metadata: Mapping[str, str] | None, since: datetime | None, until: datetime | None
) -> UsageReport:
    """Return what all sandboxes with these labels used."""
    call = Call("GET", "/usage", params=filters(metadata) | period(since, until))
    return UsageReport.of(client.fetch_as(wire.UsageReport, call))


def usage_csv(
    client: Client, metadata: Mapping[str, str] | None, since: datetime | None, until: datetime | None
) -> str:
    """Return the same as a table in CSV."""
    call = Call("GET", "/usage", params=filters(metadata) | period(since, until) | {"format": "csv"})
    return (client.fetch(call)).decode()


def events(
    client: Client, path: str, cursor: str | None, *, follow: bool, types: Sequence[str]
) -> Generator[Event, None]:
    """Yield events after `cursor`, oldest first, to the last there is, or with `follow` for ever."""
    if follow:
        for event in _followed(client, path, cursor, types):
            yield event
        return
    while True:
        page = client.fetch_as(EventPage, Call("GET", path, params=event_query(cursor, types)))
        for event in page.items:
            yield event
        if not page.items or page.next_cursor is None:
            return
        cursor = page.next_cursor


def _followed(client: Client, path: str, cursor: str | None, types: Sequence[str]) -> Generator[Event, None]:
    patience = Reattaching(client.retry)
    while True:
        try:
            query = event_query(cursor, types, follow=True)
            with closing(_heard(client, path, query, patience)) as arriving:
                for event in arriving:
                    cursor = event.cursor
                    yield event
            # A server that stops ends the stream in good order; one that does nothing else is not asked for ever.
            error: TorporError = OutcomeUnknown("the server ended the stream of events")
        except Unreadable as failure:
            raise failure.told() from failure
        except TorporError as failure:
            error = failure
        sync_sleep(patience.wait_s(error))


def _heard(client: Client, path: str, query: Query, patience: Reattaching) -> Generator[Event, None]:
    """Yield the events that one connection brings."""
    response = client.open(Call("GET", path, params=query, repeatable=False, silence_s=STREAM_SILENCE_S))
    patience.opened()
    opened = time.monotonic()
    try:
        reader = EventReader()
        for chunk in client.chunks(response):
            # For hours nothing may happen, and then that the line holds is all it can show.
            if time.monotonic() - opened > BEAT_S:
                patience.progress()
            for told in reader.feed(chunk):
                patience.progress()
                yield _happened(told.data)
    finally:
        response.close()


def _happened(data: bytes) -> Event:
    try:
        return Event.model_validate_json(data)
    except ValidationError as error:
        raise Unreadable from error
