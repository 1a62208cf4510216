"""What can be said of the line to a command without waiting for it: what to ask for next, and how long to wait."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from torpor.errors import InvalidRequest
from torpor.model.ids import is_job_id
from torpor.sdk.http import STREAM_SILENCE_S, Call
from torpor.sdk.output import Output
from torpor.wire.processes import SendSignal
from torpor.wire.public import ExecCommand

# The answer to a command's stream says under which id it is found again.
ID_HEADER = "X-Process-Id"
# To end a command whose caller was interrupted must not keep that one waiting.
KILL_SILENCE_S = 5.0
# A line that has lived for longer than the server's beat has worked, also if the command said nothing.
BEAT_S = 5.0
# A line that works is never silent for as long as this.
SHORTEST_SILENCE_S = BEAT_S + 2.0
# The server says something every BEAT_S, and a deadline is looked at then, or by a line that is cut to fit.
_CLOSE_ENOUGH_S = 1.0


@dataclass
class Listened:
    """One command as far as it was listened to: `stdout` and `stderr` count the bytes that have arrived.

    `path` is its sandbox's. With an `order` it is started under `key` where it does not run yet. `id` is known from the
    first answer on.
    """

    path: str
    order: ExecCommand | None = None
    id: str | None = None
    stdout: int = 0
    stderr: int = 0
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def has_input(self) -> bool:
        """Whether the command may still wait for input that only a request with its order brings."""
        return self.order is not None and self.order.stdin_base64 is not None

    @property
    def process(self) -> str:
        """The path of the command as a process. Only where `id` is known."""
        return f"{self.path}/processes/{self.id}"

    def took(self, piece: Output) -> None:
        """Count a piece that has arrived."""
        if piece.stream == "stdout":
            self.stdout += len(piece.data)
        else:
            self.stderr += len(piece.data)

    def call(self, silence_s: float = STREAM_SILENCE_S) -> Call:
        """Return the call that listens from where the last line broke.

        By its order as long as its id is not known, or it may want input: the server then finds what runs under the
        key, and runs nothing a second time. Else by its id, which starts nothing whatever became of the sandbox.
        """
        if self.order is not None and (self.id is None or self.has_input):
            order = self.order.model_copy(update={"stdout_from": self.stdout, "stderr_from": self.stderr})
            content = order.model_dump_json(exclude_none=True).encode()
            headers = {"Idempotency-Key": self.key}
            return Call("POST", f"{self.path}/exec/stream", content=content, headers=headers, silence_s=silence_s)
        query = {"stdout_from": str(self.stdout), "stderr_from": str(self.stderr), "encoding": "base64"}
        # The line has a patience of its own.
        return Call("GET", f"{self.process}/stream", params=query, repeatable=False, silence_s=silence_s)

    def killing(self) -> Call:
        """Return the call that kills the command. It is tried once, and not for long."""
        content = SendSignal().model_dump_json().encode()
        return Call("POST", f"{self.process}/signal", content=content, silence_s=KILL_SILENCE_S, once=True)


def process_id(id: str) -> str:
    """Return `id` if it has the form of a process's id. Raises InvalidRequest otherwise."""
    if not isinstance(id, str) or not is_job_id(id):
        raise InvalidRequest(f"{id!r} is not the id of a process", hint="`torpor ps ID` shows the ids")
    return id


class Deadline:
    """The moment until which a caller wants to wait (None: for ever)."""

    def __init__(self, timeout_s: float | None) -> None:
        self._ends = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return how long it is until then, in seconds; never less than 0."""
        return float("inf") if self._ends is None else max(0.0, self._ends - time.monotonic())

    def silence_s(self) -> float:
        """Return how long a line that is opened now may stay silent."""
        return max(0.05, min(STREAM_SILENCE_S, self.left_s()))

    def cuts(self, silence_s: float) -> bool:
        """Tell whether a line that may stay silent for `silence_s` could overlook it."""
        return self.left_s() < BEAT_S and silence_s - self.left_s() > _CLOSE_ENOUGH_S

    def has_passed(self) -> bool:
        """Tell whether it lies behind."""
        return self.left_s() == 0.0
