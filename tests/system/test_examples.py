"""The code of the article that Torpor realises, run as it stands there: only the import is another.

What the article leaves to its reader (the agent, the model, the plan) is played here by small fakes, and what it takes
from the internet lies in the sandbox beforehand.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from material import make_repository, make_wheel
from running_server import RunningServer, home_sharing_templates, serving
from torpor import ExecResult, Sandbox, SandboxLost, Snapshot
from torpor.host.bake import build_template

DURABLE_RUN = """
from torpor import Sandbox

# One durable sandbox for the WHOLE agent run. It restores a baked template
# snapshot (~179ms p50), and the ttl is a backstop so a hung run reaps itself
# even if your supervisor dies. This VM is the agent's workspace for every step.
sbx = Sandbox.create(
    template="agent",
    ttl_seconds=3600,                       # 1h ceiling; the run should finish well inside it
    metadata={"run": run_id, "kind": "deep-research"},
)

try:
    # Expensive setup happens ONCE and persists for the rest of the run.
    sbx.exec("git clone --depth 1 https://github.com/acme/service /work")
    sbx.exec("cd /work && pip install -r requirements.txt")  # deps stay installed

    # The agent loop: each step is an exec or fs write against the SAME machine.
    # Step N sees everything steps 1..N-1 did to the filesystem and processes.
    for step in agent.plan(run_id):
        if step.kind == "write":
            sbx.filesystem.write(step.path, step.content)   # edits accumulate
        else:
            result = sbx.exec(step.command, timeout_seconds=120)
            agent.observe(result.stdout, result.stderr, result.exit_code)

        # ...and between steps, the agent calls the LLM to decide what's next.
        # During that call, this VM is doing nothing but holding its state.
    outcome = sbx.filesystem.read("/work/report.md")
finally:
    sbx.delete()   # collect results first; idle cost after this is ~zero
"""

HIBERNATE_WHILE_THINKING = """
# The agent yields to the LLM between steps. That wait is the expensive idle
# time. Hibernate across it: freeze the whole machine, pay ~0 while thinking,
# then wake exactly where it left off — no reboot, no re-clone, no re-install.

while not agent.done():
    sbx.wake()                    # resume the frozen machine (a restore, sub-second)

    step = agent.next_step()      # cheap: reads state the agent already has
    result = sbx.exec(step.command, timeout_seconds=120)
    agent.observe(result)

    # Now the agent needs the model to plan the next move. Instead of leaving
    # the VM hot and idle for the whole (slow) LLM call, freeze it.
    sbx.hibernate()               # snapshot + pause; idle cost ~zero while frozen

    plan = llm.think(agent.context())   # seconds-to-minutes of pure waiting —
                                        # and you're not paying for a live VM for it
    agent.apply(plan)

# The processes, working dir, and warm caches survived every hibernate/wake
# cycle because you never tore the machine down — you paused a running one.
"""

CHECKPOINTS = """
# Checkpoint at milestones so a crash costs you the last phase, not the run.
checkpoints = []

sbx.exec("cd /work && pip install -r requirements.txt")
checkpoints.append(sbx.snapshot())      # durable checkpoint: env is ready

for phase in research_plan:
    run_phase(sbx, phase)
    checkpoints.append(sbx.snapshot())  # freeze state after each phase
"""

# In the article these two lines are a comment below the block above.
RECOVERY = """
recovered = Sandbox.restore(checkpoints[-1])
run_phase(recovered, next_unfinished_phase)
"""

CLONE = """
sbx.exec("git clone --depth 1 https://github.com/acme/service /work")
"""

# The guest's git and pip find here what they would find on the internet.
GIT_CONFIG = '[url "file:///srv/"]\n    insteadOf = https://github.com/acme/\n'
PIP_CONFIG = "[install]\nno-index = true\nfind-links = /srv/wheels\nbreak-system-packages = true\n"

# A program with something in memory that cannot be had a second time.
REMEMBER = """
import secrets, http.server
SECRET = secrets.token_hex().encode()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(SECRET)
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
CALL = "curl --silent --show-error --retry 30 --retry-delay 1 --retry-connrefused http://127.0.0.1:8000/"


