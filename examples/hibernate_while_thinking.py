"""An agent whose sandbox hibernates while the model thinks.

Most of a run is waiting for the model. Here the sandbox is frozen to disk across each wait: meanwhile it has no
process and holds no memory. At the next step it goes on in mid-instruction: the dev server listens, and the
interpreter still has in memory what it was given steps ago. The model is simulated: it thinks for some seconds, and
knows its plan beforehand, so that the run is the same each time.

Run it with a server on this machine: `torpor up`, then `python examples/hibernate_while_thinking.py`.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from material import INTERPRETER
from story import brief, mib, run, timed
from torpor import ExecResult, Sandbox
from workspace import CALL_SERVER, START_SERVER, set_up

START_INTERPRETER = "cd /work && nohup python3 interpreter.py 9000 >/work/interpreter.log 2>&1 </dev/null &"
TELL_INTERPRETER = (
    "curl --silent --show-error --fail-with-body --retry 30 --retry-delay 1 --retry-connrefused"
    " --data-binary @- http://127.0.0.1:9000/"
)
READ_THE_PAGES = """
import hashlib
pages = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(2000)]
index = {}
for number, page in enumerate(pages):
    for start in range(0, 64, 8):
        index.setdefault(page[start:start + 3], set()).add(number)
print(len(pages), "pages read,", len(index), "words known")
"""
LOOK_UP = """
found = sorted(index["cab"] & index["bed"] | index["fee"])
print("pages that match:", len(found))
"""
LOOK_FURTHER = "print('the first of them begins with', pages[found[0]][:12])"
# Some seconds of work, to be slept through.
COUNT = "for number in 1 2 3 4 5 6 7 8; do echo $number; sleep 0.25; done"


@dataclass(frozen=True)
class Step:
    """One thing the agent wants done: a command, and what it reads."""

    name: str
    command: str
    stdin: str | None = None


STEPS = (
    Step("start the dev server", START_SERVER),
    Step("call the dev server", CALL_SERVER),
    Step("start an interpreter", START_INTERPRETER),
    Step("let it read 2000 pages", TELL_INTERPRETER, READ_THE_PAGES),
    Step("look something up", TELL_INTERPRETER, LOOK_UP),
    Step("look at what was found", TELL_INTERPRETER, LOOK_FURTHER),
    Step("call the dev server again", CALL_SERVER),
)


class Model:
    """Stands in for a language model: given what has been seen, it thinks, and says what to do next."""

    def __init__(self, think_s: float) -> None:
        self._think_s = think_s

    def think(self, context: list[ExecResult]) -> Step | None:
        """Return the next step, or None when there is none left."""
        time.sleep(self._think_s)
        return STEPS[len(context)] if len(context) < len(STEPS) else None


class Agent:
    """Keeps what it saw, and what it wants to do next."""

    def __init__(self) -> None:
        self._seen: list[ExecResult] = []
        self._next: Step | None = STEPS[0]

    def done(self) -> bool:
        return self._next is None

    def next_step(self) -> Step:
        assert self._next is not None
        return self._next

    def observe(self, result: ExecResult) -> None:
        self._seen.append(result)

    def context(self) -> list[ExecResult]:
        return self._seen

    def apply(self, plan: Step | None) -> None:
        self._next = plan


class Meter:
    """Measures a run: `asleep_s` of its seconds the sandbox had no machine."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.asleep_s = 0.0

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Count the block as time asleep."""
        began = time.monotonic()
        yield
        self.asleep_s += time.monotonic() - began

    def wall_s(self) -> float:
        return time.monotonic() - self._began


def main() -> None:
    """Tell the story."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--think", type=float, default=5.0, help="how long the model thinks, in seconds (5)")
    think_s: float = parser.parse_args().think
    if not 0 <= think_s <= 600:
        parser.error("the model thinks for 0 to 600 seconds")
    meter = Meter()
    with timed("create the sandbox") as words:
        sandbox = Sandbox.create(template="agent", metadata={"run": "hibernating"})
        words.append(sandbox.id)
    with sandbox:  # deletes it at the end
        set_up(sandbox)
        sandbox.filesystem.write("/work/interpreter.py", INTERPRETER)
        work(sandbox, Model(think_s), meter)
        sleep_through_a_command(sandbox, think_s, meter)
    wall_s, asleep_s = meter.wall_s(), meter.asleep_s
    print(f"\nwall-clock {wall_s:.1f} s, machine awake {wall_s - asleep_s:.1f} s: {asleep_s / wall_s:.0%} saved.")


def work(sandbox: Sandbox, model: Model, meter: Meter) -> None:
    """Let the agent take its steps. The sandbox is awake for the steps, and asleep while the model thinks."""
    agent = Agent()
    print(f"\n{'step':<27}{'wake':>7}{'exec':>7}{'hibernate':>11}{'written':>10}{'thinking':>10}   result")
    while not agent.done():
        began = time.monotonic()
        sandbox.wake()  # does nothing if it is awake, as it is the first time
        woken = time.monotonic()

        step = agent.next_step()
        print(f"{step.name:<27}{woken - began:7.2f}", end="", flush=True)
        result = sandbox.exec(step.command, stdin=step.stdin, timeout_seconds=120)
        agent.observe(result)
        worked = time.monotonic()

        sandbox.hibernate()
        frozen = time.monotonic()
        written = sandbox.snapshots()[0].written_bytes  # what it sleeps in: the newest
        print(f"{worked - woken:7.2f}{frozen - worked:11.2f}{mib(written):>10}", end="", flush=True)

        with meter.asleep():
            plan = model.think(agent.context())
        print(f"{time.monotonic() - frozen:10.2f}   {brief(result)}")
        agent.apply(plan)


def sleep_through_a_command(sandbox: Sandbox, sleep_s: float, meter: Meter) -> None:
    """Hibernate in the middle of a command. Who waits for it goes on waiting, and gets its true result."""
    heard: list[str] = []
    begun = threading.Event()

    def hear(text: str) -> None:
        heard.append(text)
        begun.set()

    print()
    with ThreadPoolExecutor(1) as pool:
        with timed("count to 8"):
            counting = pool.submit(sandbox.exec, COUNT, on_stdout=hear)
            counting.add_done_callback(lambda _: begun.set())
            begun.wait()
        with timed("hibernate in the middle") as words:
            sandbox.hibernate()
            words.append("counted so far: " + " ".join("".join(heard).split()))
        with meter.asleep(), timed("asleep"):
            time.sleep(sleep_s)
        with timed("wake, and hear the rest") as words:
            sandbox.wake()
            result = counting.result()
            words.append(f"exit {result.exit_code}: {' '.join(result.stdout.split())}")


if __name__ == "__main__":
    run(main)
