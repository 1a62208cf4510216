"""One agent run on one durable sandbox, from its creation to its end.

The sandbox is created once; then every step of the agent is an `exec` or a file written on that same machine. What a
step leaves behind is there for the next: the checkout, the installed package, the server that goes on running. A real
agent would ask a model for its next step; this one knows what it wants, so that the run is the same each time.

Run it with a server on this machine: `torpor up`, then `python examples/first_run.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from material import FIXED_SERVICE
from story import brief, run, timed
from torpor import Client, ExecResult, Sandbox
from workspace import CALL_SERVER, PIP_INSTALL, RUN_TESTS, START_SERVER, set_up

RUN_ID = "first-run"


@dataclass(frozen=True)
class Step:
    """One thing the agent wants done: a command to run, or a file to write."""

    name: str
    kind: Literal["run", "write"]
    command: str = ""
    path: str = ""
    content: str = ""


class Agent:
    """Plans a step, observes what came of it, and plans the next one by that."""

    def __init__(self) -> None:
        self._seen: list[ExecResult] = []

    def plan(self) -> Iterator[Step]:
        """Yield step after step. Each is decided after the one before it has been observed."""
        yield Step("run the tests", "run", RUN_TESTS)
        if self._last.exit_code != 0:
            # "Hello Ada!" lacks its comma: the tests say so, and here a model would read them.
            yield Step("edit service.py", "write", path="/work/service.py", content=FIXED_SERVICE)
            yield Step("run the tests again", "run", RUN_TESTS)
        yield Step("start the server", "run", START_SERVER)
        yield Step("call the server", "run", CALL_SERVER)
        yield Step("write the report", "write", path="/work/report.md", content=self._report())

    def observe(self, result: ExecResult) -> None:
        """Take in what a command did."""
        self._seen.append(result)

    @property
    def _last(self) -> ExecResult:
        return self._seen[-1]

    def _report(self) -> str:
        codes = ", ".join(str(result.exit_code) for result in self._seen)
        return f"# Report\n\nThe service answers: {self._last.stdout}\nExit codes on the way: {codes}\n"


def main() -> None:
    """Tell the story."""
    with Client() as client:
        with timed("create the sandbox") as words:
            sandbox = Sandbox.create(
                template="agent",
                ttl_seconds=3600,  # the backstop: it ends by itself if this program does not get to delete it
                metadata={"run": RUN_ID, "kind": "coding"},
                client=client,
            )
            words.append(sandbox.id)
        create_s = words.elapsed_s
        try:
            set_up(sandbox, PIP_INSTALL)
            work(sandbox)
            with timed("read the report") as words:
                report = sandbox.filesystem.read_text("/work/report.md")
                words.append(f"{len(report)} characters")
        finally:
            with timed("delete the sandbox"):
                sandbox.delete()  # results are collected; nothing of it costs anything from here on
        print(f"\n{report}")
        compare(client, create_s)


def work(sandbox: Sandbox) -> None:
    """Let the agent take its steps, all on the same machine."""
    agent = Agent()
    for step in agent.plan():
        with timed(step.name) as words:
            if step.kind == "write":
                sandbox.filesystem.write(step.path, step.content)
                words.append(step.path)
            else:
                result = sandbox.exec(step.command, timeout_seconds=120)
                agent.observe(result)
                words.append(brief(result))


def compare(client: Client, create_s: float) -> None:
    """Say what the sandbox's creation took, beside the boot that it was spared."""
    boot_s = next(template.cold_boot_ms for template in client.templates.list() if template.name == "agent") / 1000
    print(f"create: {create_s:.2f} s, where a cold boot of the same template took {boot_s:.1f} s.")


if __name__ == "__main__":
    run(main)
