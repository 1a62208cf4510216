"""Looks at the file system in a snapshot's disk with e2fsck, from outside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def faults_of_disk(snapshot: Path, home: Path, tmp_path: Path) -> str:
    """Return what e2fsck finds wrong with a snapshot's root file system; empty if nothing."""
    images = json.loads((snapshot / "manifest.json").read_text())["record"]["template"]["images"]
    root = home / "images" / images["root"] / "root.img"
    raw = tmp_path / "disk.raw"
    nodes = {
        "driver": "qcow2",
        "file": {"driver": "file", "filename": str(snapshot / "disk.qcow2"), "locking": "off"},
        "backing": {"driver": "raw", "file": {"driver": "file", "filename": str(root), "locking": "off"}},
    }
    subprocess.run(["qemu-img", "convert", "-O", "raw", "json:" + json.dumps(nodes), str(raw)], check=True)
    try:
        # It was mounted, so its summary is not up to date, which -p mends without a word; all else it does not touch.
        found = subprocess.run(["e2fsck", "-f", "-p", str(raw)], capture_output=True, text=True, check=False)
        return "" if found.returncode in (0, 1) else found.stdout + found.stderr
    finally:
        raw.unlink()
