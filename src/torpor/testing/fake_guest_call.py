"""A call under way in a guest that exists in memory only."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from torpor_guest import protocol

Request = dict[str, Any]


@dataclass
class UnderWay:
    """A call under way, as a guest's memory holds it: it is begun again from this, and looks as if it went on.

    `sent` bytes of each sub-channel have left already, and `credit` is left for it; `received` is all the input that
    came, for `returned` bytes of which credit went back. `connected`: READY was said. `answer` is
    there once only the answer has still to be sent.
    """

    request: Request
    credit: list[int] = field(default_factory=lambda: [0, protocol.WINDOW, protocol.WINDOW])
    sent: list[int] = field(default_factory=lambda: [0, 0, 0])
    received: bytes = b""
    returned: int = 0
    ended: bool = False
    connected: bool = False
    answer: tuple[int, Request] | None = None

    def dump(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "received": base64.b64encode(self.received).decode()}

    @classmethod
    def load(cls, values: dict[str, Any]) -> UnderWay:
        """Return what was dumped."""
        answer = values["answer"]
        received = base64.b64decode(values["received"])
        return cls(**{**values, "received": received, "answer": None if answer is None else tuple(answer)})
