"""A guest's agent that exists in memory only, and speaks the real protocol over a socket pair, inside the event loop.

Commands and files are those of `torpor.testing.guest`. It can be told to refuse its identity, to stay silent, or to
talk garbage.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from torpor.errors import InvalidRequest, TorporError
from torpor.kit.clock import Clock, SystemClock
from torpor.kit.shielded import wait_ended
from torpor.testing.guest import Call, Files, Killed, Shell
from torpor_guest import protocol
from torpor_guest.protocol import Frame, Greeting, Hello

Request = dict[str, Any]


@dataclass
class FakeGuest:
    """One guest. `serve` may be called again with another socket, as a real one is connected to anew.

    `identities` are the `adopt` requests it took. `refuse_adopt`: the sentence to refuse them with. `silent`: never
    answer anything. `garbage`: bytes to send right after the welcome. `frozen`: it was quiesced and not adopted or
    unquiesced since.
    """

    clock: Clock = field(default_factory=SystemClock)
    refuse_adopt: str | None = None
    silent: bool = False
    garbage: bytes = b""
    frozen: bool = False
    identities: list[Request] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    files: Files = field(init=False)

    def __post_init__(self) -> None:
        self.files = Files(self.clock)

    async def serve(self, sock: socket.socket) -> None:
        """Serve the host at the other end until it closes the line. Closes the socket, whatever happens."""
        with sock:
            sock.setblocking(False)
            line = _Line(self, sock)
            try:
                await line.run()
            finally:
                await line.drop_all()


class _Line:
    """One connection of the host."""

    def __init__(self, guest: FakeGuest, sock: socket.socket) -> None:
        self.guest = guest
        self._sock = sock
        self._parser = protocol.Parser(protocol.seek_hello)
        self._sending = asyncio.Lock()
        self._served: dict[int, _Served] = {}
        self._parts: dict[int, bytearray] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while size := await loop.sock_recv_into(self._sock, self._parser.room()):
                if not self.guest.silent:
                    for item in self._parser.take(size):
                        await self._take(item)
        except ConnectionError:
            return

    async def send(self, frames: bytes) -> None:
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._sock, frames)

    async def drop_all(self) -> None:
        for served in list(self._served.values()):
            served.task.cancel()
            await wait_ended(served.task)
        self._served.clear()

    async def _take(self, item: Frame | Greeting) -> None:
        if isinstance(item, Hello):
            await self.drop_all()
            features = {"agent": "fake", "containment": "none", "boot_id": "fake", "pid": 1}
            await self.send(protocol.welcome(item.nonce, features) + self.guest.garbage)
        elif isinstance(item, Frame):
            self._take_frame(item)

    def _take_frame(self, frame: Frame) -> None:
        if frame.type == protocol.OPEN:
            parts = self._parts.setdefault(frame.stream, bytearray())
            parts += frame.payload
            if frame.sub == protocol.LAST:
                request = protocol.load(self._parts.pop(frame.stream))
                self._served[frame.stream] = _Served(self, frame.stream, request)
        elif (served := self._served.get(frame.stream)) is not None:
            served.take(frame)

    def forget(self, number: int) -> None:
        self._served.pop(number, None)


class _Served:
    """One call being served, by a task of its own."""

    def __init__(self, line: _Line, number: int, request: Request) -> None:
        self._line, self._number, self._request = line, number, request
        self._credit = [0, protocol.WINDOW, protocol.WINDOW]
        self._input: deque[bytes] = deque()
        self._input_ended = False
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    def take(self, frame: Frame) -> None:
        """Take a frame of the host."""
        if frame.type == protocol.DATA:
            self._input.append(bytes(frame.payload))
        elif frame.type == protocol.END:
            self._input_ended = True
        elif frame.type == protocol.CREDIT:
            self._credit[frame.sub] += protocol.credit_count(frame.payload)
        elif frame.type == protocol.CANCEL:
            # Later, so that a task that has not begun yet does begin, and answers.
            asyncio.get_running_loop().call_soon(self.task.cancel, "the host gave up")
        self._changed.set()

    async def send(self, sub: int, data: bytes) -> None:
        """Send bytes as the host takes them."""
        while data:
            while self._credit[sub] == 0:
                await self._wait_changed()
            size = min(len(data), self._credit[sub], protocol.MAX_PAYLOAD)
            self._credit[sub] -= size
            await self._line.send(protocol.frame(self._number, protocol.DATA, sub, data[:size]))
            data = data[size:]

    async def input(self) -> AsyncGenerator[bytes, None]:
        """Yield what the host sends."""
        while True:
            while self._input:
                chunk = self._input.popleft()
                yield chunk
                await self._line.send(protocol.credit(self._number, protocol.INPUT, len(chunk)))
            if self._input_ended:
                return
            await self._wait_changed()

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _run(self) -> None:
        try:
            kind, answer = protocol.RESULT, await self._answer()
        except asyncio.CancelledError as cancelled:
            if not cancelled.args:  # the line is gone
                raise
            kind, answer = protocol.ERROR, {"code": "cancelled", "message": "the host gave up", "hint": None}
        except TorporError as error:
            kind, answer = protocol.ERROR, {"code": error.code, "message": error.message, "hint": error.hint}
        self._line.forget(self._number)
        await self._line.send(protocol.message(self._number, kind, answer))

    async def _answer(self) -> Request:
        operations: dict[str, Callable[[Request], Awaitable[Request]]] = {
            "ping": self._ping,
            "adopt": self._adopt,
            "quiesce": self._quiesce,
            "unquiesce": self._unquiesce,
            "exec": self._exec,
            "read": self._read,
            "write": self._write,
            "stat": self._stat,
            "list": self._list,
            "walk": self._walk,
            "mkdir": self._mkdir,
            "remove": self._remove,
            "rename": self._rename,
        }
        for name in ("path", "source", "target"):
            if not str(self._request.get(name, "/")).startswith("/"):
                raise InvalidRequest(f"{name} must be an absolute path")
        return await operations[self._request["op"]](self._request)

    @property
    def _guest(self) -> FakeGuest:
        return self._line.guest

    async def _ping(self, request: Request) -> Request:
        return {}

    async def _adopt(self, request: Request) -> Request:
        if self._guest.refuse_adopt is not None:
            raise InvalidRequest(self._guest.refuse_adopt)
        self._guest.identities.append(request)
        self._guest.env["TORPOR_SANDBOX_ID"] = request["sandbox_id"]
        self._guest.frozen = False
        return {name: request[name] for name in ("sandbox_id", "hostname", "generation", "wall_ns")}

    async def _quiesce(self, request: Request) -> Request:
        self._guest.frozen = True
        return {"frozen": True}

    async def _unquiesce(self, request: Request) -> Request:
        self._guest.frozen = False
        return {}

    async def _exec(self, request: Request) -> Request:
        began = self._guest.clock.monotonic()
        stdin = b"".join([chunk async for chunk in self.input()]) if request["stdin"] else b""
        if request["cwd"] is not None and self._guest.files.nodes.get(request["cwd"]) is None:
            raise InvalidRequest(f"cwd: there is no folder {request['cwd']} to run in")
        call = Call(
            words=request["argv"],
            stdin=stdin,
            env={"HOME": "/root", "USER": request["user"] or "root", **self._guest.env, **request["env"]},
            cwd=request["cwd"] or "/root",
            user=request["user"] or "root",
            out=lambda data: self.send(protocol.OUTPUT, data),
            err=lambda data: self.send(protocol.ERRORS, data),
        )
        outcome = await self._outcome(call, request["timeout_s"])
        return outcome | {"duration_ms": round((self._guest.clock.monotonic() - began) * 1000)}

    async def _outcome(self, call: Call, timeout_s: float | None) -> Request:
        killed = {"exit_code": 137, "signal": "SIGKILL", "oom_killed": False, "timed_out": False}
        command = asyncio.create_task(Shell(self._guest.files, self._guest.clock).run(call))
        timer = asyncio.create_task(self._guest.clock.sleep(10**9 if timeout_s is None else timeout_s))
        try:
            await asyncio.wait([command, timer], return_when=asyncio.FIRST_COMPLETED)
            if not command.done():
                return killed | {"timed_out": True}
            try:
                return killed | {"exit_code": command.result(), "signal": None}
            except Killed:
                return killed
        finally:
            for task in (command, timer):
                task.cancel()
                await wait_ended(task)

    async def _read(self, request: Request) -> Request:
        count = 0
        async for chunk in self._guest.files.read(request["path"]):
            await self.send(protocol.OUTPUT, chunk)
            count += len(chunk)
        return {"bytes": count}

    async def _write(self, request: Request) -> Request:
        async with aclosing(self.input()) as chunks:
            user = request["user"] or "root"
            count = await self._guest.files.write(request["path"], chunks, request["mode"], user, request["append"])
        return {"bytes": count}

    async def _stat(self, request: Request) -> Request:
        return self._guest.files.entry(request["path"]).model_dump()

    async def _list(self, request: Request) -> Request:
        entries = self._guest.files.listing(request["path"])
        return await self._send_lines([entry.model_dump() for entry in entries])

    async def _walk(self, request: Request) -> Request:
        files = self._guest.files
        files.listing(request["path"])
        return await self._send_lines([files.entry(name).model_dump() for name in files.below(request["path"])])

    async def _send_lines(self, entries: list[Request]) -> Request:
        await self.send(protocol.OUTPUT, b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
        return {"entries": len(entries)}

    async def _mkdir(self, request: Request) -> Request:
        mode = 0o755 if request["mode"] is None else request["mode"]
        self._guest.files.mkdir(request["path"], mode, request["user"] or "root")
        return {}

    async def _remove(self, request: Request) -> Request:
        if request["path"].strip("/") == "":
            raise InvalidRequest("/ cannot be removed")
        self._guest.files.remove(request["path"], request["recursive"])
        return {}

    async def _rename(self, request: Request) -> Request:
        self._guest.files.rename(request["source"], request["target"])
        return {}
