"""Torpor: one durable microVM per AI-agent run.

from torpor import Sandbox

with Sandbox.create(template="agent") as sbx:
    print(sbx.exec("uname -a").stdout)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torpor.errors import (
    BadAnswer,
    BootFailed,
    Busy,
    CommandFailed,
    Conflict,
    ExecTimeout,
    Failed,
    Forbidden,
    FreezeFailed,
    HostUnreachable,
    InvalidRequest,
    NoCapacity,
    NotFound,
    OutcomeUnknown,
    OutOfSpace,
    PortClosed,
    QuotaExceeded,
    Refused,
    RestoreFailed,
    SandboxLost,
    SnapshotCorrupt,
    TorporError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from torpor.sdk import (
        AsyncClient,
        AsyncProcess,
        AsyncSandbox,
        AsyncSnapshot,
        Client,
        Denied,
        Event,
        ExecResult,
        FileEntry,
        NetworkInfo,
        Output,
        Page,
        Pause,
        Port,
        Process,
        ProcessInfo,
        Retry,
        Sandbox,
        SandboxInfo,
        SandboxUsage,
        Snapshot,
        Snapshots,
        Template,
        Thought,
        Transferred,
        Usage,
        UsageReport,
        Verified,
    )

__all__ = [
    "AsyncClient",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSnapshot",
    "BadAnswer",
    "BootFailed",
    "Busy",
    "Client",
    "CommandFailed",
    "Conflict",
    "Denied",
    "Event",
    "ExecResult",
    "ExecTimeout",
    "Failed",
    "FileEntry",
    "Forbidden",
    "FreezeFailed",
    "HostUnreachable",
    "InvalidRequest",
    "NetworkInfo",
    "NoCapacity",
    "NotFound",
    "OutOfSpace",
    "OutcomeUnknown",
    "Output",
    "Page",
    "Pause",
    "Port",
    "PortClosed",
    "Process",
    "ProcessInfo",
    "QuotaExceeded",
    "Refused",
    "RestoreFailed",
    "Retry",
    "Sandbox",
    "SandboxInfo",
    "SandboxLost",
    "SandboxUsage",
    "Snapshot",
    "SnapshotCorrupt",
    "Snapshots",
    "Template",
    "Thought",
    "TorporError",
    "Transferred",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "Usage",
    "UsageReport",
    "Verified",
]


def __getattr__(name: str) -> object:
    # The SDK is loaded at first use: servers and `torpor --help` import this package too, and need no HTTP client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torpor.sdk  # noqa: PLC0415

    value: object = getattr(torpor.sdk, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
