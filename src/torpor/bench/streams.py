"""How soon a command's output is here, beside the guest's own channel; and what much of it, or many at once, takes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from torpor.bench.figures import Figure, Floor
from torpor.bench.processes import agent_mib, growth_of
from torpor.bench.subject import Subject
from torpor.errors import Failed
from torpor.sdk import Sandbox
from torpor.sdk.http import STREAM_SILENCE_S, Call
from torpor.sdk.sse import Event, EventReader
from torpor.wire.public import ExecCommand

_MB = 1_000_000
_SIZE_MB = 100
_AT_ONCE = 50
_LINES = 100_000
# What the first byte is taken of.
_ARGV = ["echo", "here"]


def first_byte(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Time the first byte of a command's stream, and of the same command on the channel of a machine of its own."""
    channel = Floor("guest channel", tuple(subject.here().floors.first_bytes(_ARGV, rounds)))
    with subject.sandbox() as sandbox:
        _first_byte(subject, sandbox)  # the connection is made, and the guest warm, as the other is
        values = tuple(_first_byte(subject, sandbox) for _ in range(rounds))
    yield Figure("stream-first", "first byte of exec/stream", "ms", values, channel)


def output(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Stream a large output, and see by how much every process on the way grew."""
    rates: list[float] = []
    with subject.sandbox() as sandbox:
        agent = agent_mib(sandbox)
        with growth_of(subject.pids(sandbox)) as growth:
            for _ in range(rounds):
                started = time.perf_counter()
                _read_all(subject, sandbox)
                rates.append(_SIZE_MB / (time.perf_counter() - started))
        grown = {**growth, "agent": agent_mib(sandbox) - agent}
    yield Figure("stream-rate", f"output streamed, {_SIZE_MB} MB", "MB/s", tuple(rates))
    for name, value in grown.items():
        yield Figure(f"stream-{name}", f"growth of the {name} meanwhile", "MiB", (value,))


def at_once(subject: Subject, rounds: int) -> Iterator[Figure]:
    """Have many commands of one sandbox stream at once, and count those of which a byte is missing or wrong."""
    expected = "".join(f"{number}\n" for number in range(1, _LINES + 1))
    wrong: list[float] = []
    taken: list[float] = []
    with subject.sandbox() as sandbox, ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        for _ in range(rounds):
            started = time.perf_counter()
            results = list(threads.map(lambda _: sandbox.exec(["seq", str(_LINES)]), range(_AT_ONCE)))
            taken.append((time.perf_counter() - started) * 1000)
            wrong.append(sum(result.exit_code != 0 or result.stdout != expected for result in results))
    yield Figure("streams-lost", f"of {_AT_ONCE} streams at once, with a loss", "streams", tuple(wrong))
    yield Figure("streams", f"{_AT_ONCE} streams at once, of {len(expected) / _MB:.2g} MB each", "ms", tuple(taken))


def _first_byte(subject: Subject, sandbox: Sandbox) -> float:
    """Return the milliseconds until the first output of a command."""
    started, first = time.perf_counter(), None
    for event in _events(subject, sandbox, _ARGV):
        if first is None and event.name == "stdout":
            first = (time.perf_counter() - started) * 1000
    if first is None:
        raise Failed("a command that writes has written nothing")
    return first


def _read_all(subject: Subject, sandbox: Sandbox) -> None:
    size = 0
    for event in _events(subject, sandbox, ["head", "-c", str(_SIZE_MB * _MB), "/dev/zero"]):
        if event.name == "stdout":
            size += len(base64.b64decode(json.loads(event.data)["chunk"]))
    if size != _SIZE_MB * _MB:
        raise Failed(f"of {_SIZE_MB} MB of output {size} bytes have arrived")


def _events(subject: Subject, sandbox: Sandbox, argv: list[str]) -> Iterator[Event]:
    """Run a command and yield the events of its stream as they come; nothing of them is kept."""
    order = ExecCommand(cmd=argv, encoding="base64").model_dump_json(exclude_none=True).encode()
    path = f"/sandboxes/{sandbox.id}/exec/stream"
    call = Call("POST", path, content=order, repeatable=False, silence_s=STREAM_SILENCE_S)
    response, reader = subject.client.open(call), EventReader()
    try:
        for chunk in subject.client.chunks(response):
            yield from reader.feed(chunk)
    finally:
        response.close()
