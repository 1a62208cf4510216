"""Who may do what: keys, the workspaces they belong to, and what is kept of what they did."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from torpor.model.ids import WorkspaceId

# As a host name label, so that it can stand in one.
WORKSPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
# So much of a key is shown, and names it: `tpr_` and eight characters, which leave 208 bits unknown.
SHOWN_CHARACTERS = 12


class Role(StrEnum):
    """What a key is for.

    A `member` works in its own workspace and makes keys for it. An `admin` may also make keys for any workspace, remove
    templates, and read what was done in all of them.
    """

    MEMBER = "member"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is kept: never the key itself, only its SHA-256 (`digest`, in hexadecimal).

    `prefix`: its first characters, which are shown. `made_by`: the prefix of the key that asked for it. Times are None
    for never.
    """

    id: str
    workspace: WorkspaceId
    name: str
    prefix: str
    digest: str
    role: Role
    created_at: datetime
    made_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def is_over(self, now: datetime) -> bool:
        """Tell whether it opens nothing any more: revoked, or past its end."""
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is: the key it came with, as far as others need to know it. It never says the key."""

    key_id: str
    prefix: str
    workspace: WorkspaceId
    role: Role
    expires_at: datetime | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it may do what concerns more than its workspace."""
        return self.role is Role.ADMIN


class AuditKind(StrEnum):
    """What an entry of the audit log tells of.

    `change`: a change of what the server keeps. `use`: something done inside a sandbox: a command, a file, a process.
    `refused`: what was refused, and so changed nothing.
    """

    CHANGE = "change"
    USE = "use"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class NewAuditEntry:
    """Something that was asked for, to be kept in the audit log. It never holds a body, a query, or a key.

    `action`: method and route, such as `DELETE /v1/sandboxes/{id}`. `targets`: the ids that it was about, or made.
    `status`: the HTTP status that was answered; None: the answer could not be completed. `count`: how many such there
    were, where they are counted only. `key_id`, `key_prefix`, `workspace`: None where no key was known.
    """

    at: datetime
    kind: AuditKind
    request_id: str
    action: str
    client: str
    status: int | None
    targets: tuple[str, ...] = ()
    workspace: WorkspaceId | None = None
    key_id: str | None = None
    key_prefix: str | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(NewAuditEntry):
    """An entry of the audit log, with its `number`: later ones have larger numbers, and none is used twice."""

    number: int


def is_workspace_name(text: str) -> bool:
    """Tell whether `text` may name a workspace: lower-case letters, digits and dashes, at most 63."""
    return WORKSPACE.fullmatch(text) is not None
