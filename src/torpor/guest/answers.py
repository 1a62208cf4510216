"""What a guest answers, read with distrust: whatever makes no sense is an OutcomeUnknown."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torpor.errors import OutcomeUnknown
from torpor.guest.calls import Call
from torpor.wire.public import FileEntry

# A line of a listing: a name and two paths at their longest, escaped.
_MAX_LINE = 256 * 1024
_MAX_HOOKS = 64
_Model = TypeVar("_Model", bound=BaseModel)


class Adopted(BaseModel):
    """What a guest confirms of its identity."""

    model_config = ConfigDict(strict=True)
    sandbox_id: str
    hostname: str
    generation: int
    wall_ns: int
    hooks: int = Field(ge=0, le=_MAX_HOOKS)


class Thawed(BaseModel):
    """What a guest says as its processes go on: its wall clock, in nanoseconds since 1970."""

    model_config = ConfigDict(strict=True)
    wall_ns: int


class HooksRan(BaseModel):
    """How many of the guest's hooks ran, and the names of those that failed."""

    model_config = ConfigDict(strict=True)
    ran: int = Field(ge=0, le=_MAX_HOOKS)
    failed: list[str] = Field(max_length=_MAX_HOOKS)


class Moved(BaseModel):
    """How many bytes a guest has read or written."""

    model_config = ConfigDict(strict=True)
    bytes: int = Field(ge=0)


async def chunks_of(call: Call, item: tuple[int, bytes] | None) -> AsyncGenerator[bytes, None]:
    """Yield what a file holds, `item` first, and check that nothing is missing."""
    received = 0
    while item is not None:
        received += len(item[1])
        yield item[1]
        item = await call.receive()
    if read(Moved, await call.result()).bytes != received:
        raise OutcomeUnknown("the guest sent another count of bytes than it says")


async def entries_of(call: Call, item: tuple[int, bytes] | None = None) -> AsyncGenerator[FileEntry, None]:
    """Yield a listing's entries; `item` is a piece of it that was received already."""
    async with aclosing(lines_of(call, item)) as lines:
        async for line in lines:
            yield read(FileEntry, line)


async def lines_of(call: Call, item: tuple[int, bytes] | None = None) -> AsyncGenerator[bytes, None]:
    """Yield the lines that a guest sends, each of a bounded length; `item` was received already."""
    held = b""
    item = item or await call.receive()
    while item is not None:
        *lines, held = (held + item[1]).split(b"\n")
        for line in lines:
            yield line
        if len(held) > _MAX_LINE:
            raise OutcomeUnknown("the guest's agent sent an entry that is too long")
        item = await call.receive()
    if held:
        raise OutcomeUnknown("the guest's agent broke off in the middle of an entry")


def read(model: type[_Model], value: dict[str, Any] | bytes) -> _Model:
    """Return an answer, a JSON object or its text, as what it has to be."""
    try:
        if isinstance(value, bytes):
            return model.model_validate_json(value, strict=True)
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise OutcomeUnknown("the guest's agent gave an answer that makes no sense") from error
