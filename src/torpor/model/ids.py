"""Typed identifiers. An id is safe as a file name, a host name label and a URL path segment."""

from __future__ import annotations

import re
import secrets
from typing import NewType

SandboxId = NewType("SandboxId", str)
SnapshotId = NewType("SnapshotId", str)
WorkspaceId = NewType("WorkspaceId", str)
TemplateName = NewType("TemplateName", str)

SANDBOX_ID = re.compile(r"sbx-[0-9a-z]{16}")
TEMPLATE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")

# No vowels and no look-alikes: ids are read aloud and never spell a word.
_ALPHABET = "0123456789bcdfghjkmnpqrstvwxz"


def new_sandbox_id() -> SandboxId:
    """Return a fresh sandbox id, `sbx-` and 16 random characters (about 78 bits)."""
    return SandboxId("sbx-" + "".join(secrets.choice(_ALPHABET) for _ in range(16)))


def is_sandbox_id(text: str) -> bool:
    """Tell whether `text` has the form of a sandbox id (not whether there is such a sandbox)."""
    return SANDBOX_ID.fullmatch(text) is not None


def is_template_name(text: str) -> bool:
    """Tell whether `text` may name a template: lower-case letters, digits, dot, dash, underscore, at most 63."""
    return TEMPLATE_NAME.fullmatch(text) is not None
