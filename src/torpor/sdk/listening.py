"""What can be said of the line to a command without waiting for it: what to ask for next, and how long to wait."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from torpor.errors import InvalidRequest
from torpor.model.ids import is_job_id
from torpor.sdk.http import STREAM_SILENCE_S, Call
from torpor.sdk.output import Output, Started
from torpor.wire.processes import SendSignal
from torpor.wire.public import ExecCommand

# To end a command whose caller was interrupted must not keep that one waiting.
KILL_SILENCE_S = 5.0
# The server gives a sign of life at least so often.
BEAT_S = 5.0
# A line that works is never silent for as long as this.
SHORTEST_SILENCE_S = BEAT_S + 2.0
# The server says something every BEAT_S, and a deadline is looked at then, or by a line that is cut to fit.
_CLOSE_ENOUGH_S = 1.0


@dataclass
class Listened:
    """One command as far as it was listened to: `stdout` and `stderr` count the bytes that have arrived.

    `path` is its sandbox's. It is named by its `id`, or has an `order`, which starts it under `key` where it does not
    run yet. `is_there`: the guest is known to have it, or to have had it. With `skips`, output that is not kept any
    more is passed over, and `has_gap` says that some was.
    """

    path: str
    order: ExecCommand | None = None
    id: str | None = None
    stdout: int = 0
    stderr: int = 0
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    is_there: bool = False
    skips: bool = True
    has_gap: bool = False

    @property
    def has_input(self) -> bool:
        """Whether the command may still wait for input that only a request with its order brings."""
        return self.order is not None and self.order.stdin_base64 is not None

    @property
    def process(self) -> str:
        """The path of the command as a process."""
        return f"{self.path}/processes/{self.id or f'key:{self.key}'}"

    def took(self, said: Output | Started) -> None:
        """Take in what has arrived."""
        self.is_there = True
        if isinstance(said, Started):
            return
        if said.stream == "stdout":
            self.stdout += len(said.data)
        else:
            self.stderr += len(said.data)

    def skip_to(self, stdout: int, stderr: int) -> bool:
        """Pass over what is before these offsets, which is not kept any more. Tell whether there was any."""
        is_behind = self.stdout < stdout or self.stderr < stderr
        self.stdout, self.stderr = max(self.stdout, stdout), max(self.stderr, stderr)
        self.has_gap = self.has_gap or is_behind
        return is_behind

    def call(self, silence_s: float = STREAM_SILENCE_S) -> Call:
        """Return the call that listens from where the last line broke.

        By its order as long as it is not known to be there, or it may want input: the server then finds what runs under
        the key, and runs nothing a second time. Else as a process, which starts nothing whatever became of the sandbox.
        """
        if self.order is not None and (self.has_input or not self.is_there):
            order = self.order.model_copy(update={"stdout_from": self.stdout, "stderr_from": self.stderr})
            content = order.model_dump_json(exclude_none=True).encode()
            headers = {"Idempotency-Key": self.key}
            return Call("POST", f"{self.path}/exec/stream", content=content, headers=headers, silence_s=silence_s)
        query = {"stdout_from": str(self.stdout), "stderr_from": str(self.stderr), "encoding": "base64"}
        # The line has a patience of its own.
        return Call("GET", f"{self.process}/stream", params=query, repeatable=False, silence_s=silence_s)

    def killing(self) -> Call:
        """Return the call that kills the command, and starts nothing. It is tried once, and not for long."""
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
