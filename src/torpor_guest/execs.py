"""Starting commands: what was asked for, and what it takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torpor_guest import spawn
from torpor_guest.accounts import Accounts
from torpor_guest.cgroups import Cgroup, CgroupTree
from torpor_guest.defaults import Defaults
from torpor_guest.loop import Loop, Timer
from torpor_guest.reaper import Reaper
from torpor_guest.refusal import Refusal
from torpor_guest.requests import Request
from torpor_guest.sessions import Session
from torpor_guest.terminals import KIND, Size

# A command as it is shown to people, in characters.
_MAX_SHOWN = 500


class Wish(NamedTuple):
    """A command as it was asked for, its fields checked, and nothing yet looked up.

    `terminal`: the size of the one it is to have. With one `argv` may be empty: then it is the user's login shell.
    """

    argv: list[bytes]
    env: Mapping[bytes, bytes]
    cwd: bytes | None
    user: str | None
    timeout_s: float | None
    terminal: Size | None = None

    @classmethod
    def of(cls, request: Request) -> Wish:
        """Read it from a request. Raises Refusal if it makes no sense."""
        terminal = Size.wanted(request)
        return cls(
            [] if terminal is not None and request.is_empty("argv") else request.words("argv"),
            request.environment("env"),
            request.path("cwd") if request.optional_text("cwd") is not None else None,
            request.optional_text("user"),
            request.optional_seconds("timeout_s"),
            terminal,
        )

    def shown(self) -> str:
        """Return it as it is shown to people: a shell's script is what matters of its words."""
        if not self.argv:
            return "(login shell)"
        words = self.argv[2:] if self.argv[:2] == [b"/bin/sh", b"-c"] and len(self.argv) == 3 else self.argv
        return b" ".join(word[:_MAX_SHOWN] for word in words[:_MAX_SHOWN]).decode("utf-8", "replace")[:_MAX_SHOWN]


class Execs:
    """Starts commands. `tree` is None where there are no control groups; then a command is what its session holds.

    What every command gets, under what its request gives: `defaults`, over them `marks`, the sandbox's own variables
    and its id, and over these `secrets`. They are here and nowhere else in the guest, but for the environments of what
    was started with them. `loop` is the agent's, `null` an open /dev/null.
    """

    def __init__(self, loop: Loop, reaper: Reaper, accounts: Accounts, tree: CgroupTree | None) -> None:
        self.marks: dict[bytes, bytes] = {}
        self.secrets: dict[bytes, bytes] = {}
        self.defaults = Defaults()
        self.loop = loop
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._reaper, self._accounts, self._tree = reaper, accounts, tree

    def order_of(self, wish: Wish) -> spawn.Order:
        """Return what to start. Raises Refusal if there is no such user or folder, or nothing can be started now."""
        self.check_running()
        defaults = self.defaults
        account = defaults.account(self._accounts) if wish.user is None else self._accounts.find(wish.user)
        base = spawn.base_environment(account) | ({} if wish.terminal is None else {b"TERM": KIND})
        env = base | dict(defaults.env) | self.marks | self.secrets | dict(wish.env)
        argv = wish.argv or spawn.login_shell(account)
        return spawn.Order(argv, env, spawn.working_folder(wish.cwd, account, defaults.cwd), account)

    def mark(self, marks: Mapping[bytes, bytes], secrets: Mapping[bytes, bytes] | None) -> None:
        """Add variables for later commands, and put `secrets` in place of those there were, unless that is None."""
        self.marks.update(marks)
        if secrets is not None:
            self.secrets = dict(secrets)

    def set_defaults(self, defaults: Defaults) -> None:
        """Give later commands these, where they say nothing of their own."""
        self.defaults = defaults

    def freezing(self) -> bool:
        """Tell whether everything of the user's is stopped or about to: then nothing can be started.

        The agent passes through the group it starts a command in, so it would stop itself.
        """
        return self._tree is not None and self._tree.freezing()

    def check_running(self) -> None:
        """Raise Refusal if nothing can be started now."""
        if self.freezing():
            raise Refusal("busy", "the sandbox is being frozen; nothing can be started in it now")

    def order_of_root(self, argv: list[bytes], env: Mapping[bytes, bytes]) -> spawn.Order:
        """Return how root runs a program in the root folder, with `env` beside what every command gets."""
        root = self._accounts.find(None)
        given = spawn.base_environment(root) | self.marks | self.secrets | dict(env)
        return spawn.Order(argv, given, b"/", root)

    def start(self, order: spawn.Order, streams: spawn.Streams) -> tuple[int, Cgroup | Session]:
        """Start a process and return its id and what it can be killed by."""
        if self._tree is None:
            pid = spawn.start(order, streams)
            return pid, Session(pid)
        group = self._tree.take()
        try:
            return self._tree.start_in(group, lambda: spawn.start(order, streams)), group
        except BaseException:
            self._tree.give_back(group)
            raise

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once after `seconds`."""
        return self.loop.after(seconds, call)

    def expect(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended` once the process has ended."""
        self._reaper.expect(pid, ended)

    def retire(self, group: Cgroup | Session) -> None:
        """Remove a command's group as soon as it is empty, and make another ahead; after the answer is on its way."""

        def work() -> bool:
            if isinstance(group, Cgroup):
                group.remove_when_empty(self.loop)
            if self._tree is not None:
                self._tree.prepare()
            return False

        self.loop.step(work)
