"""Typed identifiers. An id is safe as a file name, a host name label and a URL path segment."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NewType

SandboxId = NewType("SandboxId", str)
SnapshotId = NewType("SnapshotId", str)
JobId = NewType("JobId", str)
BuildId = NewType("BuildId", str)
VolumeId = NewType("VolumeId", str)
WorkspaceId = NewType("WorkspaceId", str)
TemplateName = NewType("TemplateName", str)

SANDBOX_ID = re.compile(r"sbx-[0-9a-z]{16}")
SNAPSHOT_ID = re.compile(r"snp-[0-9a-z]{16}")
JOB_ID = re.compile(r"(?:job|ctx)-[0-9a-z]{16}")
CONTEXT_ID = re.compile(r"ctx-[0-9a-z]{16}")
BUILD_ID = re.compile(r"bld-[0-9a-z]{16}")
VOLUME_ID = re.compile(r"vol-[0-9a-z]{16}")
TEMPLATE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")

# No vowels and no look-alikes: ids are read aloud and never spell a word.
_ALPHABET = "0123456789bcdfghjkmnpqrstvwxz"
_LENGTH = 16


def new_sandbox_id() -> SandboxId:
    """Return a fresh sandbox id, `sbx-` and 16 random characters (about 78 bits)."""
    return SandboxId("sbx-" + _random())


def new_snapshot_id() -> SnapshotId:
    """Return a fresh snapshot id, `snp-` and 16 random characters (about 78 bits)."""
    return SnapshotId("snp-" + _random())


def new_job_id() -> JobId:
    """Return a fresh job id, `job-` and 16 random characters (about 78 bits)."""
    return JobId("job-" + _random())


def new_build_id() -> BuildId:
    """Return a fresh build id, `bld-` and 16 random characters (about 78 bits)."""
    return BuildId("bld-" + _random())


def new_volume_id() -> VolumeId:
    """Return a fresh volume id, `vol-` and 16 random characters (about 78 bits)."""
    return VolumeId("vol-" + _random())


def sandbox_id_from(*origin: str) -> SandboxId:
    """Return the sandbox id that belongs to `origin`: the same words always give the same id."""
    return SandboxId("sbx-" + _derived(origin))


def sibling_id(first: SandboxId, number: int) -> SandboxId:
    """Return the id of the child `number` (1 and up) that is made together with the first child of a fork."""
    return sandbox_id_from(first, str(number))


def snapshot_id_from(*origin: str) -> SnapshotId:
    """Return the snapshot id that belongs to `origin`: the same words always give the same id."""
    return SnapshotId("snp-" + _derived(origin))


def job_id_from(*origin: str) -> JobId:
    """Return the job id that belongs to `origin`: the same words always give the same id."""
    return JobId("job-" + _derived(origin))


def new_context_id() -> JobId:
    """Return a fresh id of a code context, which is a job: `ctx-` and 16 random characters (about 78 bits)."""
    return JobId("ctx-" + _random())


def context_id_from(*origin: str) -> JobId:
    """Return the id of a code context that belongs to `origin`: the same words always give the same id."""
    return JobId("ctx-" + _derived(origin))


def _random() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def _derived(origin: tuple[str, ...]) -> str:
    # Each word's length goes in, so that ("ab", "c") and ("a", "bc") differ.
    told = "".join(f"{len(word)}:{word}" for word in origin)
    number = int.from_bytes(hashlib.sha256(told.encode()).digest(), "big")
    letters = []
    for _ in range(_LENGTH):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)


def is_sandbox_id(text: str) -> bool:
    """Tell whether `text` has the form of a sandbox id (not whether there is such a sandbox)."""
    return SANDBOX_ID.fullmatch(text) is not None


def is_snapshot_id(text: str) -> bool:
    """Tell whether `text` has the form of a snapshot id (not whether there is such a snapshot)."""
    return SNAPSHOT_ID.fullmatch(text) is not None


def is_job_id(text: str) -> bool:
    """Tell whether `text` has the form of a job id (not whether there is such a job)."""
    return JOB_ID.fullmatch(text) is not None


def is_context_id(text: str) -> bool:
    """Tell whether `text` has the form of the id of a job that is a code context's interpreter."""
    return CONTEXT_ID.fullmatch(text) is not None


def is_build_id(text: str) -> bool:
    """Tell whether `text` has the form of a build's id (not whether there is such a build)."""
    return BUILD_ID.fullmatch(text) is not None


def is_volume_id(text: str) -> bool:
    """Tell whether `text` has the form of a volume's id (not whether there is such a volume)."""
    return VOLUME_ID.fullmatch(text) is not None


def is_template_name(text: str) -> bool:
    """Tell whether `text` may name a template: lower-case letters, digits, dot, dash, underscore, at most 63."""
    return TEMPLATE_NAME.fullmatch(text) is not None
