"""Connections to servers in the guest: `dial`."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from contextlib import suppress

from torpor_guest import protocol
from torpor_guest.connection import Stream
from torpor_guest.loop import IN, ONCE, OUT, Loop
from torpor_guest.refusal import Refusal

# A server whose queue of new connections is full does not answer; it has this long, in seconds.
_CONNECT_S = 10.0
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
# What an address family that the guest does not have answers with, and one at which nobody listens.
_NOBODY = {errno.ECONNREFUSED, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH}


class Dial:
    """One connection to a port of the guest's loopback, as a stream: bytes both ways until the server ends it.

    The host's END is passed on as the end of what the server reads. Once the server ends, or breaks off, what it
    sends, the call is over, and what it has not read is thrown away.
    """

    sub = protocol.OUTPUT

    def __init__(self, loop: Loop, stream: Stream, port: int) -> None:
        self._loop, self._stream, self._port = loop, stream, port
        self._addresses = deque(_ADDRESSES)
        self._socket: socket.socket | None = None
        self._timer = loop.after(_CONNECT_S, self._too_late)
        self._connected = self._ended = self._wants_in = False
        self._sent = 0
        # What the server has not taken yet, and how much credit is due for it.
        self._waiting: deque[tuple[memoryview, int]] = deque()
        stream.operation = self
        self._connect_next()

    # -- connecting

    def _connect_next(self) -> None:
        """Try the next address. Raises Refusal where there is none left, or no socket to be had."""
        self._drop_socket()
        while self._addresses:
            family, address = self._addresses.popleft()
            try:
                self._begin(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK), address)
            except OSError as error:
                self._drop_socket()
                if error.errno not in _NOBODY:
                    raise self._cannot(error) from error
            else:
                return
        self._close()
        raise Refusal("port_closed", f"nobody listens on port {self._port} in the sandbox")

    def _begin(self, sock: socket.socket, address: str) -> None:
        self._socket = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(BlockingIOError):
            sock.connect((address, self._port))
        self._loop.watch(sock.fileno(), OUT | ONCE, self._on_event)

    def _too_late(self) -> None:
        if not self._connected and self._socket is not None:
            self._close()
            self._stream.refuse(
                Refusal("busy", f"the server on port {self._port} takes no new connection for {_CONNECT_S:g} s")
            )

    def _cannot(self, error: OSError) -> Refusal:
        self._close()
        code = "busy" if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM) else "failed"
        return Refusal(code, f"port {self._port} cannot be reached: {os.strerror(error.errno or 0).lower()}")

    def _settle(self) -> None:
        """The attempt to connect has come to its end."""
        assert self._socket is not None  # noqa: S101 - an event comes only from one that is open
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number in _NOBODY:
            self._connect_next()
        elif number:
            raise self._cannot(OSError(number, os.strerror(number)))
        else:
            self._connected = True
            self._timer.cancel()
            self._stream.begun()
            self._stream.ready(self)
            self._pass_on()

    # -- connected

    def _on_event(self, events: int) -> None:
        try:
            if not self._connected:
                self._settle()
                return
            if self._wants_in and events & ~OUT:
                self._wants_in = False
                self._stream.ready(self)
            if self._waiting and events & ~IN:
                self._pass_on()
        except Refusal as refusal:
            self._stream.refuse(refusal)
        self._listen()

    def _listen(self) -> None:
        """Ask for what is waited for."""
        events = (IN if self._wants_in else 0) | (OUT if self._waiting else 0)
        if self._socket is not None and self._connected and events:
            self._loop.change(self._socket.fileno(), events | ONCE)

    def fill(self, room: memoryview) -> int:
        """Read what the server sends into a frame."""
        if self._socket is None:
            return 0
        try:
            size = self._socket.recv_into(room)
        except BlockingIOError:
            self._wants_in = True
            self._listen()
            return 0
        except OSError as error:
            self._close()
            raise Refusal("failed", f"the server on port {self._port} broke the connection off") from error
        self._sent += size
        if size == 0:
            self._close()
            self._stream.result({"bytes": self._sent})
        return size

    def on_data(self, payload: memoryview) -> None:
        size = len(payload)
        if self._connected and not self._waiting:
            payload = self._write(payload)
        if payload:
            self._waiting.append((memoryview(bytes(payload)), size))
            self._listen()
        else:
            self._stream.consumed(size)

    def _write(self, payload: memoryview) -> memoryview:
        """Return what the server does not take now. One that takes no more, ever, is no error: it may still send."""
        if self._socket is None:
            return payload[:0]
        try:
            return payload[self._socket.send(payload) :]
        except BlockingIOError:
            return payload
        except OSError:
            return payload[:0]

    def _pass_on(self) -> None:
        while self._waiting:
            payload, size = self._waiting[0]
            if rest := self._write(payload):
                self._waiting[0] = (rest, size)
                return
            self._waiting.popleft()
            self._stream.consumed(size)
        if self._ended:
            self._shut()

    def on_end(self) -> None:
        self._ended = True
        if self._connected and not self._waiting:
            self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the server has gone meanwhile, which is told when it is read from
                self._socket.shutdown(socket.SHUT_WR)

    def on_cancel(self) -> None:
        self._close()
        self._stream.refuse(Refusal("cancelled", "the host gave up"))

    def on_drop(self) -> None:
        self._close()

    def _close(self) -> None:
        self._timer.cancel()
        self._addresses.clear()
        self._waiting.clear()
        self._drop_socket()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
