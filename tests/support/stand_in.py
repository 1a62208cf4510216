"""Processes that look like machines: by their program, and by their words or what they have open."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from torpor.kit.procfs import boot_id, mark_of
from torpor.storage.layout import Layout

PATIENCE_S = 30.0
SANDBOX = "sbx-0123456789bcdfgh"
QEMU = "qemu-system-x86_64"
# Tells that it runs by closing its output, and does until its input ends or it is killed.
_SCRIPT = "exec >&-; read _"


class StandIn:
    """A process whose program has a name, with these words in its command line, and these files open."""

    def __init__(self, folder: Path, *words: str, name: str = QEMU, opens: Sequence[Path] = ()) -> None:
        program = folder / name
        if not program.exists():
            shutil.copy(Path("/bin/sh").resolve(), program)
        files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in opens]
        self.process = subprocess.Popen(
            [str(program), "-c", _SCRIPT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=files
        )
        for file in files:
            os.close(file)
        assert self.process.stdout is not None
        self.process.stdout.read()  # ends when it runs
        self.process.stdout.close()

    def put_on_record(self, layout: Layout, deadline: float | None = None, sandbox: str = SANDBOX) -> None:
        """Let it be the machine of a sandbox, as far as a keeper reads the record."""
        folder = layout.sandboxes / sandbox
        folder.mkdir(exist_ok=True)
        mark = mark_of(self.process.pid)
        assert mark is not None
        record = {"pid": mark.pid, "started": mark.started, "boot": boot_id()}
        (folder / "machine.json").write_text(json.dumps(record))
        if deadline is not None:
            (folder / "deadline").write_text(f"{deadline}\n")

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


def machine_in(layout: Layout, place: str = "spare-1") -> StandIn:
    """Return one that was started in a place of a data directory, by its words."""
    return StandIn(layout.home.parent, f"{layout.sandboxes}/{place}/disk.qcow2")
