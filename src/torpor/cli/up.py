"""Start the server in the background, and stop it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torpor.cli import output, record
from torpor.cli.options import Home, Json, home_folder
from torpor.cli.serve import (
    DEFAULT_PORT,
    InsecureHttp,
    ListenHost,
    ListenPort,
    TlsCert,
    TlsKey,
    listening_on,
    tls_files,
)
from torpor.errors import Failed, Forbidden

LOG_FILE = "server.log"
_SERVE = (sys.executable, "-m", "torpor.cli", "serve")
_LOG_TAIL_BYTES = 4096
# What a server may need to end beside putting to sleep what runs: closing files, a disk that is slow.
_STOP_PATIENCE_S = 60.0


def up(  # noqa: PLR0913, PLR0917 - each is one thing to say about a server
    host: ListenHost = "127.0.0.1",
    port: ListenPort = DEFAULT_PORT,
    home: Home = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure_http: InsecureHttp = False,
    json: Json = False,
) -> None:
    """Start the server in the background, if it does not run yet, and return when it is ready.

    What it says goes to `server.log` in its home folder. Addresses that other machines reach take --tls-cert and
    --tls-key.

    Examples:

    * `sudo torpor up`
    * somewhere else: `sudo torpor up --home /srv/torpor --port 8080`
    """
    listening = listening_on(host, port, tls_files(tls_cert, tls_key), insecure_http=insecure_http)
    folder = home_folder(home)
    running = record.read(folder)
    if running is None:
        with output.busy("starting the server ..."):
            url = start(folder, listening.arguments())
    if json:
        output.show_json({"url": running.url if running else url, "started": running is None})
    elif running:
        output.say(f"The server runs already: {running.url}")
    else:
        output.say(f"The server runs: {url}")
        output.note(f"Its log is {folder / LOG_FILE}. `torpor down` stops it.")


def down(home: Home = None, json: Json = False) -> None:
    """Stop the server and wait for its end. What runs is put to sleep first, and wakes when it is used again.

    Examples:

    * `sudo torpor down`
    """
    running = record.read(home_folder(home))
    if running is not None:
        with output.busy(f"stopping the server, which puts to sleep what runs (up to {running.stop_s:.0f} s) ..."):
            stop(running)
    if json:
        output.show_json({"stopped": running is not None})
    else:
        output.say("The server is stopped." if running else "No server runs.")


def start(home: Path, listening: Sequence[str]) -> str:
    """Start a server of its own session, which listens as these words of `serve` say, and return its address.

    It listens by then. Raises Failed with what it said.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = home / LOG_FILE
    # The pipe ends without a word when the server ends without having listened: no clock is needed.
    ready, told = os.pipe()
    log.touch(mode=0o600)
    with open(ready) as answer, log.open("ab") as sink:
        begin = sink.tell()
        try:
            server = subprocess.Popen(
                [*_SERVE, *listening, "--home", str(home), "--ready-fd", str(told)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=[told],
                start_new_session=True,
            )
        finally:
            os.close(told)
        if url := answer.read():
            # It goes on without us: nobody has to wait for it.
            server.returncode = 0
            return url
        server.wait()
    raise Failed(_reason(log, begin), hint=f"all of it is in {log}")


def stop(running: record.Record) -> None:
    """Ask a server to end and wait until it has. Raises Forbidden if it is not ours, Failed if it does not end."""
    patience_s = running.stop_s + _STOP_PATIENCE_S
    try:
        process = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    try:
        # Now that we hold the process, make sure that it is still the one of the record.
        if not running.is_alive():
            return
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], patience_s)[0]:
            raise Failed(
                f"the server (process {running.pid}) has not ended within {patience_s:.0f} s",
                hint="`torpor down` once more ends it at once",
            )
    except PermissionError as error:
        raise Forbidden(f"the server (process {running.pid}) is another user's", hint="use sudo") from error
    finally:
        os.close(process)


def _reason(log: Path, begin: int) -> str:
    with log.open("rb") as said:
        said.seek(max(begin, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = said.read().decode(errors="replace").split("\n")
    complaints = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return complaints[-1] if complaints else "the server ended before it listened"
