"""Commands that run on their own, with an id by which they are found again."""

from __future__ import annotations

import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

from torpor.errors import InvalidRequest
from torpor.sdk._async.commands import transcribed
from torpor.sdk._async.line import AsyncLine
from torpor.sdk.body import Body
from torpor.sdk.foreign import checked
from torpor.sdk.http import FREEZE_SILENCE_S, Call
from torpor.sdk.listening import Deadline, Listened
from torpor.sdk.orders import input_bytes, resizing, signal_name
from torpor.sdk.output import Callback, Output, Watchers, require_success
from torpor.sdk.results import ExecResult, ProcessInfo
from torpor.wire.processes import Fed, ProcessView, SendSignal
from torpor.wire.public import StreamExit

if TYPE_CHECKING:
    from torpor.sdk._async.client import AsyncClient


class AsyncProcess:
    """A command that runs on its own: it outlives who started it, a hibernation, and a restart of the server.

        build = await sbx.start("make all")
        async for stream, data in build:        # as it comes, to its end
            print(stream, data.decode())
        print(build.exit_code)

        later = await sbx.attach(build.id)      # from another program, too
        print((await later.wait()).stdout)

    Losing it here changes nothing about it; `kill` ends it. Of what it wrote the newest 256 MiB of each stream are
    kept, and `info.stdout_start` says where they begin. Every call wakes a sandbox that hibernates.
    """

    def __init__(self, client: AsyncClient, view: ProcessView) -> None:
        self._client = client
        self._info = view
        self._path = f"/sandboxes/{view.sandbox_id}/processes/{view.id}"
        self._exit_code = view.exit_code
        self._truncated = False

    @property
    def id(self) -> str:
        """Its id, by which `attach` finds it."""
        return self._info.id

    @property
    def info(self) -> ProcessInfo:
        """What the server last said of it; `refresh` asks again."""
        return self._info

    @property
    def exit_code(self) -> int | None:
        """Its exit code as far as it is known here: None until `wait`, `refresh` or its last event has told it."""
        return self._exit_code

    @property
    def truncated(self) -> bool:
        """Whether `wait` or a loop over it missed output here, because it was not kept for long enough."""
        return self._truncated

    async def refresh(self) -> ProcessInfo:
        """Ask the server how it stands and return it. Raises NotFound if it is not in the sandbox any more."""
        self._info = await self._client.fetch_as(ProcessView, Call("GET", self._path))
        self._exit_code = self._info.exit_code
        return self._info

    async def wait(
        self,
        timeout: float | None = None,
        *,
        check: bool = False,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        binary: bool = False,
    ) -> ExecResult:
        """Wait for its end, and return that with all its output that is kept, however often it is asked for.

        `timeout`: how long to wait, in seconds; then TimeoutError is raised, and it runs on. The rest is as in `exec`,
        but that to interrupt the wait ends nothing.

        Raises ExecTimeout if it was killed for outlasting its own timeout, CommandFailed (only with `check`), NotFound,
        SandboxLost, OutcomeUnknown.
        """
        info = await self.refresh()
        # What has ended is only read, and that is not to be cut short.
        deadline = Deadline(None if info.state == "ended" else timeout)
        listened = self._listened(info.stdout_start, info.stderr_start, skips=True)
        listened.has_gap = info.stdout_start > 0 or info.stderr_start > 0
        result = await transcribed(AsyncLine(self._client, listened, deadline), Watchers(on_stdout, on_stderr, binary))
        self._truncated = listened.has_gap
        self._exit_code = result.exit_code
        if check:
            require_success(result)
        return result

    async def events(
        self, stdout_from: int | None = None, stderr_from: int | None = None
    ) -> AsyncGenerator[Output, None]:
        """Yield what it writes as (`stream`, `data`), from these offsets (in bytes) to its end.

        Without an offset a stream begins with the oldest byte that is kept. A loop over the process itself is the same.

        Raises as `wait`, and InvalidRequest for an offset that is not kept any more, or beyond what was written.
        """
        is_all = stdout_from is None and stderr_from is None
        if stdout_from is None or stderr_from is None:
            info = await self.refresh()
            stdout_from = info.stdout_start if stdout_from is None else stdout_from
            stderr_from = info.stderr_start if stderr_from is None else stderr_from
        listened = self._listened(stdout_from, stderr_from, skips=is_all)
        line = AsyncLine(self._client, listened)
        async with aclosing(line.pieces()) as pieces:
            async for piece in pieces:
                self._truncated = self._truncated or listened.has_gap
                yield piece
        if line.end is not None:
            self._exit_code = line.end.exit_code

    def __aiter__(self) -> AsyncIterator[Output]:
        return self.events()

    async def output(self, from_offset: int = 0, stream: Literal["stdout", "stderr"] = "stdout") -> bytes:
        """Return what it has written so far on a stream, from an offset in bytes on, without waiting for more.

        Raises InvalidRequest for an offset that is not kept any more, or beyond what was written.
        """
        info = await self.refresh()
        if stream not in ("stdout", "stderr"):
            raise InvalidRequest(f"stream has to be stdout or stderr, not {stream!r}")
        out, err = info.stdout_bytes, info.stderr_bytes
        wanted = (out if stream == "stdout" else err) - from_offset
        if wanted == 0:
            return b""
        since = (from_offset, err) if stream == "stdout" else (out, from_offset)
        line = AsyncLine(self._client, self._listened(*since, skips=False))
        held = bytearray()
        async with aclosing(line.pieces()) as pieces:
            async for piece in pieces:
                if piece.stream == stream:
                    held += piece.data
                    if len(held) >= wanted:
                        break
        return bytes(held)

    async def write_stdin(self, data: str | bytes) -> int:
        """Write to its input, and return how many bytes it took, when it has taken them; at most 16 MiB at once.

        A write whose answer was lost is not sent again: what it wrote is not known. Raises Conflict if its input is not
        open or it has ended.
        """
        return await self._feed(input_bytes(data), close=False)

    async def close_stdin(self) -> None:
        """End its input: it reads end-of-file after what was written."""
        await self._feed(b"", close=True)

    async def resize(self, rows: int, cols: int) -> None:
        """Give its terminal another size, of which its programs are told by SIGWINCH.

        Raises InvalidRequest if it has none, Conflict if it has ended.
        """
        await self._client.fetch(Call("POST", f"{self._path}/resize", content=resizing(rows, cols)))

    async def kill(self, signal: int | str | signals.Signals = signals.SIGKILL) -> None:
        """Send it a signal: SIGKILL (which ends all its processes) or another, by name or number, to its group.

        With a terminal it goes to what is in the foreground there, and SIGHUP hangs the terminal up.

        Raises Conflict if it has ended, InvalidRequest for what is no signal.
        """
        order = checked(SendSignal, signal=signal_name(signal)).model_dump_json().encode()
        await self._client.fetch(Call("POST", f"{self._path}/signal", content=order))

    def listened(self) -> Listened:
        """Return what to listen to for all its output that is kept."""
        return self._listened(self._info.stdout_start, self._info.stderr_start, skips=True)

    def ended(self, end: StreamExit) -> None:
        """Take in how it ended."""
        self._exit_code = end.exit_code

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._info.sandbox_id} state={self._info.state}>"

    async def _feed(self, data: bytes, *, close: bool) -> int:
        query = {"close": "true"} if close else {}
        call = Call("POST", f"{self._path}/stdin", params=query, body=Body(data), silence_s=FREEZE_SILENCE_S)
        return (await self._client.fetch_as(Fed, call)).bytes

    def _listened(self, stdout_from: int, stderr_from: int, *, skips: bool) -> Listened:
        path = f"/sandboxes/{self._info.sandbox_id}"
        return Listened(path, None, self.id, stdout_from, stderr_from, is_there=True, skips=skips)
