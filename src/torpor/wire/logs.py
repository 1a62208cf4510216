"""The JSON of a machine's console, as it is followed."""

from __future__ import annotations

from pydantic import Base64Bytes, BaseModel


class LogPart(BaseModel):
    """What a console has got after a position; with `position`, the next one is asked for.

    Only the newest is kept, so of a console that is written to faster than it is read, something may be missing.
    """

    position: str
    data: Base64Bytes


class LogLine(BaseModel):
    """One event of `GET .../logs?follow=true`: a line without its end."""

    line: str
