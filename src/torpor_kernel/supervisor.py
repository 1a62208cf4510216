"""The kernel's first process: takes orders, passes on what the interpreter says, and keeps the time.

It is a process of its own so that nothing that a cell does can keep it from that. It reads orders from its stdin, one
JSON object a line: `cell` (an id), `code`, `timeout_s` (may be null). An order may begin with an empty line, so that
one which was cut off before it cannot spoil it. It says on its stdout, one JSON object a line:

| kind | with | when |
|---|---|---|
| ready | python | orders are taken |
| taken | cell | an order has come in; what follows of that cell comes after it |
| again | cell, at | the cell came before; what is said of it begins at that offset of stdout, in bytes |
| full | cell | too many cells wait; it is forgotten |
| stdout, stderr | cell, text | the cell, or what it has begun, wrote |
| result | cell, data | a bundle of texts by MIME type |
| done | cell, number, exit, error, error_name, truncated, duration_ms, timed_out, ended | the cell is over |

`ended`: the cell did not heed an interrupt after its timeout, so the interpreter was killed. When the interpreter is
gone, so is the supervisor, with its exit code, or 128 and the number of the signal.

On its stderr it writes one byte when it begins to work, and one when it rests: an even number of bytes is rest. SIGINT
interrupts the cell that runs, and is nothing where none does; SIGTERM ends all of it.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import selectors
import signal
import struct
import sys
import termios
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from torpor_kernel.child import Child, fork, kill_group, out_of_the_way
from torpor_kernel.display import MOST_BUNDLE

_LENGTH = struct.Struct(">I")
_CHUNK = 64 * 1024
# A line, or a message of the interpreter's, of more is no order, or breaks its rules.
_MOST_ORDER = 8 * 1024 * 1024
_MOST_SAID = MOST_BUNDLE + 1024 * 1024
# With so much on its way out, the interpreter is not read any more, and has to wait.
_MOST_WAITING = 1024 * 1024
_MOST_CELLS = 64
_REMEMBERED = 256
# What is written between two cells is the next one's, and of that the end.
_MOST_BETWEEN = 16 * 1024
# A cell that is interrupted for its timeout may take so long to end, in seconds.
_GRACE_S = 5.0


class Cell:
    """One cell that waits or runs."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.id: str = order["cell"]
        self.code: str = order["code"]
        self.timeout_s: float | None = order.get("timeout_s")
        self.began = self.number = 0.0
        self.deadline: float | None = None
        self.is_timed_out = False

    def begin(self, number: int) -> None:
        """It runs from now on."""
        self.began, self.number = time.monotonic(), number
        self.deadline = None if self.timeout_s is None else self.began + self.timeout_s


