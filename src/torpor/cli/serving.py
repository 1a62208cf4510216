"""The server's process: everything put together, signals, and what is said about it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import uvicorn

from torpor.cli import output, record
from torpor.cli.logs import log_to_stderr
from torpor.cli.serve import Listening
from torpor.control.front import front
from torpor.control.main import ControlConfig, control_plane
from torpor.host.config import HostConfig
from torpor.host.main import host_agent
from torpor.kit.installed import installed_version
from torpor.kit.priority import set_priority
from torpor.wire.home import KEY_FILE, SERVER_FILE
from torpor.wire.host import HOST_API_VERSION
from torpor.wire.memory import App, MemoryTransport
from torpor.wire.public import TemplateList

# Commands that still run when the server is told to stop are given this long, in seconds.
GRACE_S = 5
# About nine times what a process weighs that does not say.
_PRIORITY = -10
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(listener: socket.socket, listening: Listening, home: Path, ready_fd: int | None) -> None:
    """Serve on a bound socket until a signal. Raises what keeps the server from starting."""
    log_to_stderr(logging.INFO)
    _come_first()
    os.umask(0o077)  # all that is made from here on is its owner's alone: users' memory, their disks, what they said
    if not listening.is_private:
        output.warn(f"warning: {listening.host} is served without encryption; whoever sees the traffic has the key")
    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(listener, listening, home, ready_fd))


def _come_first() -> None:
    """Weigh more than a guest when processors are short, so that there is somebody to pause or end one. For root only.

    A machine has a control group of its own, in which it is the usual again.
    """
    with contextlib.suppress(PermissionError):
        set_priority(_PRIORITY)


async def _serve(listener: socket.socket, listening: Listening, home: Path, ready_fd: int | None) -> None:
    """Serve until a signal, in this order: no new calls, GRACE_S for those that run, then what runs is put to sleep.

    Signals are heeded until all of that is done.
    """
    config = ControlConfig.from_environment(home)
    config = replace(config, access=config.access.bound_to(listening.host).bound_to(listening.address[0]))
    with _stopped_by_signals() as stop:
        async with _application(config) as (app, templates):
            mine = record.own(_url(listener, listening), GRACE_S + config.stop_within_s, listening.certificate)
            server = _Server(_config(app, listening), lambda: _announce(mine, config.home, templates, ready_fd))
            stop.stops(server)
            await server.serve(sockets=[listener])


@asynccontextmanager
async def _application(config: ControlConfig) -> AsyncIterator[tuple[App, list[str]]]:
    """Yield the public application, and the names of the templates there are.

    When the block ends well, what runs is put to sleep. Until that is done the server can be found, though it does not
    listen any more.
    """
    home = config.home
    async with host_agent(HostConfig.from_environment(home)) as host:
        transport = MemoryTransport(host)
        async with httpx2.AsyncClient(transport=transport, base_url="http://host") as client:
            answer = await client.get(f"/host/{HOST_API_VERSION}/templates")
        names = [template.name for template in TemplateList.model_validate_json(answer.content).items]
        try:
            async with control_plane(config, transport) as app:
                yield app, names
        finally:
            _withdraw(home)


def _config(app: App, listening: Listening) -> uvicorn.Config:
    return front(
        app,
        ssl_certfile=listening.certificate,
        ssl_keyfile=None if listening.private_key is None else str(listening.private_key),
        timeout_graceful_shutdown=GRACE_S,
    )


class _Server(uvicorn.Server):
    """uvicorn, telling when it listens and leaving signals to us: it would end by them, and a stop is no failure."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stop:
    """The first signal stops the server in good order, also one that comes before it listens; the second at once."""

    def __init__(self) -> None:
        self._asked = False
        self._server: uvicorn.Server | None = None

    def stops(self, server: uvicorn.Server) -> None:
        """Have a signal stop this server."""
        self._server = server
        server.should_exit = self._asked

    def __call__(self) -> None:
        if self._asked:
            output.warn("stopped at once; the next start takes over what runs, and clears away what was left")
            os._exit(1)
        self._asked = True
        if self._server is not None:
            self._server.should_exit = True
        output.note("stopping: what runs is put to sleep first; once more stops at once")


@contextmanager
def _stopped_by_signals() -> Iterator[_Stop]:
    loop, stop = asyncio.get_running_loop(), _Stop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _announce(mine: record.Record, home: Path, templates: list[str], ready_fd: int | None) -> None:
    mine.write(home)
    output.say(f"Torpor {installed_version('torpor')} listens on {mine.url}")
    output.say(f"  key        {home / KEY_FILE}")
    there = ", ".join(templates) or "none yet: `torpor template build base` makes one"
    output.say(f"  templates  {there}")
    output.note("Ctrl-C stops it.")
    if ready_fd is not None:
        with open(ready_fd, "w") as ready:
            ready.write(mine.url)


def _url(listener: socket.socket, listening: Listening) -> str:
    """Return where the server is reached from here: by the name that was said, which may be a certificate's."""
    address, port = listener.getsockname()[:2]
    # One that listens everywhere is reached by the loopback address.
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address)  # noqa: S104 - compared, not bound
    name = near or (address if listening.certificate is None else listening.host.strip("[]"))
    scheme = "http" if listening.certificate is None else "https"
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def _withdraw(home: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (home / SERVER_FILE).unlink()
