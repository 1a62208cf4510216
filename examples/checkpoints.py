"""A long run that survives its machine: a checkpoint after each phase, and the last one restored after a crash.

A snapshot holds the whole machine, memory and disk, of one instant. Going back to one costs what happened since, and
nothing else: a phase that went wrong is rolled back in place, and when the machine itself is lost, another sandbox goes
on from the last checkpoint, with the server that was running in it.

Run it with a server on this machine: `torpor up`, then `python examples/checkpoints.py`.
"""

from __future__ import annotations

from contextlib import ExitStack

from material import FIXED_SERVICE
from story import brief, mib, run, timed
from torpor import Sandbox, SandboxLost, Snapshot, TorporError
from workspace import CALL_SERVER, RUN_TESTS, START_SERVER, set_up

PLAN = ("fix the service", "start the server", "write the report")
# Resets the guest's processor, as a crash of its kernel would: nothing is written, nothing is closed.
CRASH = "echo b >/proc/sysrq-trigger"


def main() -> None:
    """Tell the story. Whatever happens in it, the sandboxes and the checkpoints are deleted at its end."""
    with ExitStack() as undo:
        with timed("create the sandbox") as words:
            sandbox = undo.enter_context(Sandbox.create(template="agent", metadata={"run": "checkpoints"}))
            words.append(sandbox.id)
        checkpoints: list[Snapshot] = []
        undo.callback(delete_all, checkpoints)
        set_up(sandbox)
        checkpoints.append(checkpoint(sandbox, "ready"))

        for phase in PLAN[:2]:
            run_phase(sandbox, phase)
            checkpoints.append(checkpoint(sandbox, phase))
        make_a_mess(sandbox, checkpoints[-1])
        crash(sandbox)

        with timed("restore the last checkpoint") as words:
            recovered = undo.enter_context(Sandbox.restore(checkpoints[-1], metadata={"run": "checkpoints"}))
            words.append(f"{recovered.id}, from {checkpoints[-1]}")
        run_phase(recovered, PLAN[2])
        print("\n" + recovered.filesystem.read_text("/work/report.md"))
        compare(checkpoints)


def run_phase(sandbox: Sandbox, phase: str) -> None:
    """Do one phase of the plan. Each stands on what those before it left, in files and in processes."""
    with timed(phase) as words:
        if phase == "fix the service":
            sandbox.filesystem.write("/work/service.py", FIXED_SERVICE)
            words.append(brief(sandbox.exec(RUN_TESTS, check=True)))
        elif phase == "start the server":
            sandbox.exec(START_SERVER, check=True)
            words.append(brief(sandbox.exec(CALL_SERVER, check=True)))
        else:
            answer = sandbox.exec(CALL_SERVER, check=True).stdout
            sandbox.filesystem.write("/work/report.md", f"# Report\n\nThe service answers: {answer}\n")
            words.append("the server of the phase before answers")


def checkpoint(sandbox: Sandbox, name: str) -> Snapshot:
    """Freeze the state after a phase, on disk; the sandbox runs on."""
    with timed(f"  checkpoint: {name}") as words:
        snapshot = sandbox.snapshot(name=name)
        words.append(str(snapshot))
    return snapshot


def make_a_mess(sandbox: Sandbox, before: Snapshot) -> None:
    """Let the agent do something foolish, and take it back."""
    with timed("rm -rf /work") as words:
        sandbox.exec("rm -rf /work", check=True)
        words.append(brief(sandbox.exec(RUN_TESTS)))
    with timed("roll back") as words:
        sandbox.rollback(before)
        words.append(brief(sandbox.exec(CALL_SERVER, check=True)))


def crash(sandbox: Sandbox) -> None:
    """Lose the machine in the middle of the work, and be told so."""
    with timed("the crash") as words:
        try:
            sandbox.exec(f"echo '# Rep' >/work/report.md; {CRASH}; sleep 60")
        except SandboxLost as lost:
            words.append(f"SandboxLost, and its last snapshot is {lost.last_snapshot}")
        else:
            raise TorporError("the machine outlived its crash")


def compare(checkpoints: list[Snapshot]) -> None:
    """Say what the checkpoints cost."""
    print(f"{'checkpoint':<20}{'stood still':>12}{'durable in':>12}{'new on disk':>13}")
    for each in checkpoints:
        print(f"{each.name:<20}{each.pause_ms:9.0f} ms{each.took_ms:9.0f} ms{mib(each.size_bytes):>13}")


def delete_all(checkpoints: list[Snapshot]) -> None:
    """Delete the checkpoints: they outlive their sandbox."""
    with timed("delete the checkpoints"):
        for each in checkpoints:
            each.delete()


if __name__ == "__main__":
    run(main)
