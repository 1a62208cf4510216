"""A program that runs another one where there is no network, and leads some of its connections out by unix sockets.

    relay.py OUTPUT PORT=SOCKET ... -- PROGRAM ARGUMENTS

Whoever connects to PORT on the loopback is connected to SOCKET. What PROGRAM prints goes to the file OUTPUT, but for
its errors. It needs the standard library only, and ends with the code of PROGRAM.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

_PIECE = 65536


def main(argv: list[str]) -> int:
    """Do what the module says, and return the program's exit code."""
    end = argv.index("--")
    for word in argv[1:end]:
        port, _, path = word.partition("=")
        listener = socket.create_server(("127.0.0.1", int(port)))
        threading.Thread(target=_serve, args=(listener, path), daemon=True).start()
    with open(argv[0], "wb") as output:
        return subprocess.run(argv[end + 1 :], check=False, stdout=output).returncode


def _serve(listener: socket.socket, path: str) -> None:
    while True:
        inside, _ = listener.accept()
        outside = socket.socket(socket.AF_UNIX)
        try:
            outside.connect(path)
        except OSError:
            inside.close()
            continue
        for pair in ((inside, outside), (outside, inside)):
            threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_PIECE):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            each.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
