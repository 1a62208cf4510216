"""A registry of images on this machine's loopback, without TLS: enough of its protocol for pulling."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from oci_images import INDEX, MANIFEST, Image


class Registry(ThreadingHTTPServer):
    """Serves images by `repository:tag`. With `password` it asks for the user `ci` with it.

    `moved_to`: where blobs are said to be instead. `asked`: the paths that were asked for.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        self.password: str | None = None
        self.moved_to: str | None = None
        self.asked: list[str] = []

    @property
    def name(self) -> str:
        """Its host and port, as they stand in the names of images."""
        return f"127.0.0.1:{self.server_address[1]}"

    def push(self, name: str, image: Image, index: bytes | None = None) -> str:
        """Take in an image, with an index in front of it if there is one, and return its whole name."""
        repository, _, tag = name.partition(":")
        self.blobs |= image.blobs
        for digest, text in image.blobs.items():
            self.manifests[f"{repository}/{digest}"] = (MANIFEST, text)
        text, kind = (image.text(), MANIFEST) if index is None else (index, INDEX)
        self.manifests[f"{repository}/{tag}"] = (kind, text)
        self.manifests[f"{repository}/sha256:{hashlib.sha256(text).hexdigest()}"] = (kind, text)
        return f"{self.name}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if not self._is_known():
            self._answer(401, b"{}", {"WWW-Authenticate": 'Basic realm="test"'})
            return
        parts = self.path.removeprefix("/v2/").split("/")
        repository, kind, name = "/".join(parts[:-2]), parts[-2] if len(parts) > 1 else "", parts[-1]
        if self.path.rstrip("/") == "/v2":
            self._answer(200, b"{}", {})
        elif kind == "manifests" and f"{repository}/{name}" in self.server.manifests:
            media_type, text = self.server.manifests[f"{repository}/{name}"]
            digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
            self._answer(200, text, {"Content-Type": media_type, "Docker-Content-Digest": digest})
        elif kind == "blobs" and self.server.moved_to is not None:
            self._answer(307, b"", {"Location": self.server.moved_to})
        elif kind == "blobs" and name in self.server.blobs:
            self._answer(200, self.server.blobs[name], {"Content-Type": "application/octet-stream"})
        else:
            said = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            self._answer(404, json.dumps(said).encode(), {"Content-Type": "application/json"})

    def _is_known(self) -> bool:
        if self.server.password is None:
            return True
        wanted = base64.b64encode(f"ci:{self.server.password}".encode()).decode()
        return self.headers.get("Authorization") == f"Basic {wanted}"

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving_images() -> Iterator[Registry]:
    """Run a registry while the block lasts."""
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()
