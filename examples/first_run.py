"""One agent run on one durable sandbox, from its creation to its end.

The sandbox is created once; then every step of the agent is an `exec` or a file written on that same machine. What a
step leaves behind is there for the next: the checkout, the installed package, the server that goes on running. A real
agent would ask a model for its next step; this one knows what it wants, so that the run is the same each time.

Run it with a server on this machine: `torpor up`, then `python examples/first_run.py`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from material import SERVICE, make_repository, make_wheel

from torpor import Client, ExecResult, Sandbox, TorporError

RUN_ID = "first-run"
RUN_TESTS = "cd /work && python3 -m unittest -v"
# All three streams go elsewhere, so the command ends at once and the server stays.
START_SERVER = "cd /work && nohup python3 service.py 8000 >/work/server.log 2>&1 </dev/null &"
CALL_SERVER = "curl --silent --show-error --retry 30 --retry-delay 1 --retry-connrefused http://127.0.0.1:8000/Ada"


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
            fixed = SERVICE.replace("{HELLO} {name}", "{HELLO}, {name}")
            yield Step("edit service.py", "write", path="/work/service.py", content=fixed)
            yield Step("run the tests again", "run", RUN_TESTS)
        yield Step("start the server", "run", START_SERVER)
        yield Step("call the server", "run", CALL_SERVER)
        yield Step("write the report", "write", path="/work/report.md", content=self._report())

    def observe(self, result: ExecResult) -> str:
        """Take in what a command did, and say it in a few words."""
        self._seen.append(result)
        said = (result.stdout or result.stderr).strip().splitlines()
        return f"exit {result.exit_code}" + (f": {said[-1]}" if said else "")

    @property
    def _last(self) -> ExecResult:
        return self._seen[-1]

    def _report(self) -> str:
        codes = ", ".join(str(result.exit_code) for result in self._seen)
        return f"# Report\n\nThe service answers: {self._last.stdout}\nExit codes on the way: {codes}\n"


def main() -> int:
    """Run the story and return an exit code."""
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
            set_up(sandbox)
            work(sandbox)
            with timed("read the report") as words:
                report = sandbox.filesystem.read_text("/work/report.md")
                words.append(f"{len(report)} characters")
        finally:
            with timed("delete the sandbox"):
                sandbox.delete()  # results are collected; nothing of it costs anything from here on
        print(f"\n{report}")
        compare(client, create_s)
    return 0


def set_up(sandbox: Sandbox) -> None:
    """Do the expensive part once: the checkout and the dependencies stay for the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        with timed("make a repository and a package"):
            bundle, wheel = make_repository(Path(folder)), make_wheel(Path(folder))
        with timed("upload both") as words:
            sent = sandbox.filesystem.upload(bundle, "/root/service.bundle").bytes
            sent += sandbox.filesystem.upload(wheel, f"/root/wheels/{wheel.name}").bytes
            words.append(f"{sent} bytes")
    with timed("clone the repository"):
        sandbox.exec("git clone --quiet --branch main /root/service.bundle /work", check=True)
    with timed("install the dependencies"):
        # The sandbox is the environment: there is no other program on it that pip could break.
        install = "pip install --quiet --no-index --find-links /root/wheels --break-system-packages"
        sandbox.exec(f"{install} --root-user-action ignore -r /work/requirements.txt", check=True, timeout_seconds=300)


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
                words.append(agent.observe(result))


def compare(client: Client, create_s: float) -> None:
    """Say what the sandbox's creation took, beside the boot that it was spared."""
    boot_s = next(template.cold_boot_ms for template in client.templates.list() if template.name == "agent") / 1000
    print(f"create: {create_s:.2f} s, where a cold boot of the same template took {boot_s:.1f} s.")


class Words(list[str]):
    """What is said of a step when it has ended, and how long it took."""

    elapsed_s: float = 0.0


@contextmanager
def timed(name: str) -> Iterator[Words]:
    """Print a step's name, and its time and result when it has ended."""
    words = Words()
    print(f"{name:<32}", end="", flush=True)
    began = time.monotonic()
    try:
        yield words
    except BaseException:
        print("failed")
        raise
    words.elapsed_s = time.monotonic() - began
    print(f"{words.elapsed_s:7.2f} s   {' '.join(words)}".rstrip())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TorporError as error:
        sys.exit(f"error: {error.message}" + (f". {error.hint}" if error.hint else ""))
