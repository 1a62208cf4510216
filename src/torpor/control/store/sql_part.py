"""What the parts of a store over SQLAlchemy stand on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]


class SqlPart(ABC):
    """One part of a store. The whole says how work is done in a transaction."""

    @abstractmethod
    async def _read(self, work: Work[T]) -> T:
        """Do what only reads."""

    @abstractmethod
    async def _write(self, work: Work[T]) -> T:
        """Do what has to be on the disk when it is done."""

    @abstractmethod
    async def _note(self, work: Work[T]) -> T:
        """Do what may be lost with the machine's power."""
