"""The real guest agent as an ordinary process of this machine, and small ways to use a guest in tests."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from torpor.guest.client import Guest, connect
from torpor.wire.frames import Kind
from torpor.wire.host import ExecOrder, ExecOutcome

_SOURCES = Path(__file__).resolve().parents[2] / "src"
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from torpor_guest.main import main; main()"


@dataclass
class Agent:
    """One agent process.

    `sock` is the host's end of its line, which the test may duplicate, use and close as it likes.
    """

    process: subprocess.Popen[bytes]
    sock: socket.socket
    root: Path
    cgroup: Path | None
    hooks: Path
    console: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    async def connect(self) -> Guest:
        """Return a guest on the line as it is now; closing it leaves the line open."""
        return await connect(self.sock.dup(), timeout_s=10)

    def peak_kib(self) -> int:
        """Return the most memory that the process ever had, in KiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


@asynccontextmanager
async def running_agent(folder: Path, *, cgroups: bool = True) -> AsyncIterator[Agent]:
    """Start an agent that keeps its identity in `folder`, and end it; a fault that it reported fails the test.

    Its hooks are in `folder`/hooks, and what they say is in the file `console`.
    """
    ours, theirs = socket.socketpair()
    cgroup = _new_cgroup() if cgroups else None
    argv = [sys.executable, "-I", "-c", _PROGRAM, str(_SOURCES), "--no-init", "--socket-fd", str(theirs.fileno())]
    argv += ["--identity-root", str(folder / "identity"), *(["--cgroup", str(cgroup)] if cgroup else [])]
    argv += ["--hooks", str(folder / "hooks")]
    complaints = folder / "agent.log"
    with ours, complaints.open("wb") as stderr:
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220 - it only starts; waiting is done in a thread
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=stderr
            )
        try:
            yield Agent(process, ours, folder / "identity", cgroup, folder / "hooks", complaints)
        finally:
            ours.close()
            try:
                await asyncio.to_thread(process.wait, 20)
            finally:
                process.kill()
                process.wait()
                if cgroup is not None:
                    cgroup.rmdir()
    assert "Traceback" not in complaints.read_text()
    assert process.returncode == 0


def _new_cgroup() -> Path | None:
    """Return a new group below the one that we are in, or None where there is no cgroup v2 that we may use."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mount = next((fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"), None)
    if mount is None:
        return None
    inner = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    path = Path(mount + inner) / f"torpor-test-{secrets.token_hex(4)}"
    with suppress(OSError):
        path.mkdir()
        return path
    return None


@dataclass(frozen=True)
class Ran:
    """What a command wrote, and how it ended."""

    stdout: bytes
    stderr: bytes
    outcome: ExecOutcome

    @property
    def code(self) -> int:
        return self.outcome.exit_code


async def run(guest: Guest, *argv: str, stdin: bytes | None = None, **more: object) -> Ran:
    """Run a command to its end."""
    text = None if stdin is None else base64.b64encode(stdin).decode()
    order = ExecOrder.model_validate({"argv": list(argv), "stdin": text, **more})
    written = {Kind.STDOUT: bytearray(), Kind.STDERR: bytearray()}
    async with guest.exec(order) as frames:
        async for frame in frames:
            if frame.kind is Kind.EXIT:
                outcome = ExecOutcome.model_validate_json(frame.payload)
            else:
                written[frame.kind] += frame.payload
    return Ran(bytes(written[Kind.STDOUT]), bytes(written[Kind.STDERR]), outcome)


async def sh(guest: Guest, script: str, **more: object) -> Ran:
    """Run a shell script to its end."""
    return await run(guest, "/bin/sh", "-c", script, **more)  # type: ignore[arg-type]


async def put(guest: Guest, path: str, data: bytes, **more: object) -> int:
    """Write a file in pieces of 50 000 bytes."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 50_000):
            yield data[start : start + 50_000]

    return await guest.write(path, chunks(), **more)  # type: ignore[arg-type]


async def get(guest: Guest, path: str, **more: object) -> bytes:
    """Read a file."""
    async with guest.read(path, **more) as chunks:  # type: ignore[arg-type]
        return b"".join([chunk async for chunk in chunks])


def is_there(pid: int) -> bool:
    """Tell whether a process exists, a zombie included."""
    return os.path.exists(f"/proc/{pid}")


async def wait_gone(guest: Guest, pid: int) -> None:
    """Return when a process that was killed is gone; the agent reaps it in one of its next turns."""
    for _ in range(2000):
        if not is_there(pid):
            return
        await guest.ping()
    raise AssertionError(f"process {pid} is still there")
