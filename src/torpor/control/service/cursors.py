"""Cursors: opaque texts that stand for a place in a listing."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from torpor.control.store.contract import Position, SnapshotRecord
from torpor.errors import InvalidRequest
from torpor.model.sandbox import Sandbox

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def cursor_after(one: Sandbox | SnapshotRecord) -> str:
    """Return the opaque text that stands for the place right after a sandbox or a snapshot."""
    micros = (one.created_at - _EPOCH) // timedelta(microseconds=1)
    return base64.urlsafe_b64encode(f"{micros}:{one.id}".encode()).decode().rstrip("=")


def position_of(cursor: str) -> Position:
    """Return the place a cursor stands for. Raises InvalidRequest if it is none of ours."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        micros, _, last = text.partition(":")
        moment = _EPOCH + timedelta(microseconds=int(micros))
    except (ValueError, OverflowError) as error:
        raise InvalidRequest("cursor is not one that a listing returned") from error
    return Position(moment, last)
