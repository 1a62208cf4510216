"""A guest that exists in memory only: a handful of commands and a dictionary of files, for `testing/host.py`.

Commands: `true`, `false`, `echo`, `cat`, `pwd`, `printenv`, `id`, `sleep N`, `blob N` (N bytes "a" to stdout),
`raw HEX ...` (each HEX as one chunk to stdout), `count NAME` (adds one to a counter in memory, and prints it), `hang`
(ends only by being killed), and `/bin/sh -c` with these joined by `;` or `&&`, with `$NAME`, `exit N`, `kill -9 $$` and
`>&2`. The file `/zeros/N` reads as N zero bytes, `/broken/N` breaks off after N of twice as many; `/dev/null` takes
anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

from torpor.errors import Conflict, InvalidRequest, NotFound
from torpor.kit.clock import Clock
from torpor.wire import public

_CHUNK = b"\0" * 65536
_BLOB = b"a" * 65536
# Stands for `>&2`, whose ampersand must not be taken for the end of a command.
_TO_STDERR = "\x01"

Write = Callable[[bytes], Awaitable[None]]


class Killed(Exception):
    """The command killed itself with a signal."""


@dataclass(frozen=True, slots=True)
class Call:
    """One command as it runs: its words, what it reads, and where it writes."""

    words: list[str]
    stdin: bytes
    env: dict[str, str]
    cwd: str
    user: str
    out: Write
    err: Write


@dataclass
class Node:
    """A file (`data`) or a folder (`data` is None)."""

    data: bytes | None
    mode: int
    user: str = "root"


@dataclass
class Files:
    """A tree of files by absolute path. Raises NotFound and InvalidRequest as a real guest's agent does."""

    clock: Clock
    nodes: dict[str, Node] = field(
        default_factory=lambda: {name: Node(None, 0o755) for name in ("/", "/tmp", "/root", "/work")}  # noqa: S108
    )

    def node(self, path: str) -> Node:
        """Return what is at `path`."""
        found = self.nodes.get(_tidy(path))
        if found is None:
            raise NotFound(f"there is no file {path}")
        return found

    async def read(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes."""
        if (made_up := re.fullmatch(r"/(zeros|broken)/(\d+)", path)) is None:
            data = self.file(path)
            for start in range(0, len(data), len(_CHUNK)):
                yield data[start : start + len(_CHUNK)]
            return
        left = int(made_up[2])
        while left:
            yield _CHUNK[:left]
            left -= min(left, len(_CHUNK))
        if made_up[1] == "broken":
            raise ConnectionResetError("told to break off here")

    def size(self, path: str) -> int:
        """Return how many bytes a file says it has."""
        match = re.fullmatch(r"/(zeros|broken)/(\d+)", path)
        if match is None:
            return len(self.file(path))
        return int(match[2]) * (1 if match[1] == "zeros" else 2)

    def file(self, path: str) -> bytes:
        """Return a file's bytes; a folder is refused."""
        data = self.node(path).data
        if data is None:
            raise InvalidRequest(f"{path} is a folder, not a file")
        return data

    async def write(self, path: str, chunks: AsyncIterator[bytes], mode: int | None, user: str, append: bool) -> int:
        """Replace or extend a file once all its bytes are here; return how many came."""
        if _tidy(path) == "/dev/null":
            return sum([len(chunk) async for chunk in chunks])
        old = self.nodes.get(_tidy(path))
        if old is not None and old.data is None:
            raise InvalidRequest(f"{path} is a folder, not a file")
        data = b"".join([chunk async for chunk in chunks])
        before = old.data if old is not None and append else None
        self.mkdir(_parent(path), 0o755, user)
        kept = old.mode if old is not None else 0o644
        self.nodes[_tidy(path)] = Node((before or b"") + data, kept if mode is None else mode, user)
        return len(data)

    def mkdir(self, path: str, mode: int, user: str) -> None:
        """Make a folder and its parents."""
        at = _tidy(path)
        if at != "/":
            self.mkdir(_parent(at), mode, user)
        if self.nodes.setdefault(at, Node(None, mode, user)).data is not None:
            raise Conflict(f"{path} is a file")

    def remove(self, path: str, recursive: bool) -> None:
        """Remove a file, or a folder if it is empty or `recursive`."""
        self.node(path)
        inside = self.below(path)
        if inside and not recursive:
            raise Conflict(f"{path} is not empty; ask for recursive")
        for name in [_tidy(path), *inside]:
            del self.nodes[name]

    def rename(self, source: str, target: str) -> None:
        """Move a file or a tree."""
        self.node(source)
        inside = self.below(source)
        for name in [_tidy(source), *inside]:
            self.nodes[_tidy(target) + name[len(_tidy(source)) :]] = self.nodes.pop(name)

    def below(self, path: str) -> list[str]:
        """Return the paths inside a folder, parents first."""
        prefix = _tidy(path).rstrip("/") + "/"
        return sorted(name for name in self.nodes if name.startswith(prefix) and name != "/")

    def entry(self, path: str) -> public.FileEntry:
        """Describe what is at `path`."""
        node = self.node(path)
        at = _tidy(path)
        return public.FileEntry(
            name=at.rsplit("/", 1)[-1] or "/",
            path=at,
            is_dir=node.data is None,
            size=len(node.data or b""),
            mode=node.mode,
            mtime=self.clock.now().timestamp(),
            user=node.user,
            group=node.user,
        )

    def listing(self, path: str) -> list[public.FileEntry]:
        """Describe what is right inside a folder."""
        if self.node(path).data is not None:
            raise InvalidRequest(f"{path} is a file, not a folder")
        return [self.entry(name) for name in self.below(path) if _parent(name) == _tidy(path)]


def _tidy(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _parent(path: str) -> str:
    return _tidy(path).rsplit("/", 1)[0] or "/"


class Shell:
    """Runs the commands this module knows."""

    def __init__(self, files: Files, clock: Clock, counters: dict[str, int] | None = None) -> None:
        self._files = files
        self._clock = clock
        self._counters = {} if counters is None else counters

    async def run(self, call: Call) -> int:
        """Run a command and return its exit code: 127 for one that is not known. Raises Killed."""
        name, *args = call.words
        try:
            return await self._known(call, name, args)
        except (ValueError, IndexError):  # an open quote, a number that is none, an argument that is missing
            await call.err(f"{name}: these arguments make no sense\n".encode())
            return 2

    async def _known(self, call: Call, name: str, args: list[str]) -> int:
        if name in ("/bin/sh", "sh") and args[:1] == ["-c"]:
            return await self._script(call, args[1])
        command = getattr(self, f"_do_{name.rsplit('/', 1)[-1]}", None)
        if command is None:
            await call.err(f"sh: 1: {name}: not found\n".encode())
            return 127
        code: int = await command(call, args)
        return code

    async def _script(self, call: Call, text: str) -> int:
        code = 0
        for joint, words in _statements(text):
            if joint == "&&" and code != 0:
                continue
            if words[0] == "exit":
                return (int(words[1]) if words[1:] else code) % 256
            if words == ["kill", "-9", "$$"]:
                raise Killed
            known = [re.sub(r"\$(\w+)", lambda name: call.env.get(name[1], ""), word) for word in words]
            redirected = known[-1] == _TO_STDERR
            inner = replace(call, words=known[:-1] if redirected else known, out=call.err if redirected else call.out)
            code = await self.run(inner)
        return code

    async def _do_true(self, call: Call, args: list[str]) -> int:
        return 0

    async def _do_false(self, call: Call, args: list[str]) -> int:
        return 1

    async def _do_echo(self, call: Call, args: list[str]) -> int:
        await call.out(" ".join(args).encode() + b"\n")
        return 0

    async def _do_cat(self, call: Call, args: list[str]) -> int:
        await call.out(self._files.file(args[0]) if args else call.stdin)
        return 0

    async def _do_pwd(self, call: Call, args: list[str]) -> int:
        await call.out(call.cwd.encode() + b"\n")
        return 0

    async def _do_id(self, call: Call, args: list[str]) -> int:
        await call.out(call.user.encode() + b"\n")
        return 0

    async def _do_printenv(self, call: Call, args: list[str]) -> int:
        if args[0] not in call.env:
            return 1
        await call.out(call.env[args[0]].encode() + b"\n")
        return 0

    async def _do_sleep(self, call: Call, args: list[str]) -> int:
        await self._clock.sleep(float(args[0]))
        return 0

    async def _do_hang(self, call: Call, args: list[str]) -> int:
        while True:
            await self._clock.sleep(3600)

    async def _do_blob(self, call: Call, args: list[str]) -> int:
        left = int(args[0])
        while left > 0:
            await call.out(_BLOB[:left])
            left -= len(_BLOB)
        return 0

    async def _do_count(self, call: Call, args: list[str]) -> int:
        await call.out(f"{self.count(args[0])}\n".encode())
        return 0

    def count(self, name: str) -> int:
        """Add one to a counter and return it."""
        self._counters[name] = self._counters.get(name, 0) + 1
        return self._counters[name]

    async def _do_raw(self, call: Call, args: list[str]) -> int:
        for part in args:
            await call.out(bytes.fromhex(part))
        return 0


def _statements(text: str) -> list[tuple[str, list[str]]]:
    """Cut a script at `;` and `&&` into words, each part with the sign before it."""
    words = shlex.shlex(text.replace(">&2", f" {_TO_STDERR}"), posix=True, punctuation_chars=";&")
    words.whitespace_split = True
    parts: list[tuple[str, list[str]]] = [(";", [])]
    for word in words:
        if word in (";", "&&"):
            parts.append((word, []))
        else:
            parts[-1][1].append(word)
    return [(sign, part) for sign, part in parts if part]
