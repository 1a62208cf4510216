"""Make the synchronous SDK (`src/torpor/sdk/_sync`) of the asynchronous one (`src/torpor/sdk/_async`).

python tools/make_sync.py            write it
python tools/make_sync.py --check    write nothing; exit 1 and name the files if it is not what would be written
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
SDK = ROOT / "src" / "torpor" / "sdk"

# Names whose twin is not found by leaving out a word.
NAMES = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncAside": "SyncAside",
    "AsyncClient": "Client",
    "AsyncCode": "Code",
    "AsyncCodeContext": "CodeContext",
    "AsyncCommands": "Commands",
    "AsyncExplorer": "Explorer",
    "AsyncFilesystem": "Filesystem",
    "AsyncLife": "Life",
    "AsyncLine": "Line",
    "AsyncProcess": "Process",
    "AsyncPty": "Pty",
    "AsyncSandbox": "Sandbox",
    "AsyncSnapshot": "Snapshot",
    "AsyncSource": "Source",
    "AsyncTemplates": "Templates",
    "AsyncTerminals": "Terminals",
    "AsyncThinking": "Thinking",
    "AsyncTokens": "Tokens",
    "AsyncTrees": "Trees",
    "AsyncVolumes": "Volumes",
    "_async": "_sync",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_raw": "iter_raw",
    "async_called": "sync_called",
    "async_deliver": "sync_deliver",
    "async_enterable": "sync_enterable",
    "async_pieces": "sync_pieces",
    "async_offload": "sync_offload",
    "async_side_by_side": "sync_side_by_side",
    "async_sleep": "sync_sleep",
    "async_to_its_end": "sync_to_its_end",
    "async_within": "sync_within",
    "shared_async_client": "shared_client",
}
# A call that answers later, as a type, is one that answers.
AWAITABLE = re.compile(r"\b(?:Answering|Awaitable|Entering)\[(\w+(?:\[\w+\])?)\]")


class Rule(unasync.Rule):  # type: ignore[misc]  # the library is not typed
    """unasync's own, applied to docstrings and other text too."""

    def _unasync_tokens(self, tokens: list[object]) -> object:
        for token in super()._unasync_tokens(tokens):
            yield token._replace(src=_plain_text(token.src)) if token.name == "STRING" else token


def _plain_text(text: str) -> str:
    text = re.sub(r"\b(?:async|await) ", "", text)
    for name, twin in NAMES.items():
        text = re.sub(rf"\b{name}\b", twin, text)
    return text


def made() -> dict[str, str]:
    """Return each file of the twin by its name."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "_async"), Path(folder, "_sync")
        source.mkdir()
        for path in sorted((SDK / "_async").glob("*.py")):
            (source / path.name).write_text(AWAITABLE.sub(r"\1", path.read_text()))
        rule = Rule(str(source), str(target), additional_replacements=NAMES)
        unasync.unasync_files([str(path) for path in source.glob("*.py")], [rule])
        ruff = [sys.executable, "-m", "ruff"]
        own = 'lint.isort.known-first-party = ["torpor"]'
        config = ["--config", str(ROOT / "pyproject.toml"), "--config", own, "--quiet"]
        subprocess.run(
            [*ruff, "check", *config, "--select=I,C416,F401,PYI016,UP028", "--fix", "--unsafe-fixes", str(target)],
            check=True,
        )
        subprocess.run([*ruff, "format", *config, str(target)], check=True)
        return {path.name: path.read_text() for path in sorted(target.glob("*.py"))}


def differing(wanted: dict[str, str]) -> list[str]:
    """Return the names of files that are not there as wanted, or not wanted."""
    there = {path.name: path.read_text() for path in (SDK / "_sync").glob("*.py")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description="Make the synchronous SDK of the asynchronous one.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the twins have drifted apart")
    arguments = parser.parse_args()
    wanted = made()
    names = differing(wanted)
    if arguments.check:
        for name in names:
            print(f"src/torpor/sdk/_sync/{name} is not what tools/make_sync.py makes of _async/{name}", file=sys.stderr)
        return 1 if names else 0
    (SDK / "_sync").mkdir(exist_ok=True)
    for name in names:
        path = SDK / "_sync" / name
        if name in wanted:
            path.write_text(wanted[name])
        else:
            path.unlink()
        print(f"{path.relative_to(ROOT)} {'written' if name in wanted else 'removed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
