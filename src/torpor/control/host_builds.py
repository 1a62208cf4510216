"""The control plane's side of `torpor.wire.builds`: one method for each row of that table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
from pydantic import ValidationError

from torpor.errors import OutcomeUnknown
from torpor.wire import host
from torpor.wire.builds import BuildOrder, News

_ROOT = f"http://host/host/{host.HOST_API_VERSION}/builds"
# A line of news may have this many bytes.
_MAX_NEWS = 1024 * 1024


class HostBuilds(ABC):
    """The part of a host's client that has templates built. Errors are those of `HostClient`."""

    _http: httpx2.AsyncClient

    @abstractmethod
    def _sent(self, request: httpx2.Request) -> AbstractAsyncContextManager[httpx2.Response]:
        """Send a request, and yield its successful answer."""

    async def send_build_file(self, build_id: str, path: str, mode: str | None, content: AsyncIterator[bytes]) -> None:
        """Send a file that a build needs, for as long as it takes. `mode`: permission bits in octal."""
        headers = {} if mode is None else {"x-file-mode": mode}
        timeout = httpx2.Timeout(None, connect=5.0)
        url = f"{_ROOT}/{build_id}/files"
        request = self._http.build_request(
            "PUT", url, params={"path": path}, headers=headers, content=content, timeout=timeout
        )
        async with self._sent(request):
            pass

    @asynccontextmanager
    async def build(self, build_id: str, order: BuildOrder) -> AsyncIterator[AsyncIterator[News]]:
        """Have a template built while the block lasts, and yield its news; leaving it before the last ends the build.

        News that end without a template or an error raise OutcomeUnknown.
        """
        request = self._http.build_request(
            "POST",
            f"{_ROOT}/{build_id}",
            content=order.model_dump_json(),
            headers={"content-type": "application/json"},
            timeout=httpx2.Timeout(None, connect=5.0),
        )
        async with self._sent(request) as response:
            yield _to_end(response)

    async def remove_build(self, build_id: str) -> None:
        """Remove what the host has of a build; fine if there is nothing."""
        async with self._sent(self._http.build_request("DELETE", f"{_ROOT}/{build_id}")):
            pass


async def _to_end(response: httpx2.Response) -> AsyncIterator[News]:
    async for line in _lines(response.aiter_raw()):
        try:
            news = News.model_validate_json(line)
        except ValidationError as error:
            raise OutcomeUnknown("the host's news of the build are not in the form this version reads") from error
        yield news
        if news.template is not None or news.error is not None:
            return
    raise OutcomeUnknown("the host's answer ended before the build did")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        *whole, rest = bytes(held).split(b"\n")
        for line in whole:
            yield line
        held = bytearray(rest)
        if len(held) > _MAX_NEWS:
            raise OutcomeUnknown(f"the host's news of the build are longer than {_MAX_NEWS} bytes")
