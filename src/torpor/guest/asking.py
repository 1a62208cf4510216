"""Asking a guest's agent: calls on its channel, each closed by whoever began it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from torpor.guest.calls import Call
from torpor.guest.channel import Channel


class Asking:
    """What the parts of a guest's client have in common."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._call(request) as call:
            return await call.result()

    @asynccontextmanager
    async def _call(self, request: dict[str, Any], *, connects: bool = False) -> AsyncIterator[Call]:
        call = await self._channel.call(request, connects=connects)
        try:
            yield call
        finally:
            await call.aclose()
