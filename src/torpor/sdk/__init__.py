"""What users import, here and as `torpor`: sync and async twins of the same calls.

`_async` is written by hand and `_sync` generated from it; what both share stands beside them.
"""

from torpor.sdk._async.client import AsyncClient
from torpor.sdk._async.sandbox import AsyncSandbox
from torpor.sdk._async.snapshot import AsyncSnapshot
from torpor.sdk._sync.client import Client
from torpor.sdk._sync.sandbox import Sandbox
from torpor.sdk._sync.snapshot import Snapshot
from torpor.sdk.results import ExecResult, FileEntry, Page, SandboxInfo, Template, Transferred, Verified
from torpor.sdk.retry import Retry

__all__ = [
    "AsyncClient",
    "AsyncSandbox",
    "AsyncSnapshot",
    "Client",
    "ExecResult",
    "FileEntry",
    "Page",
    "Retry",
    "Sandbox",
    "SandboxInfo",
    "Snapshot",
    "Template",
    "Transferred",
    "Verified",
]
