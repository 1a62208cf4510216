"""What users import, here and as `torpor`: sync and async twins of the same calls.

`_async` is written by hand and `_sync` generated from it; what both share stands beside them.
"""

from torpor.sdk._async.client import AsyncClient
from torpor.sdk._async.process import AsyncProcess
from torpor.sdk._async.sandbox import AsyncSandbox
from torpor.sdk._async.snapshot import AsyncSnapshot
from torpor.sdk._sync.client import Client
from torpor.sdk._sync.process import Process
from torpor.sdk._sync.sandbox import Sandbox
from torpor.sdk._sync.snapshot import Snapshot
from torpor.sdk.descent import Snapshots
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
    Transferred,
    Verified,
)
from torpor.sdk.retry import Retry
from torpor.sdk.thinking import Pause, Thought
from torpor.sdk.usage import SandboxUsage, Usage, UsageReport

__all__ = [
    "AsyncClient",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSnapshot",
    "Client",
    "Denied",
    "Event",
    "ExecResult",
    "FileEntry",
    "NetworkInfo",
    "Output",
    "Page",
    "Pause",
    "Port",
    "Process",
    "ProcessInfo",
    "Retry",
    "Sandbox",
    "SandboxInfo",
    "SandboxUsage",
    "Snapshot",
    "Snapshots",
    "Template",
    "Thought",
    "Transferred",
    "Usage",
    "UsageReport",
    "Verified",
]
