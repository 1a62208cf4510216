"""Starting one process: in its control group from birth, in a session of its own, with nothing of the agent in it.

The interpreter's own fork_exec is used, not os.fork: it is a vfork, which copies no page tables (4 ms in an emulated
guest), and all of the child's part is C, but for what a terminal needs. Its signature is the interpreter's own
business: this one is that of 3.11 to 3.13, and a bake runs commands, so another one cannot go unnoticed.
"""

from __future__ import annotations

import _posixsubprocess
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torpor_guest.accounts import Account, acting, being
from torpor_guest.refusal import invalid, shown

_ROOT_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = b"/bin/sh"
_USER_PATH = b"/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"


class Order(NamedTuple):
    """What to start: `argv`, its whole environment, an existing folder, and whose rights it gets."""

    argv: list[bytes]
    env: Mapping[bytes, bytes]
    cwd: bytes
    account: Account


class Streams(NamedTuple):
    """The descriptors that become 0, 1 and 2 of the process."""

    stdin: int
    stdout: int
    stderr: int
    # Called in the process before its exec.
    prepare: Callable[[], None] | None = None


class CannotRun(Exception):
    """The program cannot be run.

    `code` is what a shell would return and `reason` what it would print after the name.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class _ExecFailed(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


def base_environment(account: Account) -> dict[bytes, bytes]:
    """Return what every command's environment starts from."""
    name = account.name.encode("utf-8", "surrogateescape")
    return {
        b"HOME": account.home,
        b"USER": name,
        b"LOGNAME": name,
        b"SHELL": account.shell,
        b"PATH": _ROOT_PATH if account.uid == 0 else _USER_PATH,
        b"LANG": b"C.UTF-8",
    }


def login_shell(account: Account) -> list[bytes]:
    """Return how a user's login shell is run; where he has none that may be used, that is bash, or else sh."""
    for shell in (account.shell, b"/bin/bash", b"/bin/sh"):
        if os.path.basename(shell) not in (b"nologin", b"false") and os.access(shell, os.X_OK):
            return [shell, b"-l"]
    raise invalid("the sandbox has no shell", hint="name a command")


def working_folder(cwd: bytes | None, account: Account, usual: bytes | None = None) -> bytes:
    """Return the folder to start in: `cwd`, which has to be there, or else the first of these that is: `usual`, the
    user's home, the root. Raises Refusal.
    """
    with acting(account):
        if cwd is not None:
            if problem := _why_not(cwd, account):
                raise invalid(f"cwd: {problem}")
            return cwd
        wanted = (account.home,) if usual is None else (usual, account.home)
        return next((folder for folder in wanted if not _why_not(folder, account)), b"/")


def _why_not(folder: bytes, account: Account) -> str:
    """Return why nothing can be started in a folder, as the user; nothing if it can."""
    try:
        usable = stat.S_ISDIR(os.stat(folder).st_mode) and os.access(folder, os.X_OK, effective_ids=True)
    except (OSError, ValueError):
        return f"there is no folder {shown(folder)} to run in"
    return "" if usable else f"{shown(folder)} is no folder that {account.name} may enter"


def start(order: Order, streams: Streams) -> int:
    """Start a process and return its id.

    Raises CannotRun, Refusal for its folder, or OSError if there is no room for it.
    """
    denied = False
    for program in _candidates(order):
        try:
            return _run_or_interpret(order, program, streams)
        except _ExecFailed as error:
            if error.number == errno.EACCES:
                denied = True  # another one on the PATH may be allowed, as execvp has it
            elif error.number not in (errno.ENOENT, errno.ENOTDIR):  # it vanished, or its interpreter is missing
                raise CannotRun(126, os.strerror(error.number).lower()) from error
    raise CannotRun(126, "permission denied") if denied else CannotRun(127, _why_missing(order.argv[0]))


def _why_missing(name: bytes) -> str:
    if name == _SHELL and not os.path.lexists(_SHELL):
        return "this sandbox has no shell; give the command as a list of words, which are run as they are"
    return "command not found"


def _run_or_interpret(order: Order, program: bytes, streams: Streams) -> int:
    try:
        return _run(order, program, order.argv, streams)
    except _ExecFailed as error:
        if error.number != errno.ENOEXEC:
            raise
    # A script without a first line that names its interpreter is the shell's.
    return _run(order, _SHELL, [_SHELL, program, *order.argv[1:]], streams)


def _candidates(order: Order) -> Iterator[bytes]:
    """Return the files that the command may mean, in order.

    Only existing ones: a failed exec costs more than a look.
    """
    name = order.argv[0]
    if b"/" in name:
        yield name
    elif name:
        for folder in order.env.get(b"PATH", b"").split(b":"):
            path = folder + b"/" + name
            if folder[:1] != b"/":  # os.path.join would do for both, and cost as much as the rest
                path = order.cwd + b"/" + path
            if _is_file(path):
                yield path


def _is_file(path: bytes) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def _run(order: Order, program: bytes, argv: Sequence[bytes], streams: Streams) -> int:
    """Fork and exec. Raises _ExecFailed, Refusal if the folder is gone, or OSError if nothing can be forked."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            with being(order.account):
                pid = _fork_exec(order, (program, argv), streams, (told, tell))
        finally:
            os.close(tell)
        report = os.read(told, 4096)
    finally:
        os.close(told)
    if not report:
        return pid
    os.waitpid(pid, 0)
    kind, number, where = report.split(b":", 2)
    if kind == b"SubprocessError":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    if where == b"noexec":
        raise invalid(f"cwd: there is no folder {shown(order.cwd)} to run in")
    raise _ExecFailed(int(number, 16))


def _fork_exec(
    order: Order,
    program: tuple[bytes, Sequence[bytes]],
    streams: Streams,
    report: tuple[int, int],
) -> int:
    """Call the interpreter's function. `report` is the pipe through which the child tells that it could not exec."""
    call: Callable[..., int] = _posixsubprocess.fork_exec
    return call(
        list(program[1]),
        (program[0],),
        False,  # close_fds: every descriptor of the agent is close-on-exec already
        (),
        order.cwd,
        [name + b"=" + value for name, value in order.env.items()],
        *(streams.stdin, -1, -1, streams.stdout, -1, streams.stderr, *report),
        True,  # signals that Python ignores are the default again
        True,  # a session of its own
        -1,
        *(None, None, None),  # ids: see `being`
        -1,
        streams.prepare,  # with one it is a fork, which copies page tables
        True,  # vfork, where it can
    )
