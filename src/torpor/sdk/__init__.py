"""What users import, here and as `torpor`: sync and async twins of the same calls.

`_async` is written by hand and `_sync` generated from it; what both share stands beside them.
"""

from torpor.sdk._async.client import AsyncClient
from torpor.sdk._async.code import AsyncCodeContext
from torpor.sdk._async.process import AsyncProcess
from torpor.sdk._async.pty import AsyncPty
from torpor.sdk._async.sandbox import AsyncSandbox
from torpor.sdk._async.snapshot import AsyncSnapshot
from torpor.sdk._sync.client import Client
from torpor.sdk._sync.code import CodeContext
from torpor.sdk._sync.process import Process
from torpor.sdk._sync.pty import Pty
from torpor.sdk._sync.sandbox import Sandbox
from torpor.sdk._sync.snapshot import Snapshot
from torpor.sdk.descent import Snapshots
from torpor.sdk.execution import Execution, Result
from torpor.sdk.exploring import Candidate, Exploration, Outcome
from torpor.sdk.output import Output
from torpor.sdk.results import (
    Denied,
    Event,
    ExecResult,
    FileEntry,
    NetworkInfo,
    Page,
    Port,
    ProcessInfo,
    SandboxInfo,
    Template,
    TemplateBuild,
    Transferred,
    Verified,
)
from torpor.sdk.retry import Retry
from torpor.sdk.thinking import Pause, Thought
from torpor.sdk.usage import SandboxUsage, Usage, UsageReport
from torpor.sdk.volumes import AttachedVolume, Volume
from torpor.wire.trees import Promoted

__all__ = [
    "AsyncClient",
    "AsyncCodeContext",
    "AsyncProcess",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AttachedVolume",
    "Candidate",
    "Client",
    "CodeContext",
    "Denied",
    "Event",
    "ExecResult",
    "Execution",
    "Exploration",
    "FileEntry",
    "NetworkInfo",
    "Outcome",
    "Output",
    "Page",
    "Pause",
    "Port",
    "Process",
    "ProcessInfo",
    "Promoted",
    "Pty",
    "Result",
    "Retry",
    "Sandbox",
    "SandboxInfo",
    "SandboxUsage",
    "Snapshot",
    "Snapshots",
    "Template",
    "TemplateBuild",
    "Thought",
    "Transferred",
    "Usage",
    "UsageReport",
    "Verified",
    "Volume",
]
