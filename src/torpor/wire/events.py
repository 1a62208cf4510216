"""The JSON of events: `/v1/events` and `/v1/sandboxes/{id}/events`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field


class EventView(BaseModel):
    """Something that happened. `cursor` is its place in their order; `data` depends on `type` (see docs/events.md)."""

    cursor: str
    at: datetime
    type: str
    sandbox_id: str
    data: dict[str, Any] = Field(default_factory=dict)


class EventPage(BaseModel):
    """Events, oldest first. `next_cursor`, given as `cursor`, asks for what comes after; there may be nothing yet."""

    items: list[EventView]
    next_cursor: str | None = None
