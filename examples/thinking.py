"""An agent whose sandbox decides for itself whether to sleep through a wait for the model.

`thinking()` around the call is all there is to it. The sandbox hibernates once the wait has lasted longer than
hibernating and waking take in it, which is measured as it goes: a short answer leaves it alone, a long one frees its
machine. It is awake again when the block ends. The model is simulated: its tokens come as a stream, and some answers
take longer than others.

Run it with a server on this machine: `torpor up`, then `python examples/thinking.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from story import brief, run, timed
from torpor import AsyncSandbox, Pause


@dataclass(frozen=True)
class Answer:
    """What the model will say, and how long it takes to think and to say it, in seconds."""

    text: str
    takes_s: float


# Counts for as long as its machine runs.
COUNTER = "(n=0; while sleep 0.2; do n=$((n+1)); echo $n >>/tmp/counted; done) >/dev/null 2>&1 </dev/null &"
ANSWERS = (
    Answer("nproc", 0.1),
    Answer(COUNTER, 4.0),
    Answer("tail -n 1 /tmp/counted", 5.0),
)


class Model:
    """Stands in for a language model with a streaming interface."""

    def __init__(self) -> None:
        self._answers = iter(ANSWERS)

    async def stream(self, context: list[str]) -> AsyncIterator[str]:
        """Yield the next command token by token, each after a while; nothing when there is no more to do."""
        del context
        answer = next(self._answers, None)
        if answer is None:
            return
        tokens = answer.text.split(" ")
        for place, token in enumerate(tokens):
            await asyncio.sleep(answer.takes_s / len(tokens))
            yield token if place == 0 else f" {token}"


async def next_command(model: Model, context: list[str], sandbox: AsyncSandbox) -> tuple[str, Pause]:
    """Ask the model, and let the sandbox sleep through it if that is worth it. Any streaming call fits in here."""
    async with sandbox.thinking() as pause:
        command = "".join([token async for token in model.stream(context)])
    return command, pause


async def work(sandbox: AsyncSandbox) -> None:
    """Let the agent take step after step on its sandbox, until the model has no more to ask for."""
    model, context = Model(), list[str]()
    print(f"\n{'waited':>8}{'threshold':>11}{'asleep':>8}{'exec':>7}   command and result")
    while True:
        command, pause = await next_command(model, context, sandbox)
        if not command:
            return
        began = time.monotonic()
        result = await sandbox.exec(command, timeout_seconds=60)
        took_s = time.monotonic() - began
        context.append(result.stdout)
        print(f"{pause.waited_s:8.2f}{pause.threshold_s:11.2f}{pause.asleep_s:8.2f}{took_s:7.2f}   {command[:40]}")
        print(f"{'':>34}   {brief(result)}")


async def tell() -> None:
    """Tell the story."""
    began = time.monotonic()
    with timed("create the sandbox") as words:
        sandbox = await AsyncSandbox.create(template="agent", metadata={"run": "thinking"})
        words.append(sandbox.id)
    async with sandbox:  # deletes it at the end
        await work(sandbox)
        print(f"\nwall-clock {time.monotonic() - began:.1f} s. The waits: {sandbox.thought}.")
        print(f"The account: {await sandbox.usage()}.")


def main() -> None:
    """Run it."""
    asyncio.run(tell())


if __name__ == "__main__":
    run(main)
