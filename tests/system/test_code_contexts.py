"""Code contexts on real guests: what only a guest, its agent and a machine that sleeps can show."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandastack  # type: ignore[import-untyped]  # it comes without types
import pytest

from running_server import RunningServer, home_sharing_templates, serving
from torpor import ExecTimeout, InterpreterLost, Sandbox

PNG = b"\x89PNG\r\n\x1a\n"
# Longer than the other client waits in silence.
LONG_S = 45


@pytest.fixture(scope="module")
def long_command(server: RunningServer, sandbox: Sandbox) -> Iterator[dict[str, object]]:
    """A command of LONG_S seconds that the vendor's client waits for, beside the other tests of this file."""
    said: dict[str, object] = {}

    def wait() -> None:
        began = time.monotonic()
        client = pandastack.Client(server.url, server.key)
        result = client.sandboxes.get(sandbox.id).exec(f"sleep {LONG_S}; echo done")
        client.session.close()
        said.update(stdout=result.stdout, exit_code=result.exit_code, took_s=time.monotonic() - began)

    waiting = threading.Thread(target=wait)
    waiting.start()
    said["thread"] = waiting
    yield said
    waiting.join()


def test_cells_share_variables_and_leave_no_file_behind(sandbox: Sandbox, long_command: dict[str, object]) -> None:
    litter = "find /tmp /var/tmp /work /root /etc /usr/local -newermt '-1 hour' -type f"
    before = sandbox.exec(litter).stdout
    with sandbox.code_context(cwd="/work", env={"GREETING": "hello"}, user="nobody") as ctx:
        ctx.run("import os, getpass, subprocess\nseen = [os.getcwd(), os.environ['GREETING'], getpass.getuser()]")
        told = ctx.run("subprocess.run(['sh', '-c', 'echo from a child'])\nseen")
        assert told.text == "['/work', 'hello', 'nobody']"
        assert told.stdout == "from a child\n"
        assert sandbox.exec(litter).stdout == before
        (process,) = [one for one in sandbox.processes() if one.id == ctx.id]
        assert (process.info.kind, process.info.state) == ("repl", "running")
    assert sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout.count("torpor_kernel") == 0


def test_a_timeout_leaves_the_context_usable_and_ends_what_the_cell_had_started(sandbox: Sandbox) -> None:
    with sandbox.code_context() as ctx:
        ctx.run("x = 7\nimport subprocess")
        with pytest.raises(ExecTimeout, match="it was interrupted"):
            ctx.run("print('begun')\nsubprocess.run(['sleep', '1234'])", timeout_seconds=2)
        assert ctx.run("x").text == "7"
    assert "sleep\x001234" not in sandbox.exec("cat /proc/[0-9]*/cmdline").stdout


def test_an_interpreter_that_takes_all_memory_is_lost_and_says_why(sandbox: Sandbox) -> None:
    with sandbox.code_context() as ctx:
        with pytest.raises(InterpreterLost, match="out of memory"):
            ctx.run("print('begun')\nheld = [bytearray(b'x' * 16_000_000) for _ in range(1000)]")
        with pytest.raises(InterpreterLost):
            ctx.run("1")
    assert sandbox.run_code("1 + 1").text == "2"


def test_a_context_goes_on_after_a_hibernation_and_a_fork_has_it_too(fresh_sandbox: Sandbox) -> None:
    ctx = fresh_sandbox.code_context()
    ctx.run("kept = {'step': 1}\nimport threading\nopen_file = open('/work/log', 'w')")
    fresh_sandbox.hibernate()
    assert ctx.run("kept['step'] += 1; print('woken', file=open_file, flush=True)\nkept").text == "{'step': 2}"
    with fresh_sandbox.fork() as child:
        copy = child.attach_code_context(ctx.id)
        assert copy.run("kept['step'] += 10\nkept['step']").text == "12"
        assert ctx.run("kept['step']").text == "2"
    assert fresh_sandbox.filesystem.read_text("/work/log") == "woken\n"


def test_a_cell_that_runs_when_its_sandbox_falls_asleep_is_heard_to_its_end(fresh_sandbox: Sandbox) -> None:
    ctx = fresh_sandbox.code_context()
    begun = threading.Event()
    told = []

    def run() -> None:
        code = "import time\nprint('begun')\nfor _ in range(40): time.sleep(0.1)\nprint('ended')\n'value'"
        told.append(ctx.run(code, timeout_seconds=60, on_stdout=lambda _: begun.set()))

    running = threading.Thread(target=run)
    running.start()
    assert begun.wait(60)
    fresh_sandbox.hibernate()
    fresh_sandbox.wake()
    running.join(120)
    assert [(one.stdout, one.text) for one in told] == [("begun\nended\n", "'value'")]


def test_a_command_of_45_s_succeeds_on_the_vendors_clients_defaults(long_command: dict[str, object]) -> None:
    thread = long_command["thread"]
    assert isinstance(thread, threading.Thread)
    thread.join(LONG_S + 60)
    assert (long_command["stdout"], long_command["exit_code"]) == ("done\n", 0)
    assert float(str(long_command["took_s"])) >= LONG_S


@pytest.fixture
def interpreter(interpreter_home: Path, tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox of the template `code-interpreter`, on a server of its own."""
    home = home_sharing_templates(interpreter_home, tmp_path / "home", names=("code-interpreter",))
    with serving(home) as server, server.client() as client, Sandbox.create("code-interpreter", client=client) as made:
        yield made


def test_the_template_for_code_has_frames_and_pictures(interpreter: Sandbox) -> None:
    with interpreter.code_context() as ctx:
        frame = ctx.run("import numpy as np, pandas as pd\npd.DataFrame({'x': np.arange(3)})")
        assert frame.html is not None
        assert "<table" in frame.html
        assert "x" in (frame.text or "")
        shown = ctx.run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()")
        assert (shown.error, shown.stderr) == (None, "")
        assert [(result.png or b"")[:8] for result in shown.results] == [PNG]
        left_open = ctx.run("figure, axes = plt.subplots()\naxes.plot([3, 1, 2]);")
        assert [(result.png or b"")[:8] for result in left_open.results] == [PNG]
        assert ctx.run("len(plt.get_fignums())").text == "0"
