"""`defaults`: what commands get that do not say it themselves, as an image's own settings have it.

It is told before the guest is frozen into a template, and so holds in every sandbox of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torpor_guest.accounts import Account, Accounts
from torpor_guest.connection import Stream
from torpor_guest.requests import Request


class Defaults(NamedTuple):
    """`env` is under everything else that a command is given. `cwd`: the folder to start in, if it can be entered.

    `user`: a name or a number, or either with `:group`; a number need not be anybody's. None: root.
    """

    env: Mapping[bytes, bytes] = {}
    cwd: bytes | None = None
    user: str | None = None

    def account(self, accounts: Accounts) -> Account:
        """Return whose rights commands get. Raises Refusal if there is no such user or group."""
        return accounts.find(None) if self.user is None else accounts.of_image(self.user)


class Setting:
    """Serves `defaults`. `put` takes them."""

    def __init__(self, accounts: Accounts, put: Callable[[Defaults], None]) -> None:
        self._accounts, self._put = accounts, put

    def serve(self, stream: Stream, request: Request) -> None:
        """`defaults` {env?, cwd?, user?}: RESULT {}. They take the place of all that was told before.

        Refused if there is no such user or group.
        """
        cwd = request.path("cwd") if request.optional_text("cwd") is not None else None
        defaults = Defaults(request.environment("env"), cwd, request.optional_text("user"))
        defaults.account(self._accounts)
        self._put(defaults)
        stream.result({})
