"""Run the server: control plane and host agent in one process, until it is told to stop."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from torpor.cli.options import Home, home_folder, server_parts
from torpor.errors import Forbidden, InvalidRequest

DEFAULT_PORT = 7070


ListenHost = Annotated[str, typer.Option("--host", help="The address to listen on.")]
ListenPort = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")]
TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate and its chain, in PEM."),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key, in PEM.")
]
InsecureHttp = Annotated[
    bool, typer.Option("--insecure-http", help="Listen unencrypted on an address that other machines reach.")
]


@dataclass(frozen=True, slots=True)
class Listening:
    """How a server listens: `host` as it was said, the address of that, and the files it serves HTTPS with, if any."""

    host: str
    family: socket.AddressFamily
    address: tuple[str, int]
    certificate: Path | None = None
    private_key: Path | None = None

    def arguments(self) -> list[str]:
        """Return the words of a command line that say the same."""
        words = ["--host", self.host, "--port", str(self.address[1])]
        if self.certificate is not None:
            words += ["--tls-cert", str(self.certificate), "--tls-key", str(self.private_key)]
        return words if self.is_private else [*words, "--insecure-http"]

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along: it is encrypted, or never leaves this machine."""
        return self.certificate is not None or ipaddress.ip_address(self.address[0]).is_loopback


def serve(  # noqa: PLR0913, PLR0917 - each is one thing to say about a server
    host: ListenHost = "127.0.0.1",
    port: ListenPort = DEFAULT_PORT,
    home: Home = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure_http: InsecureHttp = False,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the server in the foreground. Ctrl-C stops it, and puts to sleep what runs.

    Addresses that other machines reach take --tls-cert and --tls-key.

    Examples:

    * at 127.0.0.1:7070: `sudo torpor serve`
    * for other machines: `sudo torpor serve --host 0.0.0.0 --tls-cert fullchain.pem --tls-key key.pem`
    """
    listening = listening_on(host, port, tls_files(tls_cert, tls_key), insecure_http=insecure_http)
    folder = home_folder(home)
    with server_parts():
        from torpor.cli.serving import run  # noqa: PLC0415
    with bound(listening) as listener:
        run(listener, listening, folder, ready_fd)


def tls_files(certificate: Path | None, private_key: Path | None) -> tuple[Path, Path] | None:
    """Return the files to serve HTTPS with, None for neither. Raises InvalidRequest for one alone, or a wrong pair."""
    if certificate is None and private_key is None:
        return None
    if certificate is None or private_key is None:
        raise InvalidRequest("--tls-cert and --tls-key go together", hint="give both, or neither")
    try:
        # With a password that is none, a key that wants one is refused and nobody is asked for it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, password="")
    except OSError as error:  # which an SSLError is, too
        why = error.strerror if not isinstance(error, ssl.SSLError) else "they are no certificate and its private key"
        raise InvalidRequest(f"{certificate} and {private_key} cannot be served with: {why}") from error
    return certificate.absolute(), private_key.absolute()


def listening_on(host: str, port: int, tls: tuple[Path, Path] | None = None, *, insecure_http: bool) -> Listening:
    """Return how to listen. Raises InvalidRequest for a name without address, Forbidden for what others can read."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest(f"{host!r} is not an address to listen on", hint="use --host 127.0.0.1") from error
    certificate, private_key = tls or (None, None)
    listening = Listening(host, found[0], (str(found[4][0]), port), certificate, private_key)
    if not listening.is_private and not insecure_http:
        raise Forbidden(
            f"{host} can be reached from other machines, and HTTP is not encrypted: "
            "whoever sees the traffic has the key",
            hint="give --tls-cert and --tls-key, listen on 127.0.0.1, or say --insecure-http",
        )
    return listening


def bound(listening: Listening) -> socket.socket:
    """Return a socket bound to an address, not yet listening. Raises InvalidRequest if it is taken or not ours."""
    host, port = listening.address
    # asyncio sends small answers at once only on sockets that say they are TCP; else they come some 40 ms late.
    listener = socket.socket(listening.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
