"""The body of a request for a build: fields, and files that go on to the host as they arrive.

It is a form (`multipart/form-data` where files are sent, else `application/x-www-form-urlencoded`), or a JSON object.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import Request

from torpor.control.api.multipart import Multipart, Part
from torpor.control.api.problems import sentence
from torpor.control.host_builds import HostBuilds
from torpor.errors import InvalidRequest, TooLarge, TorporError
from torpor.model.ids import BuildId
from torpor.wire.builds import (
    MAX_ARCHIVE_BYTES,
    MAX_CONTEXT_BYTES,
    MAX_CONTEXT_FILES,
    MAX_DOCKERFILE,
    is_file_path,
)
from torpor.wire.templates import BuildTemplate

# All that is no file, together.
MAX_FIELDS_BYTES = 1024 * 1024
_MAX_FIELDS = 64
_NUMBERS = frozenset({"size_mb", "cpu", "memory_mb"})
_FLAGS = frozenset({"force", "is_global"})
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_ARCHIVES = {"rootfs": "rootfs.tar", "image": "image.tar"}
_CONTEXT = "context/"
_MODE = re.compile(r"0?[0-7]{1,4}")


@dataclass
class BuildBody:
    """What has arrived of a request for the build `id`. `files`: digests of the files that the host has, by path."""

    host: HostBuilds
    id: BuildId
    fields: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)
    _fields_bytes: int = 0
    _context_bytes: int = 0

    async def take(self, request: Request) -> BuildTemplate:
        """Take in a whole request and return what it asks for.

        Raises InvalidRequest, TooLarge, and what the host raises; then what it was sent is for the caller to remove.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            form = Multipart(request.headers["content-type"], request.stream())
            async for part in form.parts(MAX_CONTEXT_FILES + _MAX_FIELDS):
                await self._take_part(part)
        elif kind == "application/x-www-form-urlencoded":
            self._take_pairs(await self._text(request.stream()))
        elif kind == "application/json":
            return _checked(_json(await self._text(request.stream()), "the body"))
        else:
            raise InvalidRequest(
                "the body has to be multipart/form-data, application/x-www-form-urlencoded or application/json"
            )
        return _checked(_typed(self.fields))

    async def _take_part(self, part: Part) -> None:
        is_dockerfile = part.name == "dockerfile" and "dockerfile" not in self.fields
        if not part.is_file or is_dockerfile:
            self._set(part.name, await self._text(part.chunks))
        else:
            await self._send(part)

    def _take_pairs(self, text: str) -> None:
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
        except UnicodeDecodeError as error:
            raise InvalidRequest("the body is not UTF-8") from error
        except ValueError as error:
            raise TooLarge(f"the body has more than {_MAX_FIELDS} fields") from error
        for name, value in pairs:
            self._set(name, value)

    def _set(self, name: str, value: str) -> None:
        if name in self.fields:
            raise InvalidRequest(f"{name[:100]} is given twice")
        if len(self.fields) >= _MAX_FIELDS:
            raise TooLarge(f"the body has more than {_MAX_FIELDS} fields")
        self.fields[name] = value

    async def _text(self, chunks: AsyncIterator[bytes]) -> str:
        held = bytearray()
        async for chunk in chunks:
            held += chunk
            self._fields_bytes += len(chunk)
            if self._fields_bytes > MAX_FIELDS_BYTES:
                raise TooLarge(f"the fields of a build may have {MAX_FIELDS_BYTES} bytes in all")
        try:
            return held.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest("the fields of a build have to be UTF-8") from error

    async def _send(self, part: Part) -> None:
        path = self._place(part.name)
        mode = part.headers.get("x-file-mode")
        if mode is not None and _MODE.fullmatch(mode) is None:
            raise InvalidRequest(f"X-File-Mode of {part.name!r} has to be permission bits in octal, such as 755")
        content = _Counted(part.chunks, self._counter(path))
        try:
            await self.host.send_build_file(self.id, path, mode, content.pieces())
        except TorporError:
            if content.failure is not None:  # what came over the wire of it is that the sender broke off
                raise content.failure from None
            raise
        self.files[path] = content.digest.hexdigest()

    def _counter(self, path: str) -> Callable[[int], None]:
        def count_context(size: int) -> None:
            self._context_bytes += size
            if self._context_bytes > MAX_CONTEXT_BYTES:
                raise TooLarge(f"the files of a context may have {MAX_CONTEXT_BYTES} bytes in all")

        sent = 0

        def count_archive(size: int) -> None:
            nonlocal sent
            sent += size
            if sent > MAX_ARCHIVE_BYTES:
                raise TooLarge(f"an archive may have {MAX_ARCHIVE_BYTES} bytes")

        return count_context if path.startswith(_CONTEXT) else count_archive

    def _place(self, name: str) -> str:
        """Return the path that a file has on the host. Beside a Dockerfile all files are of its context."""
        is_archive = name in _ARCHIVES and "dockerfile" not in self.fields
        path = _ARCHIVES[name] if is_archive else _CONTEXT + name
        if not is_file_path(path):
            raise InvalidRequest(
                f"{name[:200]!r} is no path of a file in a context",
                hint="it is relative, has no empty, . or .. parts, and is no longer than 1000 bytes",
            )
        folders = {path[:place] for place, character in enumerate(path) if character == "/"}
        if path in self.files or path in self._folders or folders & self.files.keys():
            raise InvalidRequest(f"the file {name[:200]!r} is sent twice, or is a folder too")
        if len(self.files) >= MAX_CONTEXT_FILES:
            raise TooLarge(f"a context may have {MAX_CONTEXT_FILES} files")
        if len(self._folders | folders) > MAX_CONTEXT_FILES:
            raise TooLarge(f"a context may have {MAX_CONTEXT_FILES} folders")
        self._folders |= folders
        return path


class _Counted:
    """Passes a file's content on, and keeps its digest; `failure` is what went wrong with where it comes from."""

    def __init__(self, chunks: AsyncIterator[bytes], count: Callable[[int], None]) -> None:
        self._chunks, self._count = chunks, count
        self.digest = hashlib.sha256()
        self.failure: Exception | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks:
                self._count(len(chunk))
                self.digest.update(chunk)
                yield chunk
        except Exception as error:
            self.failure = error
            raise


def _json(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} cannot be read as JSON") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{what} has to be a JSON object")
    return found


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a form as the values that they stand for, where they do; an empty number is none."""
    typed = {name: value for name, value in fields.items() if value or name not in _NUMBERS | _FLAGS}
    for name, value in typed.items():
        if name in _NUMBERS and value.isascii() and value.isdecimal() and len(value) < 16:
            typed[name] = int(value)
        elif name in _FLAGS:
            typed[name] = _TRUTH.get(value.lower(), value)
    if "build_args" in typed:
        typed["build_args"] = _json(typed["build_args"], "build_args")
    return typed


def _checked(fields: dict[str, Any]) -> BuildTemplate:
    if len(str(fields.get("dockerfile", ""))) > MAX_DOCKERFILE:
        raise TooLarge(f"a Dockerfile may have {MAX_DOCKERFILE} characters")
    try:
        return BuildTemplate(**{name: value for name, value in fields.items() if name in BuildTemplate.model_fields})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidRequest(sentence({**first, "loc": ("body", *first["loc"])})) from error
