"""Run the server: control plane and host agent in one process, until it is told to stop."""

from __future__ import annotations

import os
import socket
from typing import Annotated

import typer

from torpor.cli.options import Home, home_folder, server_parts
from torpor.errors import Forbidden, InvalidRequest

DEFAULT_PORT = 7070


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = DEFAULT_PORT,
    home: Home = None,
    insecure_allow_remote: Annotated[
        bool,
        typer.Option("--insecure-allow-remote", help="Listen on an address that other machines reach, unencrypted."),
    ] = False,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the server in the foreground. Ctrl-C stops it, and puts to sleep what runs.

    Example: `sudo torpor serve`
    """
    address = listening_address(host, port, remote_allowed=insecure_allow_remote)
    folder = home_folder(home)
    with server_parts():
        from torpor.cli.serving import run  # noqa: PLC0415
    with bound(address) as listener:
        run(listener, folder, ready_fd)


def listening_address(host: str, port: int, *, remote_allowed: bool) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return where to listen. Raises InvalidRequest for a name without address, Forbidden for one others can reach."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest(f"{host!r} is not an address to listen on", hint="use --host 127.0.0.1") from error
    family, name = found[0], str(found[4][0])
    if not remote_allowed and name != "::1" and not name.startswith("127."):
        raise Forbidden(
            f"{host} can be reached from other machines, and the server does not encrypt: "
            "whoever sees the traffic has the key",
            hint="listen on 127.0.0.1, or say --insecure-allow-remote",
        )
    return family, (name, port)


def bound(address: tuple[socket.AddressFamily, tuple[str, int]]) -> socket.socket:
    """Return a socket bound to an address, not yet listening. Raises InvalidRequest if it is taken or not ours."""
    family, (host, port) = address
    # asyncio sends small answers at once only on sockets that say they are TCP; else they come some 40 ms late.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = os.strerror(error.errno or 0)
        raise InvalidRequest(
            f"port {port} on {host} cannot be used: {why[:1].lower()}{why[1:]}",
            hint="stop what uses it, or choose another --port",
        ) from error
    return listener
