"""The line of a guest that exists in memory only: its end of the protocol, and the calls that it serves on it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from torpor.errors import Busy, Conflict, Failed, InvalidRequest, PortClosed, TorporError
from torpor.kit.shielded import wait_ended
from torpor.testing.fake_guest_call import Request, UnderWay
from torpor.testing.fake_guest_files import FileCalls
from torpor.testing.fake_guest_jobs import Job, call_of, check_folder, outcome_of
from torpor.testing.guest import Shell
from torpor_guest import protocol
from torpor_guest.protocol import Frame, Greeting, Hello

if TYPE_CHECKING:
    from torpor.testing.fake_guest import FakeGuest

# What the agent does even while the guest stands still; it is over before a guest is saved.
_CONTROL = frozenset({"ping", "adopt", "quiesce", "unquiesce", "hooks", "mount"})


# Where the one server of such a guest listens: it sends back what it gets.
ECHO_PORT = 7


class Line:
    """One connection of the host."""

    def __init__(self, guest: FakeGuest, sock: socket.socket) -> None:
        self.guest = guest
        self._sock = sock
        self._parser = protocol.Parser(protocol.seek_hello)
        # A host may go on without a greeting where another connection broke off.
        self._parser.lost = not guest.greeted
        self._resumed = False
        self._sending = asyncio.Lock()
        self._served: dict[int, _Served] = {}
        self._parts: dict[int, bytearray] = {}

    async def run(self) -> None:
        """Serve until the host closes the line."""
        loop = asyncio.get_running_loop()
        try:
            while size := await loop.sock_recv_into(self._sock, self._parser.room()):
                if not self.guest.silent:
                    for item in self._parser.take(size):
                        await self._take(item)
        except ConnectionError:
            return

    async def send(self, frames: bytes) -> None:
        """Send whole frames, in the order of the calls of this."""
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._sock, frames)

    async def drop_all(self) -> None:
        """End the serving of all calls. What is known of them stays in the guest's memory."""
        for served in list(self._served.values()):
            served.task.cancel()
            await wait_ended(served.task)
        self._served.clear()

    async def _take(self, item: Frame | Greeting) -> None:
        if isinstance(item, Hello):
            await self.drop_all()
            self.guest.under_way.clear()
            self.guest.greeted = True
            features = {"agent": "fake", "containment": "none", "boot_id": "fake", "pid": 1}
            await self.send(protocol.welcome(item.nonce, features) + self.guest.garbage)
        elif isinstance(item, Frame):
            self._take_frame(item)

    def _take_frame(self, frame: Frame) -> None:
        if not self._resumed:
            self._resumed = True
            for number, kept in list(self.guest.under_way.items()):
                self._served[number] = _Served(self, number, kept, stops=True)
        if frame.type == protocol.OPEN:
            parts = self._parts.setdefault(frame.stream, bytearray())
            parts += frame.payload
            if frame.sub == protocol.LAST:
                self._begin(frame.stream, protocol.load(self._parts.pop(frame.stream)))
        elif (served := self._served.get(frame.stream)) is not None:
            served.take(frame)

    def _begin(self, number: int, request: Request) -> None:
        state = UnderWay(request)
        # Nothing is under way that begins while the guest stands still: it is refused, or done, at once.
        stops = request["op"] not in _CONTROL and not self.guest.frozen
        if stops:
            self.guest.under_way[number] = state
        self._served[number] = _Served(self, number, state, stops=stops)

    def forget(self, number: int) -> None:
        """A call is over."""
        self._served.pop(number, None)
        self.guest.under_way.pop(number, None)


