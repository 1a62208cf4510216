"""Code contexts: interpreters in a sandbox that keep their variables from cell to cell."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Self

from torpor.errors import Conflict, Failed, InterpreterLost, NotFound, OutcomeUnknown, TorporError
from torpor.sdk._async.client import AsyncClient
from torpor.sdk._async.life import AsyncLife
from torpor.sdk.execution import MAX_EVENT_BYTES, Delivery, Execution, Running, Watching, cell, context_id, new_session
from torpor.sdk.http import FREEZE_SILENCE_S, Call
from torpor.sdk.listening import KILL_SILENCE_S
from torpor.sdk.output import Callback
from torpor.sdk.retry import Reattaching
from torpor.sdk.sse import EventReader, Unreadable
from torpor.sdk.waiting import async_deliver, async_enterable, async_sleep
from torpor.wire.repl import SessionList, SessionView


class AsyncCodeContext:
    """An interpreter in a sandbox. Its variables, imports and functions live from cell to cell.

        async with sbx.code_context() as ctx:
            await ctx.run("import pandas as pd; frame = pd.read_csv('/work/data.csv')")
            told = await ctx.run("frame.describe()")
            print(told.text, told.html)

    It outlives who made it, a hibernation and a restart of the server, and a fork of the sandbox has it, too;
    `sbx.code_contexts()` finds it again. Leaving the block closes it.
    """

    def __init__(self, client: AsyncClient, view: SessionView) -> None:
        self._client = client
        self._info = view
        self._path = f"/sandboxes/{view.sandbox_id}/repl/sessions/{view.id}"

    @property
    def id(self) -> str:
        """Its id, by which `attach_code_context` finds it."""
        return self._info.id

    @property
    def language(self) -> str:
        """What it runs: "python"."""
        return self._info.language

    @property
    def info(self) -> SessionView:
        """What the server last said of it; `refresh` asks again."""
        return self._info

    async def refresh(self) -> SessionView:
        """Ask the server how it stands and return it. Raises NotFound if it is not in the sandbox any more."""
        self._info = await self._client.fetch_as(SessionView, Call("GET", self._path))
        return self._info

    async def run(
        self,
        code: str,
        timeout_seconds: float | None = None,
        *,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callback | None = None,
    ) -> Execution:
        """Run a cell, after those that were sent before it, and return what it wrote and showed.

        As in a notebook, the value of the last line is shown unless that ends with `;`, so is what is given to
        `display`, and at the end every open matplotlib figure. `await` may stand at the top. What a cell raises is in
        the result, not raised here. `timeout_seconds` bounds its running time (None: no bound). The callbacks are given
        text, and each `Result`, as they come.

        It is never run twice: a call whose connection breaks goes on listening to the same cell, as `exec` does. Who is
        interrupted in it, by Ctrl-C, cancellation or an error in a callback, interrupts the cell.

        Raises ExecTimeout (the cell was interrupted and the context goes on, unless the message says otherwise),
        InterpreterLost (the interpreter has ended, and its variables with it), both with the output so far; Busy if too
        many cells wait; OutcomeUnknown, InvalidRequest, NotFound, SandboxLost.
        """
        running = Running(self._path, cell(code, timeout_seconds), Watching(on_stdout, on_stderr, on_result))
        is_over = is_delivering = False
        try:
            async with aclosing(self._deliveries(running)) as deliveries:
                async for callback, piece in deliveries:
                    is_delivering = True
                    await async_deliver(callback, piece)
                    is_delivering = False
            is_over = True
        except TorporError as error:
            if is_delivering:  # it is the callback's own
                raise
            is_over = True
            raise running.give_to(error) from error.__cause__
        finally:
            if not is_over:
                await self._give_up()
        if running.end is None:
            raise OutcomeUnknown("the server ended the stream before the cell's result")
        return running.execution(running.end)

    run_code = run

    async def interrupt(self) -> None:
        """Interrupt the cell that runs, as Ctrl-C does: it raises KeyboardInterrupt. Nothing happens if none runs.

        Raises InterpreterLost, NotFound.
        """
        await self._client.fetch(Call("POST", f"{self._path}/interrupt"))

    async def close(self) -> None:
        """End its interpreter and the processes that it has started. It is no error if it has ended."""
        await self._client.fetch(Call("DELETE", self._path))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(NotFound):  # its sandbox is gone, and it with that
            await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._info.sandbox_id}>"

    async def _deliveries(self, running: Running) -> AsyncGenerator[Delivery, None]:
        """Yield what callbacks are to be given until the cell has ended, over as many connections as that takes."""
        patience = Reattaching(self._client.retry)
        while running.end is None:
            try:
                response = await self._client.open(running.call())
                patience.opened()
                try:
                    events = EventReader(MAX_EVENT_BYTES)
                    async for chunk in self._client.chunks(response):
                        for event in events.feed(chunk):
                            patience.progress()
                            for delivery in running.take(event):
                                yield delivery
                finally:
                    await response.aclose()
                if running.end is None:
                    raise OutcomeUnknown("the server ended the stream before the cell's result")
            except Unreadable as error:
                raise error.told() from error
            except TorporError as error:
                if running.end is not None:
                    return
                await async_sleep(patience.wait_s(error))

    async def _give_up(self) -> None:
        """Interrupt the cell, if the server can be told so within some seconds."""
        with suppress(TorporError):
            await self._client.fetch(Call("POST", f"{self._path}/interrupt", silence_s=KILL_SILENCE_S, once=True))


class AsyncCode(AsyncLife):
    """How code is run in a sandbox, as cells of a notebook are."""

    # The context of `run_code`, and the key it is made under.
    _context: AsyncCodeContext | None = None
    _context_key: str | None = None

    @async_enterable
    async def code_context(
        self,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncCodeContext:
        """Start an interpreter that keeps its variables from cell to cell, and return it.

        `cwd`: the folder it starts in, the user's home unless given. `env` is added to the sandbox's own variables. Any
        template with Python 3.8 or newer will do; `code-interpreter` has numpy, pandas and matplotlib.

        Raises InvalidRequest (another language), Conflict (there is no python3), NotFound, SandboxLost.
        """
        return await self._new_context(new_session(language, cwd, env, user), secrets.token_hex(16))

    create_code_context = code_context

    async def attach_code_context(self, id: str) -> AsyncCodeContext:
        """Return the code context with this id, which may have ended. Raises NotFound."""
        call = Call("GET", f"{self._path}/repl/sessions/{context_id(id)}")
        return AsyncCodeContext(self._client, await self._client.fetch_as(SessionView, call))

    async def code_contexts(self) -> list[AsyncCodeContext]:
        """Return its code contexts that have not ended, the oldest first."""
        told = await self._client.fetch_as(SessionList, Call("GET", f"{self._path}/repl/sessions"))
        return [AsyncCodeContext(self._client, view) for view in told.items]

    async def run_code(
        self,
        code: str,
        timeout_seconds: float | None = None,
        *,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callback | None = None,
    ) -> Execution:
        """Run a cell in a code context of this object's own, which is made by the first call. The rest as in its `run`.

        After InterpreterLost the next call makes a new one.
        """
        context = await self._own_context()
        try:
            return await context.run(
                code, timeout_seconds, on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result
            )
        except (InterpreterLost, NotFound):
            self._context = self._context_key = None
            raise

    async def _own_context(self) -> AsyncCodeContext:
        if self._context is None:
            self._context_key = self._context_key or secrets.token_hex(16)
            try:
                self._context = await self._new_context(new_session("python", None, None, None), self._context_key)
            except (Conflict, Failed):  # under this key the answer would stay the same
                self._context_key = None
                raise
        return self._context

    async def _new_context(self, content: bytes, key: str) -> AsyncCodeContext:
        call = Call(
            "POST",
            f"{self._path}/repl/sessions",
            content=content,
            headers={"Idempotency-Key": key},
            repeatable=True,
            silence_s=FREEZE_SILENCE_S,
        )
        return AsyncCodeContext(self._client, await self._client.fetch_as(SessionView, call))
