"""The control plane's side of `torpor.wire.host`: one method for each row of that table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from torpor.control.host_builds import HostBuilds
from torpor.errors import Failed, HostUnreachable, OutcomeUnknown, TorporError
from torpor.wire import duplex, frames, host, public
from torpor.wire.capacity import Capacity
from torpor.wire.errors import ErrorBody, from_body
from torpor.wire.logs import LogPart

# An answer that is collected before it is read (a listing, an error) may have this many bytes.
_MAX_COLLECTED = 64 * 1024 * 1024
# A host that does not begin to answer a request that has a bound of its own is taken for lost after this.
_PATIENCE_S = 120.0
# The same where a guest's whole memory and disk may have to pass over a slow disk first.
_LONG_PATIENCE_S = 1800.0
# Whole URLs: joining each with a base costs a tenth of a millisecond.
_ROOT = f"http://host/host/{host.HOST_API_VERSION}"
_NOTHING_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ByteSource:
    """Bytes on their way out: `size` in all (None: not known), `chunks` to be read once, while the source is open."""

    size: int | None
    chunks: AsyncIterator[bytes]


class HostClient(HostBuilds):
    """One host agent.

    Every method raises the error that the host answered; HostUnreachable where nothing was sent, or where the answer to
    a mere question was lost; OutcomeUnknown where something was asked for and the answer was lost.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._http = httpx2.AsyncClient(
            transport=transport,
            timeout=httpx2.Timeout(_PATIENCE_S, connect=5.0),
            trust_env=False,
        )

    async def restore(self, order: host.Restore) -> host.Incarnation:
        """Bring a snapshot to life as a new sandbox."""
        return await self._ask("POST", "/incarnations", host.Incarnation, body=order)

    async def incarnations(self) -> dict[str, host.Incarnation]:
        """Return what lives or sleeps on the host, by id."""
        answer = await self._ask("GET", "/incarnations", host.IncarnationList)
        return {item.id: item for item in answer.items}

    async def close(self, sandbox_id: str) -> host.Usage | None:
        """End a sandbox's machine, remove all of it, and return what it had used; fine, and None, if there is none."""
        return (await self._ask("DELETE", f"/incarnations/{sandbox_id}", host.Closed)).usage

    async def reserve(self, order: host.Reserve) -> None:
        """Hold room for several machines, all or none, until they are restored or closed, or a time is over."""
        await self._tell("POST", "/reservations", body=order)

    async def capacity(self) -> Capacity:
        """Return how much the host may promise to machines, and has promised."""
        return await self._ask("GET", "/capacity", Capacity)

    async def capabilities(self) -> host.Capabilities:
        """Return what the host can do for a sandbox."""
        return await self._ask("GET", "/capabilities", host.Capabilities)

    async def network(self, sandbox_id: str) -> host.NetworkState:
        """Return what a sandbox may reach, and what it could not."""
        return await self._ask("GET", f"/incarnations/{sandbox_id}/network", host.NetworkState)

    async def set_network(self, sandbox_id: str, network: host.Network) -> None:
        """Say what a sandbox may reach from now on."""
        await self._tell("PUT", f"/incarnations/{sandbox_id}/network", body=network)

    async def set_deadline(self, sandbox_id: str, deadline: float | None) -> None:
        """Say when a sandbox's machine ends, in seconds since 1970, even if no host agent lives to end it."""
        await self._tell("PUT", f"/incarnations/{sandbox_id}/deadline", body=host.Deadline(deadline=deadline))

    async def pause(self, sandbox_id: str) -> None:
        """Let a sandbox stand still; fine if it does."""
        await self._tell("POST", f"/incarnations/{sandbox_id}/pause")

    async def resume(self, sandbox_id: str) -> None:
        """Let a sandbox that stands still go on; fine if it does."""
        await self._tell("POST", f"/incarnations/{sandbox_id}/resume")

    async def hibernate(self, sandbox_id: str, order: host.Freeze) -> host.Frozen:
        """Freeze a sandbox and end its machine. For one that sleeps already, return what it sleeps in."""
        return await self._freeze(f"/incarnations/{sandbox_id}/hibernate", order)

    async def wake(self, sandbox_id: str, order: host.Wake) -> host.Incarnation:
        """Let a sandbox that sleeps go on where it stopped; fine if it is awake."""
        return await self._ask("POST", f"/incarnations/{sandbox_id}/wake", host.Incarnation, body=order)

    async def snapshot(self, sandbox_id: str, order: host.Freeze) -> host.Frozen:
        """Freeze a sandbox and let it be again as it was: running, or paused."""
        return await self._freeze(f"/incarnations/{sandbox_id}/snapshots", order)

    async def rollback(self, sandbox_id: str, order: host.Rollback) -> host.Incarnation:
        """Put a sandbox back to a snapshot, whatever became of its machine."""
        return await self._ask("POST", f"/incarnations/{sandbox_id}/rollback", host.Incarnation, body=order)

    async def snapshots(self) -> host.FrozenList:
        """Return the snapshots on the host."""
        return await self._ask("GET", "/snapshots", host.FrozenList)

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot. Raises NotFound."""
        await self._tell("DELETE", f"/snapshots/{snapshot_id}")

    async def verify_snapshot(self, snapshot_id: str) -> public.Verified:
        """Compare every byte of a snapshot with its checksum. Raises SnapshotCorrupt if one differs."""
        url = f"/snapshots/{snapshot_id}/verify"
        return await self._ask("POST", url, public.Verified, patience=_LONG_PATIENCE_S)

    @asynccontextmanager
    async def exec(self, sandbox_id: str, order: host.ExecOrder) -> AsyncIterator[AsyncIterator[frames.Frame]]:
        """Run a command while the block lasts; leaving it kills a command that still runs, unless the order has a job.

        Yields the frames STDOUT and STDERR, and EXIT as the last. An ERROR frame is raised, and a stream that ends
        without either raises OutcomeUnknown.
        """
        async with self._open("POST", f"/incarnations/{sandbox_id}/exec", body=order, patience=None) as response:
            yield _to_exit(response)

    async def start(self, sandbox_id: str, order: host.JobOrder) -> host.Job:
        """Start a command that runs on its own; fine if it was started by the same order before."""
        return await self._ask("POST", f"/incarnations/{sandbox_id}/jobs", host.Job, body=order)

    async def jobs(self, sandbox_id: str) -> list[host.Job]:
        """Return the commands that a guest runs or remembers."""
        return (await self._ask("GET", f"/incarnations/{sandbox_id}/jobs", host.JobList)).items

    async def job(self, sandbox_id: str, job: str) -> host.Job:
        """Return one command. Raises NotFound."""
        return await self._ask("GET", f"/incarnations/{sandbox_id}/jobs/{job}", host.Job)

    @asynccontextmanager
    async def attach(
        self, sandbox_id: str, job: str, stdout_from: int, stderr_from: int
    ) -> AsyncIterator[AsyncIterator[frames.Frame]]:
        """Listen to a command from offsets while the block lasts, as `exec` does; leaving it leaves it alone."""
        query = {"stdout_from": str(stdout_from), "stderr_from": str(stderr_from)}
        url = f"/incarnations/{sandbox_id}/jobs/{job}/output"
        async with self._open("GET", url, query=query, patience=None) as response:
            yield _to_exit(response)

    async def feed(self, sandbox_id: str, job: str, data: bytes | AsyncIterator[bytes], *, close: bool) -> int:
        """Send a command input, for as long as it takes or comes, and return how many bytes it took."""
        url = f"{_ROOT}/incarnations/{sandbox_id}/jobs/{job}/stdin"
        query = {"close": "true" if close else "false"}
        timeout = httpx2.Timeout(None, connect=5.0)
        request = self._http.build_request("POST", url, params=query, content=data, timeout=timeout)
        async with self._sent(request) as response:
            return (await _parsed(response, host.Fed)).bytes

    async def resize(self, sandbox_id: str, job: str, size: host.TerminalSize) -> None:
        """Give a command's terminal another size. Raises Conflict if it is not there any more."""
        await self._tell("POST", f"/incarnations/{sandbox_id}/jobs/{job}/resize", body=size)

    async def signal(self, sandbox_id: str, job: str, order: host.Signal) -> None:
        """Send a command a signal. Raises Conflict if it has ended."""
        await self._tell("POST", f"/incarnations/{sandbox_id}/jobs/{job}/signal", body=order)

    @asynccontextmanager
    async def read(self, sandbox_id: str, path: str, user: str | None) -> AsyncIterator[ByteSource]:
        """Read a file while the block lasts."""
        query = _query(path=path, user=user)
        async with self._open("GET", f"/incarnations/{sandbox_id}/fs", query=query) as response:
            yield _source(response)

    async def write(
        self, sandbox_id: str, query: dict[str, str], body: AsyncIterator[bytes], size: int | None
    ) -> public.Written:
        """Write a file from chunks. `query`: path, mode, user, append as the wire has them."""
        headers = {} if size is None else {"content-length": str(size)}
        request = self._http.build_request(
            "PUT", f"{_ROOT}/incarnations/{sandbox_id}/fs", params=query, content=body, headers=headers
        )
        async with self._sent(request) as response:
            return await _parsed(response, public.Written)

    async def remove(self, sandbox_id: str, path: str, recursive: bool) -> None:
        """Remove a file, or a folder."""
        query = _query(path=path, recursive="true" if recursive else None)
        await self._tell("DELETE", f"/incarnations/{sandbox_id}/fs", query=query)

    async def stat(self, sandbox_id: str, path: str) -> public.FileEntry:
        """Describe one file or folder."""
        return await self._ask("GET", f"/incarnations/{sandbox_id}/fs/stat", public.FileEntry, query=_query(path=path))

    async def dir(self, sandbox_id: str, path: str) -> public.DirListing:
        """List one folder."""
        return await self._ask("GET", f"/incarnations/{sandbox_id}/fs/dir", public.DirListing, query=_query(path=path))

    async def mkdir(self, sandbox_id: str, path: str, mode: str | None, user: str | None) -> None:
        """Make a folder and its parents."""
        query = _query(path=path, mode=mode, user=user)
        await self._tell("POST", f"/incarnations/{sandbox_id}/fs/dir", query=query)

    async def rename(self, sandbox_id: str, order: public.Rename) -> None:
        """Move a file or folder."""
        await self._tell("POST", f"/incarnations/{sandbox_id}/fs/rename", body=order)

    @asynccontextmanager
    async def walk(self, sandbox_id: str, path: str) -> AsyncIterator[ByteSource]:
        """Read the lines that describe a tree while the block lasts."""
        url = f"/incarnations/{sandbox_id}/fs/walk"
        async with self._open("GET", url, query=_query(path=path)) as response:
            yield _source(response)

    async def ports(self, sandbox_id: str) -> list[host.Port]:
        """Return on which ports somebody in a guest listens."""
        return (await self._ask("GET", f"/incarnations/{sandbox_id}/ports", host.PortList)).items

    @asynccontextmanager
    async def dial(self, sandbox_id: str, port: int) -> AsyncIterator[duplex.Connection]:
        """Connect to a server in a guest while the block lasts. Raises PortClosed if nobody listens there.

        What the connection receives raises Failed if the server breaks off.
        """
        outgoing = duplex.Outgoing()
        url = f"{_ROOT}/incarnations/{sandbox_id}/ports/{port}"
        timeout = httpx2.Timeout(None, connect=5.0)
        request = self._http.build_request("POST", url, content=outgoing.pieces(), timeout=timeout)
        try:
            async with self._sent(request) as response:
                yield duplex.Exchange(outgoing, _unbroken(response.aiter_raw()))
        finally:
            outgoing.close()

    @asynccontextmanager
    async def logs(self, sandbox_id: str) -> AsyncIterator[ByteSource]:
        """Read the machine's console while the block lasts."""
        async with self._open("GET", f"/incarnations/{sandbox_id}/logs") as response:
            yield _source(response)

    async def log_after(self, sandbox_id: str, position: str) -> LogPart:
        """Return what the machine's console has got after a position, "" for all that is kept."""
        return await self._ask("GET", f"/incarnations/{sandbox_id}/logs/part", LogPart, query={"after": position})

    async def make_volume(self, order: host.MakeVolume) -> host.VolumeFile:
        """Make a volume with an empty file system."""
        return await self._ask("POST", "/volumes", host.VolumeFile, body=order)

    async def volumes(self) -> list[host.VolumeFile]:
        """Return the volumes on the host."""
        return (await self._ask("GET", "/volumes", host.VolumeFiles)).items

    async def remove_volume(self, volume_id: str) -> None:
        """Remove a volume; fine if there is none. Raises Conflict if a sandbox writes to it."""
        await self._tell("DELETE", f"/volumes/{volume_id}")

    async def templates(self) -> list[public.TemplateView]:
        """Return the templates on the host."""
        return (await self._ask("GET", "/templates", public.TemplateList)).items

    async def remove_template(self, name: str) -> None:
        """Remove a template."""
        await self._tell("DELETE", f"/templates/{name}")

    async def aclose(self) -> None:
        """Let go of the connection."""
        await self._http.aclose()

    async def _ask(
        self,
        method: str,
        url: str,
        answer: type[M],
        *,
        query: dict[str, str] | None = None,
        body: BaseModel | None = None,
        patience: float | None = _PATIENCE_S,
    ) -> M:
        async with self._open(method, url, query=query, body=body, patience=patience) as response:
            return await _parsed(response, answer)

    async def _freeze(self, url: str, order: host.Freeze) -> host.Frozen:
        return await self._ask("POST", url, host.Frozen, body=order, patience=_LONG_PATIENCE_S)

    async def _tell(
        self, method: str, url: str, *, query: dict[str, str] | None = None, body: BaseModel | None = None
    ) -> None:
        async with self._open(method, url, query=query, body=body):
            pass

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        url: str,
        *,
        query: dict[str, str] | None = None,
        body: BaseModel | None = None,
        patience: float | None = _PATIENCE_S,
    ) -> AsyncIterator[httpx2.Response]:
        content: dict[str, Any] = {}
        if body is not None:
            content = {"content": body.model_dump_json(), "headers": {"content-type": "application/json"}}
        timeout = httpx2.Timeout(patience, connect=5.0)
        request = self._http.build_request(method, f"{_ROOT}{url}", params=query, timeout=timeout, **content)
        async with self._sent(request) as response:
            yield response

    @asynccontextmanager
    async def _sent(self, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
        try:
            response = await self._http.send(request, stream=True)
            try:
                if response.is_error:
                    raise await _refusal(response)
                yield response
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise _lost(request, error) from error


async def _unbroken(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what a server in a guest sends. Raises Failed if that breaks off."""
    try:
        async for chunk in chunks:
            yield chunk
    except httpx2.TransportError as error:
        raise Failed("the connection to the server in the sandbox was broken off") from error


async def _to_exit(response: httpx2.Response) -> AsyncIterator[frames.Frame]:
    async for frame in frames.decode(response.aiter_raw()):
        if frame.kind is frames.Kind.ERROR:
            raise from_body(ErrorBody.model_validate_json(frame.payload), response.status_code)
        yield frame
        if frame.kind is frames.Kind.EXIT:
            return
    raise OutcomeUnknown("the host's answer ended before the command did")


def _source(response: httpx2.Response) -> ByteSource:
    length = response.headers.get("content-length", "")
    return ByteSource(int(length) if length.isdecimal() else None, response.aiter_raw())


async def _parsed(response: httpx2.Response, answer: type[M]) -> M:
    try:
        return answer.model_validate_json(await _collected(response))
    except ValidationError as error:
        raise OutcomeUnknown("the host's answer is not in the form this version reads") from error


async def _collected(response: httpx2.Response) -> bytes:
    held = bytearray()
    async for chunk in response.aiter_raw():
        held += chunk
        if len(held) > _MAX_COLLECTED:
            raise OutcomeUnknown(f"the host's answer is larger than {_MAX_COLLECTED} bytes")
    return bytes(held)


async def _refusal(response: httpx2.Response) -> TorporError:
    try:
        return from_body(ErrorBody.model_validate_json(await _collected(response)), response.status_code)
    except ValidationError as error:
        unknown = OutcomeUnknown(f"the host answered {response.status_code} in a form this version does not read")
        unknown.__cause__ = error
        return unknown


def _lost(request: httpx2.Request, error: httpx2.TransportError) -> TorporError:
    if isinstance(error, _NOTHING_SENT):
        return HostUnreachable("the host agent could not be reached")
    if request.method == "GET":  # nothing happened, whatever became of the question
        return HostUnreachable("the host agent did not answer")
    return OutcomeUnknown("the request was sent to the host agent, and the answer was lost")


def _query(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
