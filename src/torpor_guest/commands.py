"""Commands that nobody can find again: their caller waits for them, or they are killed."""

from __future__ import annotations

import time
from collections.abc import Callable

from torpor_guest import protocol, spawn
from torpor_guest.connection import Stream
from torpor_guest.execs import Execs, Wish
from torpor_guest.pipes import InputPipe, OutputPipe, opened
from torpor_guest.process import Outcome, Process, last_words


class Command:
    """A command without an id. It outlives its stream if the host goes away, and its output is then thrown away.

    `on_gone` is called once it has ended or was not started after all.
    """

    def __init__(self, execs: Execs, stream: Stream, wish: Wish, *, with_input: bool) -> None:
        self.wish, self.started_at = wish, time.time()
        self.on_gone: Callable[[], None] = lambda: None
        self._stream = stream
        self._process = Process(execs, wish.timeout_s, self._ended)
        self._outcome: Outcome | None = None
        loop, self._null = execs.loop, execs.null
        out, err, self._input = opened(
            lambda: OutputPipe(loop, self._null, stream, protocol.OUTPUT, self._settle),
            lambda: OutputPipe(loop, self._null, stream, protocol.ERRORS, self._settle),
            (lambda: InputPipe(loop)) if with_input else None,
        )
        self._outputs = [out, err]

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    @property
    def counts(self) -> tuple[int, int]:
        """How many bytes of its stdout and stderr were read."""
        return self._outputs[0].count, self._outputs[1].count

    def start(self, order: spawn.Order) -> None:
        """Start the process. Raises Refusal; a program that cannot be run closes the stream with a result."""
        stdin = self._null if self._input is None else self._input.child_end
        try:
            self._process.start(order, spawn.Streams(stdin, self._outputs[0].child_end, self._outputs[1].child_end))
        except BaseException as error:
            for pipe in self._pipes():
                pipe.abandon()
            if not isinstance(error, spawn.CannotRun):
                raise
            self._answer_cannot_run(order.argv[0], error)
            return
        for pipe in self._pipes():
            pipe.begin()
        self._stream.operation = self

    def _pipes(self) -> list[InputPipe | OutputPipe]:
        return [*self._outputs, *([self._input] if self._input else [])]

    def _answer_cannot_run(self, name: bytes, error: spawn.CannotRun) -> None:
        words = last_words(name, error)
        self._stream.send(protocol.ERRORS, words)
        self._stream.result(self._process.cannot_run(error) | {"stdout_bytes": 0, "stderr_bytes": len(words)})
        self.on_gone()

    def _ended(self, outcome: Outcome) -> None:
        self._outcome = outcome
        if self._input is not None:
            self._input.close()
        for pipe in self._outputs:
            pipe.command_ended()
        self._settle()
        self.on_gone()

    def _settle(self) -> None:
        if self._outcome is not None and all(pipe.done for pipe in self._outputs):
            stdout_bytes, stderr_bytes = self.counts
            self._stream.result(self._outcome | {"stdout_bytes": stdout_bytes, "stderr_bytes": stderr_bytes})

    def on_data(self, payload: memoryview) -> None:
        if self._input is None:
            self._stream.consumed(len(payload))
        else:
            self._input.take(payload, self._stream)

    def on_end(self) -> None:
        if self._input is not None:
            self._input.end()

    def on_cancel(self) -> None:
        for pipe in self._outputs:
            pipe.discard()
        if self._outcome is None:
            self._process.kill()

    def on_drop(self) -> None:
        if self._input is not None:
            self._input.end()
        for pipe in self._outputs:
            pipe.discard()
