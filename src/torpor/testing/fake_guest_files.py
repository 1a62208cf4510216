"""The files of a guest that exists in memory only, as its calls get at them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from torpor.errors import InvalidRequest
from torpor.testing.fake_guest_call import Request
from torpor.testing.guest import Files
from torpor_guest import protocol

# Sends bytes on a sub-channel; yields what the host sends; sends objects as lines.
Send = Callable[[int, bytes], Awaitable[None]]
Input = Callable[[], AsyncGenerator[bytes, None]]
Lines = Callable[[list[Request]], Awaitable[Request]]


class FileCalls:
    """One method for each operation on files."""

    def __init__(self, files: Files, send: Send, incoming: Input, lines: Lines) -> None:
        self._files, self._send, self._input, self._send_lines = files, send, incoming, lines

    def operations(self) -> dict[str, Callable[[Request], Awaitable[Request]]]:
        """Return what the host can ask for."""
        return {
            "read": self._read,
            "write": self._write,
            "stat": self._stat,
            "list": self._list,
            "walk": self._walk,
            "mkdir": self._mkdir,
            "remove": self._remove,
            "rename": self._rename,
        }

    async def _read(self, request: Request) -> Request:
        count = 0
        async for chunk in self._files.read(request["path"]):
            await self._send(protocol.OUTPUT, chunk)
            count += len(chunk)
        return {"bytes": count}

    async def _write(self, request: Request) -> Request:
        async with aclosing(self._input()) as chunks:
            user = request["user"] or "root"
            count = await self._files.write(request["path"], chunks, request["mode"], user, request["append"])
        return {"bytes": count}

    async def _stat(self, request: Request) -> Request:
        return self._files.entry(request["path"]).model_dump()

    async def _list(self, request: Request) -> Request:
        entries = self._files.listing(request["path"])
        return await self._send_lines([entry.model_dump() for entry in entries])

    async def _walk(self, request: Request) -> Request:
        files = self._files
        files.listing(request["path"])
        return await self._send_lines([files.entry(name).model_dump() for name in files.below(request["path"])])

    async def _mkdir(self, request: Request) -> Request:
        mode = 0o755 if request["mode"] is None else request["mode"]
        self._files.mkdir(request["path"], mode, request["user"] or "root")
        return {}

    async def _remove(self, request: Request) -> Request:
        if request["path"].strip("/") == "":
            raise InvalidRequest("/ cannot be removed")
        self._files.remove(request["path"], request["recursive"])
        return {}

    async def _rename(self, request: Request) -> Request:
        self._files.rename(request["source"], request["target"])
        return {}
