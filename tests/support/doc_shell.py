"""A shell that types the commands of a page of documentation, and compares what they print with what is shown."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from doc_pages import Command

# What stands for the same thing all along a page, and is another each time: ids, and keys.
_ID = re.compile(r"\b(?:sbx|snp|job|bld|ctx|tree|vol)-[0-9a-z]{8,}\b|\btpr_[\w-]{8,}")
_ANYTHING = "..."
_INTERRUPT = "^C"
# After so long a command that is shown to be interrupted is.
_LISTENS_S = 4
_PATIENCE_S = 240
# The user is root already, and sudo need not be installed.
_PROLOGUE = 'sudo() { "$@"; }; shopt -s expand_aliases\n'


class DocShell:
    """One session of a page. `environment` is what its commands have beside that of the tests."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._ids: dict[str, str] = {}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._code = 0
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={**os.environ, **environment, "PATH": path, "COLUMNS": "80"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._send(_PROLOGUE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)  # a command that does not end, too
        self._bash.communicate(timeout=10)

    def run(self, command: Command, *, asks_code: bool = False) -> None:
        """Run a command. Fails if it prints other than what is shown, or with a code other than 0.

        It may fail where an error is shown, and with `asks_code`: the next command shows its code.
        """
        is_interrupted = command.shown[-1:] == (_INTERRUPT,)
        shown = command.shown[:-1] if is_interrupted else command.shown
        text = self._real(command)
        printed = self._typed(f"timeout -s INT {_LISTENS_S} {text}" if is_interrupted else text)
        about = f"line {command.line}: $ {text}\n{printed}\nexit code {self._code}"
        if shown:
            self._compare(shown, printed.splitlines(), about)
        fails = asks_code or is_interrupted or any(line.startswith("error:") for line in shown)
        assert self._code == 0 or fails, about

    def _real(self, command: Command) -> str:
        def real(told: re.Match[str]) -> str:
            assert told[0] in self._ids, f"line {command.line}: nothing on this page has printed {told[0]}"
            return self._ids[told[0]]

        return _ID.sub(real, command.text)

    def _typed(self, text: str) -> str:
        printed, code = self._folder / ".printed", self._folder / ".code"
        # The exit code of the command before is there for `echo $?`.
        self._send(f"(exit {self._code})\n{{ {text}\n}} >{printed} 2>&1 </dev/null; echo $? >{code}; echo done\n")
        assert self._bash.stdout is not None
        assert select.select([self._bash.stdout], [], [], _PATIENCE_S)[0], f"{text}: it does not end"
        said = self._bash.stdout.readline()
        assert said == "done\n", f"{text}: the shell says {said}"
        self._code = int(code.read_text())
        return printed.read_text()

    def _send(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text)
        self._bash.stdin.flush()

    def _compare(self, shown: Sequence[str], printed: Sequence[str], about: str) -> None:
        """Find each shown line in what was printed, in order; a line `...` stands for any number of lines."""
        at = 0
        skips = False
        for line in shown:
            if line.strip() == _ANYTHING:
                skips = True
                continue
            while skips and at < len(printed) and not self._matches(line, printed[at]):
                at += 1
            assert at < len(printed), f"{line!r} is not printed\n{about}"
            assert self._matches(line, printed[at]), f"{line!r} is not {printed[at]!r}\n{about}"
            at, skips = at + 1, False
        assert skips or at == len(printed), f"more is printed than shown\n{about}"

    def _matches(self, shown: str, printed: str) -> bool:
        """Tell whether a line is as shown, but for spaces, ids, and what stands for anything."""
        names: list[str] = []

        def pattern(part: str) -> str:
            if not _ID.fullmatch(part):
                return ".*".join(re.escape(piece) for piece in part.split(_ANYTHING))
            if part in self._ids:
                return re.escape(self._ids[part])
            names.append(part)
            return f"({_ID.pattern})"

        words = " ".join(shown.split())
        parts = re.split(f"({_ID.pattern})", words)
        found = re.fullmatch("".join(map(pattern, parts)), " ".join(printed.split()))
        if found:
            self._ids.update(zip(names, found.groups(), strict=True))
        return found is not None
