"""The connection to one server."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

import httpx2
from pydantic import BaseModel

from torpor.errors import TorporError
from torpor.sdk._sync import records
from torpor.sdk._sync.templates import Templates
from torpor.sdk._sync.tokens import Tokens, audit
from torpor.sdk._sync.volumes import Volumes
from torpor.sdk.body import sync_pieces
from torpor.sdk.foreign import decoded, error_of, translated
from torpor.sdk.forks import renew_after_fork
from torpor.sdk.http import Call, connection_settings, patience, sendable, timeouts
from torpor.sdk.orders import Identified, sandbox_id
from torpor.sdk.results import Event
from torpor.sdk.retry import Attempts, Retry
from torpor.sdk.settings import locate
from torpor.sdk.usage import SandboxUsage, UsageReport
from torpor.sdk.waiting import sync_sleep
from torpor.wire.access import AuditView, Me
from torpor.wire.capacity import Capacity, QuotaView
from torpor.wire.usage import LiveList

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_LONGEST_ERROR_BYTES = 256 * 1024


class Client:
    """A connection to one Torpor server, shared by any number of sandboxes.

    `api` is the server's URL and `key` its key; left out, they are taken from `TORPOR_API` and `TORPOR_API_KEY`, or
    from what the server on this machine wrote under its home folder. `request_timeout` is how long the server may stay
    silent in one HTTP call, in seconds (default 60); it never cuts a running command short. `retry` says how calls
    that did not get through are tried again.

    Raises HostUnreachable if no server is configured or runs here, Unauthenticated if there is no key for it.
    """

    def __init__(
        self,
        api: str | None = None,
        key: str | None = None,
        request_timeout: float | None = None,
        *,
        retry: Retry | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._server = locate(api, key)
        self._request_timeout_s = patience(request_timeout)
        self._retry = retry or Retry()
        self._transport = transport
        self._inherited: list[httpx2.Client] = []
        self._http = self._connect()
        self.templates = Templates(self)
        self.tokens = Tokens(self)
        self.volumes = Volumes(self)
        renew_after_fork(self)

    @property
    def api(self) -> str:
        """The server's URL."""
        return self._server.url

    def usage(
        self,
        metadata: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> UsageReport:
        """Return what all sandboxes with all of `metadata` used from `since` to `until`; deleted ones too."""
        return records.usage(self, metadata, since, until)

    def usage_csv(
        self,
        metadata: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> str:
        """Return the same as CSV: a header row, and a line for each sandbox."""
        return records.usage_csv(self, metadata, since, until)

    def sandbox_usage(
        self, sandbox: Identified | str, since: datetime | None = None, until: datetime | None = None
    ) -> SandboxUsage:
        """Return what a sandbox (or its id) used from `since` to `until`, also one that was deleted."""
        return records.sandbox_usage(self, sandbox_id(sandbox), since, until)

    def metrics(self) -> LiveList:
        """Return how all living sandboxes stand at this moment."""
        return self.fetch_as(LiveList, Call("GET", "/metrics"))

    def me(self) -> Me:
        """Return whose key this is, and how often it may ask."""
        return self.fetch_as(Me, Call("GET", "/me"))

    def audit(self, workspace: str | None = None, kind: str | None = None) -> Generator[AuditView, None]:
        """Yield what was done with the keys of this key's workspace, the newest first.

        `kind`: only "change", "use" or "refused". With an admin's key `workspace` names another one, or `*` all.
        """
        yield from audit(self, workspace, kind)

    def quota(self) -> QuotaView:
        """Return what the key's workspace may have of each, and has."""
        return self.fetch_as(QuotaView, Call("GET", "/quota"))

    def capacity(self) -> Capacity:
        """Return how much the host may promise to machines, and has promised. Raises Forbidden unless an admin asks."""
        return self.fetch_as(Capacity, Call("GET", "/capacity"))

    def events(
        self,
        cursor: str | None = None,
        *,
        sandbox: Identified | str | None = None,
        follow: bool = False,
        types: Sequence[str] = (),
    ) -> Generator[Event, None]:
        """Yield what happened to all sandboxes, oldest first: what came after `cursor`, of these `types` if given.

        With `sandbox` (or an id, of a deleted one too) only what happened to that. With `follow` it goes on with each
        event as it happens, and a broken connection is made anew from the last one.
        """
        path = "/events" if sandbox is None else f"/sandboxes/{sandbox_id(sandbox)}/events"
        yield from records.events(self, path, cursor, follow=follow, types=types)

    @property
    def retry(self) -> Retry:
        """How calls that did not get through are tried again."""
        return self._retry

    def perform(self, call: Call, take: Callable[[httpx2.Response], T]) -> T:
        """Send a call and return what `take` makes of the successful answer, trying again as the retry policy allows.

        `take` reads the answer's body with `chunks`; for a call that may be repeated it may run more than once.
        Raises the error the server reports, HostUnreachable, or OutcomeUnknown.
        """
        attempts = Attempts(self._retry)
        while True:
            response = self._open(call, attempts)
            try:
                return take(response)
            except TorporError as error:
                delay = attempts.delay_s(error, repeatable=True) if call.may_repeat and call.may_resend else None
                if delay is None:
                    raise attempts.verdict(error) from error.__cause__
            finally:
                response.close()
            sync_sleep(delay)

    def open(self, call: Call) -> httpx2.Response:
        """Send a call and return the successful answer with its body unread. The caller closes it."""
        return self._open(call, Attempts(self._retry))

    def fetch(self, call: Call) -> bytes:
        """Send a call and return the answer's body."""
        return self.perform(call, self._whole_body)

    def fetch_as(self, model: type[M], call: Call) -> M:
        """Send a call and return the answer as a model."""
        return decoded(model, self.fetch(call))

    def chunks(self, response: httpx2.Response) -> Iterator[bytes]:
        """Yield an answer's body as it arrives. Raises OutcomeUnknown if it breaks off."""
        with translated(self._server):
            yield from response.iter_raw()

    def close(self) -> None:
        """Close the connections. Sandboxes are not touched."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.api}{' closed' if self._http.is_closed else ''}>"

    def _connect(self) -> httpx2.Client:
        return httpx2.Client(transport=self._transport, **connection_settings(self._server))

    def _renew(self) -> None:
        # The parent's connections are kept, unused: to close them here could wait for a lock a lost thread holds.
        self._inherited.append(self._http)
        self._http = self._connect()

    def _open(self, call: Call, attempts: Attempts) -> httpx2.Response:
        while True:
            try:
                return self._send(call)
            except TorporError as error:
                delay = attempts.delay_s(error, repeatable=call.may_repeat) if call.may_resend else None
                if delay is None:
                    raise attempts.verdict(error) from error.__cause__
            sync_sleep(delay)

    def _send(self, call: Call) -> httpx2.Response:
        silence_s = call.silence_s or self._request_timeout_s
        request = self._http.build_request(
            call.method,
            call.path,
            params=sendable(call.params),
            content=call.content if call.body is None else sync_pieces(call.body),
            headers=call.all_headers(silence_s),
            timeout=timeouts(silence_s, self._request_timeout_s),
        )
        with translated(self._server):
            response = self._http.send(request, stream=True)
        if response.is_success:
            return response
        try:
            raise error_of(response.status_code, response.headers, self._whole_body(response))
        finally:
            response.close()

    def _whole_body(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        for chunk in self.chunks(response):
            body += chunk
            if len(body) > _LONGEST_ERROR_BYTES and not response.is_success:
                break
        return bytes(body)
