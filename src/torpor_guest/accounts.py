"""Users and groups of the guest, and acting with their rights.

The files are read by hand: the interpreter's own C library knows nothing of the guest's name services.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from torpor_guest.refusal import Refusal, invalid

Stamp = tuple[int, int, int]


class Account(NamedTuple):
    """A user: ids, all groups (the first one too), home folder and shell."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: bytes
    shell: bytes


# The kernel takes this number for none.
_NOBODY = (1 << 32) - 1
_ROOT = Account("root", 0, 0, (0,), b"/root", b"/bin/sh")


class Accounts:
    """Looks users up in `etc`/passwd and `etc`/group, reading them again when they have changed."""

    def __init__(self, etc: str = "/etc") -> None:
        self._passwd = os.path.join(etc, "passwd")
        self._group = os.path.join(etc, "group")
        self._read_at: tuple[Stamp, Stamp] | None = None
        self._users: dict[str, Account] = {}
        self._names: dict[int, str] = {}
        self._group_names: dict[int, str] = {}

    def find(self, user: str | None) -> Account:
        """Return a user by name or by number (as text); None is root. Raises Refusal."""
        self.refresh()
        wanted = "root" if user is None else user
        account = self._users.get(wanted)
        if account is None and _is_id(wanted):
            account = self._users.get(self._names.get(int(wanted), ""))
        if account is None and wanted in ("root", "0"):
            account = _ROOT  # an image without /etc/passwd still has one
        if account is None:
            raise invalid(f"there is no user {wanted[:64]!r} in the sandbox")
        return account

    def of_image(self, text: str) -> Account:
        """Return a user as an image names it: by name or number, with `:group` if it is not to have its own groups.

        A number that is nobody's is a user all the same, in the group 0. Raises Refusal.
        """
        user, colon, group = text.partition(":")
        try:
            account = self.find(user)
        except Refusal:
            if not _is_number(user):
                raise
            account = Account(user, int(user), 0, (0,), b"/", b"/bin/sh")
        if not colon:
            return account
        gid = self._group_id(group)
        return account._replace(gid=gid, groups=(gid,))

    def _group_id(self, text: str) -> int:
        """Return a group's number by name or number. Raises Refusal."""
        self.refresh()
        for gid, name in self._group_names.items():
            if name == text:
                return gid
        if not _is_number(text):
            raise invalid(f"there is no group {text[:64]!r} in the sandbox")
        return int(text)

    def user_name(self, uid: int) -> str:
        """Return a user's name, or the number where it has none."""
        return self._names.get(uid) or str(uid)

    def group_name(self, gid: int) -> str:
        """Return a group's name, or the number where it has none."""
        return self._group_names.get(gid) or str(gid)

    def refresh(self) -> None:
        """Read the files if they have changed; before a run of `user_name` and `group_name`."""
        stamps = (_stamp(self._passwd), _stamp(self._group))
        if stamps == self._read_at:
            return
        groups = list(_entries(self._group, 4))
        members: dict[str, list[int]] = {}
        self._group_names = {}
        for name, _, gid, who in groups:
            if _is_id(gid):
                self._group_names.setdefault(int(gid), name)
                for member in filter(None, who.split(",")):
                    members.setdefault(member, []).append(int(gid))
        self._users, self._names = {}, {}
        for name, _, uid, gid, _, home, shell in _entries(self._passwd, 7):
            if _is_id(uid) and _is_id(gid):
                extra = tuple(sorted({int(gid), *members.get(name, ())}))
                account = Account(name, int(uid), int(gid), extra, _raw(home) or b"/", _raw(shell) or b"/bin/sh")
                self._users.setdefault(name, account)
                self._names.setdefault(int(uid), name)
        self._read_at = stamps


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _is_number(text: str) -> bool:
    """Tell whether a text is a number that a user or a group can have."""
    return _is_id(text) and int(text) < _NOBODY


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _entries(path: str, fields: int) -> Iterator[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(4 * 1024 * 1024).splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(":")
        if len(parts) == fields:
            yield parts


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def being(account: Account) -> AbstractContextManager[None]:
    """Be the user while a child is made that is to stay so: real and effective ids are his, the saved ones are kept.

    The child becomes wholly his by its exec, which overwrites the saved ids and drops all capabilities. So it can be
    made by vfork, which the interpreter refuses where the child itself would have to change ids.
    """
    return acting(account) if account.uid == 0 or os.geteuid() != 0 else _being(account)


@contextmanager
def _being(account: Account) -> Iterator[None]:
    gid, groups = os.getgid(), os.getgroups()
    try:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, gid)
        os.setresuid(account.uid, account.uid, 0)
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(gid, gid, gid)
        os.setgroups(groups)


def acting(account: Account) -> AbstractContextManager[None]:
    """Make the block's system calls with the user's rights. The process has one thread, so nobody else is affected.

    Only the effective ids change: the user can neither signal nor trace this process meanwhile. Raises Refusal if that
    cannot be.
    """
    own = os.geteuid()
    if account.uid == own:
        return _AS_IT_IS
    if own != 0:
        raise Refusal("unsupported", "the agent does not run as root, so it cannot act as another user")
    return _acting(account, own)


# Root acts as itself in nearly every call, so that is to cost nothing.
_AS_IT_IS = nullcontext()


@contextmanager
def _acting(account: Account, own: int) -> Iterator[None]:
    gid, groups = os.getegid(), os.getgroups()
    try:
        os.setgroups(account.groups)
        os.setegid(account.gid)
        os.seteuid(account.uid)
        yield
    finally:
        os.seteuid(own)
        os.setegid(gid)
        os.setgroups(groups)