class Supervisor:
    """Everything between the host and the interpreter. All descriptors but `state` are read and written as they can."""

    def __init__(self, orders: int, told: int, state: int, child: Child) -> None:
        self._orders, self._told, self._state, self._child = orders, told, state, child
        self._selector = selectors.DefaultSelector()
        self._takes_orders = True
        self._lines, self._skips = bytearray(), False
        self._waiting: deque[Cell] = deque()
        self._known: OrderedDict[str, int] = OrderedDict()
        self._cell: Cell | None = None
        self._number = 0
        self._works = False
        self._out, self._said = bytearray(), 0
        self._heard = bytearray()
        self._outputs = {"stdout": child.stdout, "stderr": child.stderr}
        self._between = {"stdout": b"", "stderr": b""}
        self._texts: dict[str, Any] = {}

    def run(self) -> int:
        """Work until the interpreter is gone, and return the exit code."""
        self._tell(kind="ready", python=".".join(map(str, sys.version_info[:3])))
        while True:
            self._begin_next()
            self._watch()
            for key, _ in self._selector.select(self._left_s()):
                code = key.data()
                if code is not None:
                    return self._leave(code)
            if self._is_overdue():
                return self._leave(self._end())

    def interrupt(self) -> None:
        """Interrupt the cell that runs, and what it has started, as Ctrl-C would."""
        if self._cell is not None:
            kill_group(self._child.pid, signal.SIGINT)

    def leave_at_once(self) -> None:
        """End the interpreter and what it has started, and this process."""
        kill_group(self._child.pid, signal.SIGKILL)
        os._exit(128 + signal.SIGTERM)

    # -- what to wait for

    def _watch(self) -> None:
        reads = len(self._out) < _MOST_WAITING
        wanted: dict[int, Callable[[], Any]] = {self._orders: self._take_orders} if self._takes_orders else {}
        if reads:
            wanted.update({fd: partial(self._pass_on, name, fd) for name, fd in self._outputs.items()})
            wanted[self._child.line.fileno()] = self._hear
        watched = self._selector.get_map()
        for fd in [fd for fd in watched if fd != self._told and fd not in wanted]:
            self._selector.unregister(fd)
        for fd in wanted.keys() - watched.keys():
            self._selector.register(fd, selectors.EVENT_READ, wanted[fd])
        if self._out and self._told not in watched:
            self._selector.register(self._told, selectors.EVENT_WRITE, self._flush)
        elif not self._out and self._told in watched:
            self._selector.unregister(self._told)

    def _left_s(self) -> float | None:
        if self._cell is None or self._cell.deadline is None:
            return None
        return max(0.0, self._cell.deadline - time.monotonic())

    def _is_overdue(self) -> bool:
        """Interrupt a cell that outlasts its timeout. Tell whether it was interrupted before, and is still there."""
        cell = self._cell
        if cell is None or cell.deadline is None or time.monotonic() < cell.deadline:
            return False
        if cell.is_timed_out:
            return True
        cell.is_timed_out = True
        cell.deadline += _GRACE_S
        self.interrupt()
        return False

    # -- orders

    def _take_orders(self) -> None:
        data = os.read(self._orders, _CHUNK)
        if not data:  # nobody sends any more; who wants it ended kills it
            self._takes_orders = False
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            if not self._skips:
                self._take_order(bytes(self._lines) + line)
            self._skips = False
            self._lines.clear()
        self._lines += rest
        if len(self._lines) > _MOST_ORDER:
            self._skips = True
            self._lines.clear()

    def _take_order(self, line: bytes) -> None:
        try:
            order = json.loads(line) if line.strip() else None
        except ValueError:
            return
        if not isinstance(order, dict) or not isinstance(order.get("cell"), str):
            return
        name = order["cell"]
        if name in self._known:
            self._tell(kind="again", cell=name, at=self._known[name])
        elif len(self._waiting) >= _MOST_CELLS:
            self._tell(kind="full", cell=name)
        else:
            self._work(True)
            self._known[name] = self._said
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            self._tell(kind="taken", cell=name)
            self._waiting.append(Cell(order))

    def _begin_next(self) -> None:
        if self._cell is not None or not self._waiting:
            return
        self._cell = cell = self._waiting.popleft()
        self._number += 1
        cell.begin(self._number)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._texts = {name: decoder("replace") for name in self._between}
        for name, data in self._between.items():
            self._tell_text(name, data)
            self._between[name] = b""
        data = json.dumps({"code": cell.code, "number": self._number}).encode()
        self._child.line.setblocking(True)
        try:
            self._child.line.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            return  # it is gone, as will be seen
        self._child.line.setblocking(False)

    # -- what the interpreter says

    def _pass_on(self, name: str, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:  # whoever could write there has closed it
            del self._outputs[name]
        elif self._cell is not None:
            self._tell_text(name, data)
        else:
            self._between[name] = (self._between[name] + data)[-_MOST_BETWEEN:]

    def _hear(self) -> int | None:
        try:
            data = self._child.line.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._end()
        self._heard += data
        while len(self._heard) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._heard)[0]
            if end > _MOST_SAID:
                return self._end()
            if len(self._heard) < end:
                break
            body = bytes(self._heard[_LENGTH.size : end])
            del self._heard[:end]
            if not self._understood(body):
                return self._end()
        return None

    def _understood(self, body: bytes) -> bool:
        """Take in a message. False: it breaks the rules, so nothing more can be made of what comes."""
        try:
            said = json.loads(body)
        except ValueError:
            return False
        if not isinstance(said, dict) or self._cell is None:
            return isinstance(said, dict) and "result" in said  # a thread that outlives its cell shows something
        if "result" in said:
            self._tell(kind="result", cell=self._cell.id, data=said["result"])
        elif isinstance(said.get("done"), dict):
            self._drain()
            self._finish(self._cell, said["done"], ended=False)
        else:
            return False
        return True

    def _drain(self) -> None:
        """Pass on what was written so far, but not what others may go on to write."""
        for name, fd in self._outputs.items():
            (size,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
            while size > 0:
                data = os.read(fd, min(size, _CHUNK))
                size -= len(data)
                self._tell_text(name, data)

    def _finish(self, cell: Cell, done: dict[str, Any], *, ended: bool) -> None:
        for name, decoder in self._texts.items():
            self._tell_text(name, b"", final=decoder)
        self._tell(
            kind="done",
            cell=cell.id,
            number=cell.number,
            exit=done.get("exit"),
            error=done.get("error"),
            error_name=done.get("error_name"),
            truncated=done.get("truncated", False),
            duration_ms=round((time.monotonic() - cell.began) * 1000),
            timed_out=cell.is_timed_out,
            ended=ended,
        )
        self._cell = None
        self._work(bool(self._waiting))

    # -- the end

    def _end(self) -> int:
        """End the interpreter if it has not ended, tell its last words, and return its exit code."""
        cell = self._cell
        is_overdue = cell is not None and cell.is_timed_out
        if is_overdue:
            kill_group(self._child.pid, signal.SIGKILL)
        os.kill(self._child.pid, signal.SIGKILL)  # not reaped yet; of one that exits by itself the code stays its own
        _, status = os.waitpid(self._child.pid, 0)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if cell is not None:
            self._drain()
            if is_overdue:
                self._finish(cell, {"exit": code}, ended=True)
        return code

    def _leave(self, code: int) -> int:
        os.set_blocking(self._told, True)
        while self._out:
            self._flush()
        return code

    # -- outgoing

    def _tell_text(self, name: str, data: bytes, final: Any = None) -> None:
        decoder = final or self._texts.get(name)
        text = decoder.decode(data, final is not None) if decoder is not None else ""
        if text and self._cell is not None:
            self._tell(kind=name, cell=self._cell.id, text=text)

    def _tell(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        self._out += line
        self._said += len(line)

    def _flush(self) -> None:
        try:
            sent = os.write(self._told, self._out[:_CHUNK])
        except BlockingIOError:
            return
        del self._out[:sent]

    def _work(self, works: bool) -> None:
        if works != self._works:
            self._works = works
            os.write(self._state, b".")


def main(path: list[str]) -> None:
    """Fork the interpreter, whose path for modules begins with `path`, and supervise it."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    orders, told, state = (out_of_the_way(fd) for fd in range(3))
    child = fork((orders, told, state), path)
    supervisor = Supervisor(orders, told, state, child)
    signal.signal(signal.SIGINT, lambda *_: supervisor.interrupt())
    signal.signal(signal.SIGTERM, lambda *_: supervisor.leave_at_once())
    for fd in (orders, told, child.stdout, child.stderr):
        os.set_blocking(fd, False)
    child.line.setblocking(False)
    os._exit(supervisor.run())
