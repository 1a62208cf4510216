"""Code contexts: interpreters in a sandbox that keep their variables from cell to cell."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from types import TracebackType
from typing import Self

from torpor.errors import Conflict, Failed, InterpreterLost, NotFound, OutcomeUnknown, TorporError
from torpor.sdk._sync.client import Client
from torpor.sdk._sync.life import Life
from torpor.sdk.execution import MAX_EVENT_BYTES, Delivery, Execution, Running, Watching, cell, context_id, new_session
from torpor.sdk.http import FREEZE_SILENCE_S, Call
from torpor.sdk.listening import KILL_SILENCE_S
from torpor.sdk.output import Callback
from torpor.sdk.retry import Reattaching
from torpor.sdk.sse import EventReader, Unreadable
from torpor.sdk.waiting import sync_deliver, sync_enterable, sync_sleep
from torpor.wire.repl import SessionList, SessionView


class CodeContext:
    """An interpreter in a sandbox. Its variables, imports and functions live from cell to cell.

        with sbx.code_context() as ctx:
            ctx.run("import pandas as pd; frame = pd.read_csv('/work/data.csv')")
            told = ctx.run("frame.describe()")
            print(told.text, told.html)

    It outlives who made it, a hibernation and a restart of the server, and a fork of the sandbox has it, too;
    `sbx.code_contexts()` finds it again. Leaving the block closes it.
    """

    def __init__(self, client: Client, view: SessionView) -> None:
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

    def refresh(self) -> SessionView:
        """Ask the server how it stands and return it. Raises NotFound if it is not in the sandbox any more."""
        self._info = self._client.fetch_as(SessionView, Call("GET", self._path))
        return self._info

    def run(
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
            with closing(self._deliveries(running)) as deliveries:
                for callback, piece in deliveries:
                    is_delivering = True
                    sync_deliver(callback, piece)
                    is_delivering = False
            is_over = True
        except TorporError as error:
            if is_delivering:  # it is the callback's own
                raise
            is_over = True
            raise running.give_to(error) from error.__cause__
        finally:
            if not is_over:
                self._give_up()
        if running.end is None:
            raise OutcomeUnknown("the server ended the stream before the cell's result")
        return running.execution(running.end)

    run_code = run

    def interrupt(self) -> None:
        """Interrupt the cell that runs, as Ctrl-C does: it raises KeyboardInterrupt. Nothing happens if none runs.

        Raises InterpreterLost, NotFound.
        """
        self._client.fetch(Call("POST", f"{self._path}/interrupt"))

    def close(self) -> None:
        """End its interpreter and the processes that it has started. It is no error if it has ended."""
        self._client.fetch(Call("DELETE", self._path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(NotFound):  # its sandbox is gone, and it with that
            self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._info.sandbox_id}>"

    def _deliveries(self, running: Running) -> Generator[Delivery, None]:
        """Yield what callbacks are to be given until the cell has ended, over as many connections as that takes."""
        patience = Reattaching(self._client.retry)
        while running.end is None:
            try:
                response = self._client.open(running.call())
                patience.opened()
                try:
                    events = EventReader(MAX_EVENT_BYTES)
                    for chunk in self._client.chunks(response):
                        for event in events.feed(chunk):
                            patience.progress()
                            yield from running.take(event)
                finally:
                    response.close()
                if running.end is None:
                    raise OutcomeUnknown("the server ended the stream before the cell's result")
            except Unreadable as error:
                raise error.told() from error
            except TorporError as error:
                if running.end is not None:
                    return
                sync_sleep(patience.wait_s(error))

    def _give_up(self) -> None:
        """Interrupt the cell, if the server can be told so within some seconds."""
        with suppress(TorporError):
            self._client.fetch(Call("POST", f"{self._path}/interrupt", silence_s=KILL_SILENCE_S, once=True))


class Code(Life):
    """How code is run in a sandbox, as cells of a notebook are."""

    # The context of `run_code`, and the key it is made under.
    _context: CodeContext | None = None
    _context_key: str | None = None

    @sync_enterable
    def code_context(
        self,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> CodeContext:
        """Start an interpreter that keeps its variables from cell to cell, and return it.

        `cwd`: the folder it starts in, the user's home unless given. `env` is added to the sandbox's own variables. Any
        template with Python 3.8 or newer will do; `code-interpreter` has numpy, pandas and matplotlib.

        Raises InvalidRequest (another language), Conflict (there is no python3), NotFound, SandboxLost.
        """
        return self._new_context(new_session(language, cwd, env, user), secrets.token_hex(16))

    create_code_context = code_context

    def attach_code_context(self, id: str) -> CodeContext:
        """Return the code context with this id, which may have ended. Raises NotFound."""
        call = Call("GET", f"{self._path}/repl/sessions/{context_id(id)}")
        return CodeContext(self._client, self._client.fetch_as(SessionView, call))

    def code_contexts(self) -> list[CodeContext]:
        """Return its code contexts that have not ended, the oldest first."""
        told = self._client.fetch_as(SessionList, Call("GET", f"{self._path}/repl/sessions"))
        return [CodeContext(self._client, view) for view in told.items]

    def run_code(
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
        context = self._own_context()
        try:
            return context.run(code, timeout_seconds, on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result)
        except (InterpreterLost, NotFound):
            self._context = self._context_key = None
            raise

    def _own_context(self) -> CodeContext:
        if self._context is None:
            self._context_key = self._context_key or secrets.token_hex(16)
            try:
                self._context = self._new_context(new_session("python", None, None, None), self._context_key)
            except (Conflict, Failed):  # under this key the answer would stay the same
                self._context_key = None
                raise
        return self._context

    def _new_context(self, content: bytes, key: str) -> CodeContext:
        call = Call(
            "POST",
            f"{self._path}/repl/sessions",
            content=content,
            headers={"Idempotency-Key": key},
            repeatable=True,
            silence_s=FREEZE_SILENCE_S,
        )
        return CodeContext(self._client, self._client.fetch_as(SessionView, call))
