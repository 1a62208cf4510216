"""The command line on a real guest, where only a guest's own shell can show it."""

from __future__ import annotations

import os
import subprocess
import sys

from running_server import RunningServer
from torpor import Sandbox


def torpor(server: RunningServer, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TORPOR_API": server.url, "TORPOR_API_KEY": server.key}
    argv = [sys.executable, "-m", "torpor.cli", *words]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, env=env)


def test_a_script_piped_into_the_shell_runs_as_one_and_its_code_is_ours(
    server: RunningServer, sandbox: Sandbox
) -> None:
    script = "f() { echo $1; }\nfor i in 1 2; do\n  f $i\ndone\nexit 4\necho never\n"
    ran = torpor(server, "shell", sandbox.id, stdin=script)
    assert (ran.returncode, ran.stdout) == (4, "1\n2\n")


def test_a_command_s_own_options_reach_it(server: RunningServer, sandbox: Sandbox) -> None:
    ran = torpor(server, "exec", sandbox.id, "sort", "-n", stdin="10\n9\n")
    assert (ran.returncode, ran.stdout) == (0, "9\n10\n")