class _Served:
    """One call being served, by a task of its own; one that `stops` sends nothing while the guest stands still."""

    def __init__(self, line: Line, number: int, state: UnderWay, *, stops: bool) -> None:
        self._line, self._number, self._state, self._stops = line, number, state, stops
        self._request = state.request
        # What is sent again by a call that was begun again, and has left already.
        self._repeated = list(state.sent)
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    def take(self, frame: Frame) -> None:
        """Take a frame of the host."""
        if frame.type == protocol.DATA:
            self._state.received += frame.payload
        elif frame.type == protocol.END:
            self._state.ended = True
        elif frame.type == protocol.CREDIT:
            self._state.credit[frame.sub] += protocol.credit_count(frame.payload)
        elif frame.type == protocol.CANCEL:
            # Later, so that a task that has not begun yet does begin, and answers.
            asyncio.get_running_loop().call_soon(self._cancel)
        self._changed.set()

    def _cancel(self) -> None:
        if self._state.answer is None:
            self.task.cancel("the host gave up")

    async def send(self, sub: int, data: bytes) -> None:
        """Send bytes as the host takes them, and while the guest does not stand still."""
        again = min(self._repeated[sub], len(data))
        self._repeated[sub] -= again
        data = data[again:]
        while data:
            while self._state.credit[sub] == 0:
                await self._wait_changed()
            await self._wait_thawed()
            size = min(len(data), self._state.credit[sub], protocol.MAX_PAYLOAD)
            self._state.credit[sub] -= size
            self._state.sent[sub] += size
            await self._line.send(protocol.frame(self._number, protocol.DATA, sub, data[:size]))
            data = data[size:]

    async def input(self) -> AsyncGenerator[bytes, None]:
        """Yield what the host sends."""
        taken = 0
        while True:
            while chunk := self._state.received[taken:]:
                yield chunk
                taken += len(chunk)
                await self._wait_thawed()
                if (credit := taken - self._state.returned) > 0:
                    self._state.returned = taken
                    await self._line.send(protocol.credit(self._number, protocol.INPUT, credit))
            if self._state.ended:
                return
            await self._wait_changed()

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _wait_thawed(self) -> None:
        if self._stops:
            await self._guest.wait_thawed()

    async def _run(self) -> None:
        if self._state.answer is None:
            self._state.answer = await self._outcome_of_all()
        await self._wait_thawed()
        self._line.forget(self._number)
        await self._line.send(protocol.message(self._number, *self._state.answer))

    async def _outcome_of_all(self) -> tuple[int, Request]:
        try:
            await self._wait_thawed()
            return protocol.RESULT, await self._answer()
        except asyncio.CancelledError as cancelled:
            if not cancelled.args:  # the line is gone
                raise
            return protocol.ERROR, {"code": "cancelled", "message": "the host gave up", "hint": None}
        except TorporError as error:
            return protocol.ERROR, {"code": error.code, "message": error.message, "hint": error.hint}

    async def _answer(self) -> Request:
        operations: dict[str, Callable[[Request], Awaitable[Request]]] = {
            "ping": self._ping,
            "adopt": self._adopt,
            "quiesce": self._quiesce,
            "unquiesce": self._unquiesce,
            "hooks": self._hooks,
            "mount": self._mount,
            "defaults": self._guest.take_defaults,
            "exec": self._exec,
            "start": self._start,
            "attach": self._attach,
            "input": self._input,
            "resize": self._resize,
            "signal": self._signal,
            "job": self._job,
            "jobs": self._jobs,
            "dial": self._dial,
            "ports": self._ports,
            **FileCalls(self._guest.files, self.send, self.input, self._send_lines).operations(),
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
        self._guest.env |= (request["env"] or {}) | {"TORPOR_SANDBOX_ID": request["sandbox_id"]}
        if request.get("secrets") is not None:
            self._guest.secrets = request["secrets"]
        if request["thaw"]:
            self._guest.thaw()
        confirmed = {name: request[name] for name in ("sandbox_id", "hostname", "generation", "wall_ns")}
        return confirmed | {"hooks": self._guest.hooks if request["event"] else 0}

    async def _quiesce(self, request: Request) -> Request:
        if self._guest.silent_quiesce:
            await asyncio.get_running_loop().create_future()
        if self._guest.refuse_quiesce is not None:
            raise Failed(self._guest.refuse_quiesce)
        if request["hooks"] and self._guest.hooks:
            self._guest.hooks_run.append("freeze")
        self._guest.freeze()
        return {"frozen": True}

    async def _unquiesce(self, request: Request) -> Request:
        if self._guest.refuse_thaw is not None:
            raise Failed(self._guest.refuse_thaw)
        self._guest.thaw()
        return {"wall_ns": request.get("wall_ns") or time.time_ns()}

    async def _hooks(self, request: Request) -> Request:
        self._guest.hooks_run.append(request["event"])
        if self._guest.silent_hooks:
            await asyncio.get_running_loop().create_future()
        return {"ran": self._guest.hooks, "failed": self._guest.failing_hooks}

    async def _mount(self, request: Request) -> Request:
        if self._guest.refuse_mount is not None:
            raise Failed(self._guest.refuse_mount)
        self._guest.mounts.append(request)
        return {"bytes": request["bytes"]}

    async def _exec(self, request: Request) -> Request:
        if request["job"] is not None:
            job = self._guest.jobs.find_or_start(request)
            starts = job.check_offsets(request)
            if request["stdin"]:
                await self._pass_on(job, 0)
                job.close_stdin()
            return await self._listen(job, starts)
        if not self._stops:
            raise Busy("the sandbox is being frozen; nothing can be started in it now")
        began = self._guest.clock.monotonic()
        stdin = b"".join([chunk async for chunk in self.input()]) if request["stdin"] else b""
        check_folder(self._guest, request)
        call = call_of(self._guest, request, stdin, self.send)
        shell = Shell(self._guest.files, self._guest.clock, self._guest.counters)
        outcome = await outcome_of(shell, call, request["timeout_s"], self._guest)
        _, stdout_bytes, stderr_bytes = self._state.sent
        took_ms = round((self._guest.clock.monotonic() - began) * 1000)
        return outcome | {"duration_ms": took_ms, "stdout_bytes": stdout_bytes, "stderr_bytes": stderr_bytes}

    async def _start(self, request: Request) -> Request:
        job = self._guest.jobs.find_or_start(request)
        if request["stdin"]:
            await self._pass_on(job, 0)
            if not request["open"]:
                job.close_stdin()
        return job.described()

    async def _attach(self, request: Request) -> Request:
        job = self._guest.jobs.find(request)
        return await self._listen(job, job.check_offsets(request))

    async def _listen(self, job: Job, at: list[int]) -> Request:
        self._guest.jobs.heard(job, 1)
        try:
            return await self._told(job, at)
        finally:
            self._guest.jobs.heard(job, -1)

    async def _told(self, job: Job, at: list[int]) -> Request:
        while True:
            behind = [sub for sub in (protocol.OUTPUT, protocol.ERRORS) if at[sub] < len(job.written[sub])]
            for sub in behind:
                data = job.written[sub][at[sub] :]
                at[sub] += len(data)
                await self.send(sub, data)
            if not behind:
                if job.outcome is not None:
                    return job.result()
                await job.news()

    async def _pass_on(self, job: Job, at: int) -> int:
        async with aclosing(self.input()) as chunks:
            async for chunk in chunks:
                job.feed(at, chunk)
                at += len(chunk)
        return at

    async def _input(self, request: Request) -> Request:
        job = self._guest.jobs.find(request)
        # Where it belongs is kept with the call: begun again, it does not pass on again what it has passed on.
        base = request.setdefault("base", len(job.stdin))
        if not job.takes_input():
            raise Conflict(f"the process {request['job']} takes no input (any more)")
        if job.feeder is not None and job.size is None:
            raise Conflict(f"somebody else is passing input to the process {request['job']}")
        job.feeder = self
        try:
            end = await self._pass_on(job, base)
        finally:
            job.feeder = None
        if request["close"]:
            job.close_stdin()
        return {"bytes": end - base}

    async def _resize(self, request: Request) -> Request:
        self._guest.jobs.find(request).resize({"rows": request["rows"], "cols": request["cols"]})
        return {}

    async def _signal(self, request: Request) -> Request:
        self._guest.jobs.find(request).signal(request["signal"])
        return {}

    async def _job(self, request: Request) -> Request:
        return self._guest.jobs.find(request).described()

    async def _jobs(self, request: Request) -> Request:
        return await self._send_lines([job.described() for job in self._guest.jobs.known.values()])

    async def _dial(self, request: Request) -> Request:
        if request["port"] != ECHO_PORT:
            raise PortClosed(f"nobody listens on port {request['port']} in the sandbox")
        if not self._state.connected:
            self._state.connected = True
            await self._line.send(protocol.frame(self._number, protocol.READY))
        async with aclosing(self.input()) as chunks:
            async for chunk in chunks:
                await self.send(protocol.OUTPUT, chunk)
        return {"bytes": self._state.sent[protocol.OUTPUT]}

    async def _ports(self, request: Request) -> Request:
        return {"ports": [{"port": ECHO_PORT, "address": "127.0.0.1", "pid": 1, "process": "fake"}]}

    async def _send_lines(self, entries: list[Request]) -> Request:
        await self.send(protocol.OUTPUT, b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
        return {"entries": len(entries)}
