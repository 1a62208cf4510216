"""OCI images made by hand for tests: layers from files, a configuration, and what holds them together."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def a_file(name: str, content: bytes = b"", mode: int = 0o644, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry of an archive; `more` are other fields of it."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    for key, value in more.items():
        setattr(entry, key, value)
    return entry, content


def archive_of(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a tar archive."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return held.getvalue()


@dataclass
class Image:
    """One image: its blobs by digest, and the descriptor of its manifest."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)

    def put(self, content: bytes, media_type: str) -> dict[str, Any]:
        """Add a blob and return its descriptor."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def text(self, digest: str | None = None) -> bytes:
        """Return a blob, the manifest if none is named."""
        return self.blobs[self.manifest["digest"] if digest is None else digest]


def an_image(
    *layers: bytes,
    config: Mapping[str, Any] | None = None,
    architecture: str = "amd64",
    compress: Callable[[bytes], bytes] = gzip.compress,
    suffix: str = "+gzip",
) -> Image:
    """Return an image of layers, each a tar archive."""
    image = Image()
    descriptors = [image.put(compress(layer), LAYER + suffix) for layer in layers]
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    said = {
        "architecture": architecture,
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": image.put(json.dumps(said).encode(), CONFIG),
        "layers": descriptors,
    }
    image.manifest = image.put(json.dumps(manifest).encode(), MANIFEST)
    return image


def index_of(image: Image, *platforms: str) -> bytes:
    """Return an index that names an image once for each of these architectures."""
    named = [{**image.manifest, "platform": {"os": "linux", "architecture": each}} for each in platforms]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": named}).encode()


def write_layout(image: Image, folder: Path) -> Path:
    """Write an OCI layout and return its folder."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest, content in image.blobs.items():
        (blobs / digest.partition(":")[2]).write_bytes(content)
    index = {"schemaVersion": 2, "manifests": [image.manifest]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return folder


def archive_layout(image: Image, folder: Path, target: Path) -> Path:
    """Write an OCI layout as one archive and return it."""
    write_layout(image, folder)
    with tarfile.open(target, "w") as archive:
        archive.add(folder, arcname=".")
    return target