@pytest.fixture(scope="module")
def agent_server(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that has the template `agent`, which is baked beside `base` and kept with it."""
    asyncio.run(build_template(template_home, "agent"))
    home = home_sharing_templates(template_home, tmp_path_factory.mktemp("agents") / "home", names=["agent"])
    with serving(home) as running:
        yield running


@pytest.fixture(autouse=True)
def configured(agent_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The article's code names no server, so it is found by the environment."""
    monkeypatch.setenv("TORPOR_API", agent_server.url)
    monkeypatch.setenv("TORPOR_API_KEY", agent_server.key)


@pytest.fixture
def sbx() -> Iterator[Sandbox]:
    """A sandbox with the repository cloned."""
    with Sandbox.create(template="agent") as sandbox:
        supply(sandbox)
        run(CLONE, sbx=sandbox)
        yield sandbox


def run(block: str, **names: Any) -> dict[str, Any]:
    """Run a block of the article with what it takes for granted, and return every name it has then."""
    exec(compile(block, "the article", "exec"), names)
    return names


def supply(sandbox: Sandbox) -> None:
    """Lay into a sandbox what the article's commands fetch from the internet."""
    with tempfile.TemporaryDirectory() as folder:
        sandbox.filesystem.upload(make_repository(Path(folder)), "/srv/service.bundle")
        wheel = make_wheel(Path(folder))
        sandbox.filesystem.upload(wheel, f"/srv/wheels/{wheel.name}")
    sandbox.exec("git clone --quiet --bare --branch main /srv/service.bundle /srv/service", check=True)
    sandbox.filesystem.write("/root/.gitconfig", GIT_CONFIG)
    sandbox.filesystem.write("/etc/pip.conf", PIP_CONFIG)


@dataclass(frozen=True)
class Step:
    """What an agent wants done."""

    command: str = ""
    kind: str = "exec"
    path: str = ""
    content: str = ""


@dataclass
class Agent:
    """Takes the steps it was given, and remembers what came of them."""

    steps: list[Step]
    seen: list[Any] = field(default_factory=list)

    def plan(self, run_id: str) -> Iterator[Step]:
        yield from self.steps

    def observe(self, *result: Any) -> None:
        self.seen.append(result if len(result) > 1 else result[0])

    def done(self) -> bool:
        return len(self.seen) == len(self.steps)

    def next_step(self) -> Step:
        return self.steps[len(self.seen)]

    def context(self) -> list[Any]:
        return self.seen

    def apply(self, plan: str) -> None:
        assert plan == f"thought about {len(self.seen)}"


@dataclass
class Model:
    """Thinks, and looks meanwhile what became of the sandbox."""

    sandbox: str
    states: list[str] = field(default_factory=list)

    def think(self, context: list[Any]) -> str:
        self.states.append(Sandbox.connect(self.sandbox).state)
        return f"thought about {len(context)}"


def test_one_sandbox_serves_every_step_of_a_run_and_is_gone_after_it() -> None:
    agent = Agent(
        [
            Step("cd /work && git log --oneline | wc -l && python3 -c 'import salutations; print(salutations.HELLO)'"),
            Step(kind="write", path="/work/answer.txt", content="42"),
            Step("cat /work/answer.txt; echo oh >&2; exit 3"),
            Step("cp /work/answer.txt /work/report.md"),
        ]
    )
    block = DURABLE_RUN.replace("try:\n", "try:\n    supply(sbx)\n", 1)
    names = run(block, agent=agent, run_id="run-42", supply=supply)
    assert agent.seen == [("1\nHello\n", "", 0), ("42", "oh\n", 3), ("", "", 0)]
    assert names["outcome"] == b"42"
    assert list(Sandbox.list(metadata={"run": "run-42"})) == []


def test_a_sandbox_that_hibernates_across_each_thought_keeps_its_processes_and_their_memory(sbx: Sandbox) -> None:
    sbx.filesystem.write("/work/remember.py", REMEMBER)
    start = Step("nohup python3 /work/remember.py >/dev/null 2>&1 </dev/null & echo $!")
    agent, llm = Agent([start, Step(CALL), Step(CALL), Step("cd /work && git status --short")]), Model(sbx.id)

    run(HIBERNATE_WHILE_THINKING, agent=agent, llm=llm, sbx=sbx)

    assert llm.states == ["hibernated"] * 4
    results: list[ExecResult] = agent.seen
    assert [result.exit_code for result in results] == [0] * 4, results
    assert len(results[1].stdout) == 64
    assert results[1].stdout == results[2].stdout
    assert "remember.py" in results[3].stdout
    pid = int(results[0].stdout)
    # It hibernates now; a command wakes it, and the process is the one it always was.
    assert b"remember.py" in sbx.exec(["cat", f"/proc/{pid}/cmdline"], check=True).stdout_bytes


def test_a_crash_costs_the_last_phase_and_not_the_run(sbx: Sandbox) -> None:
    plan = ["crawl", "read", "write"]

    def run_phase(sandbox: Sandbox, phase: str) -> None:
        sandbox.exec(f"echo {phase} >>/work/phases.txt", check=True)

    names = run(CHECKPOINTS, sbx=sbx, research_plan=plan[:2], run_phase=run_phase)
    checkpoints: list[Snapshot] = names["checkpoints"]
    try:
        with pytest.raises(SandboxLost) as lost:
            sbx.exec("echo half-done >>/work/phases.txt; echo b >/proc/sysrq-trigger; sleep 60")
        assert lost.value.last_snapshot == str(checkpoints[-1])

        names = run(RECOVERY, **{**names, "Sandbox": Sandbox, "next_unfinished_phase": plan[2]})
        with names["recovered"] as recovered:
            assert recovered.filesystem.read_text("/work/phases.txt") == "crawl\nread\nwrite\n"
            assert recovered.exec("cd /work && python3 -c 'import salutations'").exit_code == 0
    finally:
        for checkpoint in checkpoints:
            checkpoint.delete()
    assert list(Snapshot.list(sbx)) == []
