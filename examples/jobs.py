"""Commands that outlive whoever started them: a build that is lost in the middle and found again, byte for byte.

A started process has an id and lives in the sandbox, not in this program. Whoever knows the id can listen to it from
the byte it was last heard at, also after the sandbox slept, and is told its true exit code.

Run it with a server on this machine: `torpor up`, then `python examples/jobs.py`.
"""

from __future__ import annotations

from contextlib import closing

from story import brief, run, timed
from torpor import Sandbox, TorporError

BUILD = (
    "for part in 1 2 3 4 5 6; do echo compiling part $part of 6; sleep 0.4; done; echo part 6 does not link >&2; exit 3"
)
WHOLE = "".join(f"compiling part {part} of 6\n" for part in range(1, 7))
SERVE = ["python3", "-u", "-m", "http.server", "8000"]
CALL_SERVER = (
    "curl -s -o /dev/null -w '%{http_code}' --retry 20 --retry-delay 1 --retry-connrefused http://127.0.0.1:8000/"
)


def main() -> None:
    """Tell the story."""
    with timed("create the sandbox") as words:
        sandbox = Sandbox.create(template="agent", metadata={"run": "jobs"})
        words.append(sandbox.id)
    with sandbox:  # deletes it at the end
        with timed("start a dev server") as words:
            server = sandbox.start(SERVE, cwd="/srv")
            words.append(server.id)
        job, heard = start_and_lose(sandbox)
        with timed("hibernate and wake"):
            sandbox.hibernate()
            sandbox.wake()
        find_again(sandbox, job, heard)

        with timed("call the dev server") as words:
            words.append(brief(sandbox.exec(CALL_SERVER, check=True)))
        with timed("end it") as words:
            server.kill("SIGTERM")
            words.append(f"it ended with {server.wait().exit_code}")
        print("\nWhat ran in the sandbox:")
        for process in sandbox.processes():
            info = process.info
            print(f"  {info.id}  {info.kind:<8} {info.state}  {info.exit_code:>3}  {info.command[:60]}")


def start_and_lose(sandbox: Sandbox) -> tuple[str, str]:
    """Start a build, listen to its first lines, and forget all but its id and what was heard."""
    with timed("start a build, and lose it") as words:
        build = sandbox.start(BUILD)
        heard = b""
        with closing(build.events()) as pieces:
            for _, data in pieces:
                heard += data
                if heard.count(b"\n") >= 2:
                    break
        words.append(f"{build.id}, heard {len(heard)} bytes")
    return build.id, heard.decode()


def find_again(sandbox: Sandbox, job: str, heard: str) -> None:
    """Attach to the build by its id, as another program could, and hear the rest."""
    with timed("attach, and hear the rest") as words:
        build = sandbox.attach(job)
        for stream, data in build.events(stdout_from=len(heard)):
            if stream == "stdout":
                heard += data.decode()
        words.append(f"exit {build.exit_code}, {len(heard)} bytes in all")
    if heard != WHOLE:
        raise TorporError(f"a byte was lost, or came twice: {heard!r}")


if __name__ == "__main__":
    run(main)
