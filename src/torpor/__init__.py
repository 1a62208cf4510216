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
    BuildFailed,
    Busy,
    CommandFailed,
    Conflict,
    ExecTimeout,
    ExploreFailed,
    Failed,
    Forbidden,
    FreezeFailed,
    HostUnreachable,
    InterpreterLost,
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
    TooLarge,
    TorporError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from torpor.sdk import (
        AsyncClient,
        AsyncCodeContext,
        AsyncProcess,
        AsyncPty,
        AsyncSandbox,
        AsyncSnapshot,
        AttachedVolume,
        Candidate,
        Client,
        CodeContext,
        Denied,
        Event,
        ExecResult,
        Execution,
        Exploration,
        FileEntry,
        NetworkInfo,
        Outcome,
        Output,
        Page,
        Pause,
        Port,
        Process,
        ProcessInfo,
        Promoted,
        Pty,
        Result,
        Retry,
        Sandbox,
        SandboxInfo,
        SandboxUsage,
        Snapshot,
        Snapshots,
        Template,
        TemplateBuild,
        Thought,
        Transferred,
        Usage,
        UsageReport,
        Verified,
        Volume,
    )

__all__ = [
    "AsyncClient",
    "AsyncCodeContext",
    "AsyncProcess",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AttachedVolume",
    "BadAnswer",
    "BootFailed",
    "BuildFailed",
    "Busy",
    "Candidate",
    "Client",
    "CodeContext",
    "CommandFailed",
    "Conflict",
    "Denied",
    "Event",
    "ExecResult",
    "ExecTimeout",
    "Execution",
    "Exploration",
    "ExploreFailed",
    "Failed",
    "FileEntry",
    "Forbidden",
    "FreezeFailed",
    "HostUnreachable",
    "InterpreterLost",
    "InvalidRequest",
    "NetworkInfo",
    "NoCapacity",
    "NotFound",
    "OutOfSpace",
    "Outcome",
    "OutcomeUnknown",
    "Output",
    "Page",
    "Pause",
    "Port",
    "PortClosed",
    "Process",
    "ProcessInfo",
    "Promoted",
    "Pty",
    "QuotaExceeded",
    "Refused",
    "RestoreFailed",
    "Result",
    "Retry",
    "Sandbox",
    "SandboxInfo",
    "SandboxLost",
    "SandboxUsage",
    "Snapshot",
    "SnapshotCorrupt",
    "Snapshots",
    "Template",
    "TemplateBuild",
    "Thought",
    "TooLarge",
    "TorporError",
    "Transferred",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "Usage",
    "UsageReport",
    "Verified",
    "Volume",
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
