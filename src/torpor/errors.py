"""The error tree. Errors are named for what the caller does next, and retry policy reads the branch, never the leaf.

TorporError
|- Refused            nothing happened; the request has to change
|    InvalidRequest  TooLarge  NotFound  Conflict  Unauthenticated  Forbidden  Misdirected  QuotaExceeded
|    OutOfSpace  Unsupported
|- Unavailable        nothing happened; the same request may work later or elsewhere
|    NoCapacity  HostUnreachable  Busy  RateLimited  PortClosed
|- Failed             it was tried and did not work; what was opened is closed again
|    BootFailed  RestoreFailed  FreezeFailed  SandboxLost  SnapshotCorrupt  ExecTimeout  CommandFailed
|    InterpreterLost
|    ExploreFailed  BuildFailed  BadAnswer
|- OutcomeUnknown     it was sent and the answer was lost; look before trying again

Foreign errors (OSError, QMP, HTTP) are translated once, at the contract where they appear, with the cause kept.
Cancellation is never wrapped. `torpor.wire.errors` maps each class to its code and HTTP status.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar


class TorporError(Exception):
    """Anything Torpor says went wrong.

    `message` is one sentence a person can act on, `code` is stable and made for programs, `hint` (may be None) says
    what mends it, `request_id` (may be None) finds the request in the server's log.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    # Seconds the server asked to wait before the next try, where it said so. Set by the client that heard it.
    retry_after_s: float | None = None

    def __init__(self, message: str, *, hint: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.request_id = request_id

    def details(self) -> dict[str, object]:
        """What this class carries beyond its message, as JSON values that `__init__` takes back by keyword."""
        return {}


# What classes of several branches carry is no class of the tree itself.
if TYPE_CHECKING:
    _Carrier = TorporError
else:
    _Carrier = object


class _WithOutput(_Carrier):
    """Carries what a command had written."""

    def __init__(
        self,
        message: str,
        *,
        stdout: str = "",
        stderr: str = "",
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.stdout = stdout
        self.stderr = stderr

    def details(self) -> dict[str, object]:
        return {"stdout": self.stdout, "stderr": self.stderr}


class _WithLimit(_Carrier):
    """Carries what there is too little of."""

    def __init__(
        self,
        message: str,
        *,
        resource: str | None = None,
        limit: int | None = None,
        used: int | None = None,
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.resource, self.limit, self.used = resource, limit, used

    def details(self) -> dict[str, object]:
        return {"resource": self.resource, "limit": self.limit, "used": self.used}


class Refused(TorporError):
    """Nothing happened; the request has to change."""

    code = "refused"


class InvalidRequest(Refused):
    """The request makes no sense as it stands: a wrong type, an empty command, a relative path."""

    code = "invalid_request"


class TooLarge(Refused):
    """More was sent than one request may bring; the message says the limit."""

    code = "too_large"


class NotFound(Refused):
    """No such sandbox, template, snapshot or file, or it belongs to somebody else."""

    code = "not_found"


class Conflict(Refused):
    """The thing is in a state in which this cannot be done.

    `seen` is that state, `needed` are the states that allow it.
    """

    code = "conflict"

    def __init__(
        self,
        message: str,
        *,
        seen: str | None = None,
        needed: Collection[str] = (),
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.seen = seen
        self.needed = tuple(needed)

    def details(self) -> dict[str, object]:
        return {"seen": self.seen, "needed": list(self.needed)}


class Unauthenticated(Refused):
    """No key, or one that is not known here."""

    code = "unauthenticated"


class Forbidden(Refused):
    """The caller, or the guest's user it acts as, may not do this."""

    code = "forbidden"


class Misdirected(Refused):
    """The request names another host than this server (its `Host` header), as a page that rebinds a name does."""

    code = "misdirected"


class QuotaExceeded(_WithLimit, Refused):
    """A limit the caller is held to is used up.

    `resource` is what there is too little of, such as "memory"; of `limit`, `used` is in use (bytes, or a count). None
    where that is not known.
    """

    code = "quota_exceeded"


class OutOfSpace(Refused):
    """The disk that the bytes were meant for is full: the sandbox's own, unless the message says the host's."""

    code = "out_of_space"


class Unsupported(Refused):
    """Well-formed, but this server or host cannot do it."""

    code = "unsupported"


class Unavailable(TorporError):
    """Nothing happened; the same request may work later or elsewhere."""

    code = "unavailable"
    retryable = True


class NoCapacity(_WithLimit, Unavailable):
    """The host has no room for another machine now.

    `resource` is what there is too little of, such as "memory"; of `limit`, `used` is in use (bytes, or a count). None
    where that is not known.
    """

    code = "no_capacity"


class HostUnreachable(Unavailable):
    """The server or the host agent could not be reached, and so received nothing."""

    code = "host_unreachable"


class Busy(Unavailable):
    """Another operation on the same thing has to end first."""

    code = "busy"


class RateLimited(Unavailable):
    """The caller asks more often than it may; `retry_after_s` says when there is room for one more request."""

    code = "rate_limited"


class PortClosed(Unavailable):
    """Nobody listens on the port in the sandbox."""

    code = "port_closed"


class Failed(TorporError):
    """It was tried and did not work; what was opened is closed again."""

    code = "failed"


class BootFailed(Failed):
    """A guest did not come up from a cold boot."""

    code = "boot_failed"


class RestoreFailed(Failed):
    """A snapshot did not come to life, or the guest did not take its new identity."""

    code = "restore_failed"


class FreezeFailed(Failed):
    """A running machine could not be written to disk; it runs on, or it is closed if the message says so."""

    code = "freeze_failed"


class SandboxLost(Failed):
    """The sandbox's machine is gone. `last_snapshot` is the newest snapshot it can be restored from, or None."""

    code = "sandbox_lost"

    def __init__(
        self,
        message: str,
        *,
        last_snapshot: str | None = None,
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.last_snapshot = last_snapshot

    def details(self) -> dict[str, object]:
        return {"last_snapshot": self.last_snapshot}


class SnapshotCorrupt(Failed):
    """A snapshot's bytes are not what its manifest says."""

    code = "snapshot_corrupt"


class ExecTimeout(_WithOutput, Failed):
    """A command outlasted its timeout and was killed with all its children.

    `stdout`, `stderr`: what it wrote before.
    """

    code = "exec_timeout"


class InterpreterLost(_WithOutput, Failed):
    """A code context's interpreter has ended, and its variables with it; another context can be made.

    `stdout`, `stderr`: what the cell wrote in which it ended; empty if that was an earlier one.
    """

    code = "interpreter_lost"


class CommandFailed(_WithOutput, Failed):
    """Raised only where the caller asked for it (`check=True`): the command ended with another code than 0."""

    code = "command_failed"

    def __init__(
        self,
        message: str,
        *,
        exit_code: int = 1,
        stdout: str = "",
        stderr: str = "",
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, stdout=stdout, stderr=stderr, hint=hint, request_id=request_id)
        self.exit_code = exit_code

    def details(self) -> dict[str, object]:
        return {"exit_code": self.exit_code, **super().details()}


class BuildFailed(Failed):
    """A template could not be made. `build_id` names the build, whose log says more."""

    code = "build_failed"

    def __init__(
        self,
        message: str,
        *,
        build_id: str | None = None,
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.build_id = build_id

    def details(self) -> dict[str, object]:
        return {"build_id": self.build_id}


class ExploreFailed(Failed):
    """No branch of an exploration could be the winner, and none is left. `outcomes` tells what each of them did."""

    code = "explore_failed"

    def __init__(
        self,
        message: str,
        *,
        outcomes: Sequence[Any] = (),
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, request_id=request_id)
        self.outcomes = tuple(outcomes)


class BadAnswer(Failed):
    """The server in the sandbox was reached, and what it answered is not HTTP, or it broke off before its answer."""

    code = "bad_answer"


class OutcomeUnknown(TorporError):
    """It was sent and the answer was lost, or the server failed in a way it does not know: look before trying again."""

    code = "outcome_unknown"
