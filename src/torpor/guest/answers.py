"""What a guest answers, read with distrust: whatever makes no sense is an OutcomeUnknown."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torpor.errors import OutcomeUnknown
from torpor.guest.calls import Call
from torpor.wire.frames import Frame, Kind
from torpor.wire.host import ExecOutcome
from torpor.wire.public import FileEntry
from torpor_guest import protocol

# A line of a listing: a name and two paths at their longest, escaped.
_MAX_LINE = 256 * 1024
_SIGNAL = re.compile(r"SIG[A-Z0-9]{1,12}")
_MOST_CODE = 255
_KINDS = {protocol.OUTPUT: Kind.STDOUT, protocol.ERRORS: Kind.STDERR}
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


async def frames_of(call: Call) -> AsyncGenerator[Frame, None]:
    """Yield a command's frames, the last an EXIT."""
    while (item := await call.receive()) is not None:
        yield Frame(_KINDS[item[0]], item[1])
    outcome = read(ExecOutcome, await call.result())
    named = outcome.signal is None or _SIGNAL.fullmatch(outcome.signal) is not None
    if not (0 <= outcome.exit_code <= _MOST_CODE and outcome.duration_ms >= 0 and named):
        raise OutcomeUnknown("the guest's agent told of an end that no command can have")
    yield Frame(Kind.EXIT, outcome.model_dump_json().encode())


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
    held = b""
    item = item or await call.receive()
    while item is not None:
        *lines, held = (held + item[1]).split(b"\n")
        for line in lines:
            yield read(FileEntry, line)
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
