"""A server that speaks HTTPS: found and trusted on its own machine, and by whoever trusts who vouches for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import trustme

from torpor import Client, Retry
from torpor.errors import HostUnreachable, InvalidRequest, OutcomeUnknown
from torpor.sdk.http import connection_settings
from torpor.sdk.settings import Server, locate

PATIENCE_S = 60
ONCE = Retry(attempts=1)


@dataclass(frozen=True)
class Encrypted:
    """A server that was started with a certificate of an authority that nobody knows."""

    home: Path
    url: str
    authority: Path
    certificate: Path

    @property
    def key(self) -> str:
        return (self.home / "key").read_text().strip()


def torpor(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
    return subprocess.run(
        [sys.executable, "-m", "torpor.cli", *argv],
        env=kept | {"TORPOR_HOME": str(home), "TORPOR_NETWORK": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def certified(folder: Path, *names: str) -> tuple[Path, Path, Path]:
    """Make an authority and a certificate of it, and return the authority's, the server's, and the private key."""
    authority = trustme.CA()
    server = authority.issue_cert(*names)
    files = folder / "authority.pem", folder / "server.pem", folder / "server.key"
    folder.mkdir(exist_ok=True)
    authority.cert_pem.write_to_path(files[0])
    for part in (
        *server.cert_chain_pems,
        authority.cert_pem,
    ):  # as chains are: others that it could vouch for come after
        part.write_to_path(files[1], append=True)
    server.private_key_pem.write_to_path(files[2])
    return files


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Encrypted]:
    home, (authority, certificate, key) = tmp_path / "home", certified(tmp_path / "tls", "localhost", "127.0.0.1")
    up = torpor(home, "up", "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key), "--json")
    try:
        assert up.returncode == 0, up.stderr
        yield Encrypted(home, json.loads(up.stdout)["url"], authority, certificate)
    finally:
        torpor(home, "down")


def me(server: Server) -> int:
    """Ask a server whose key it is, with what the SDK would use."""
    with httpx2.Client(**connection_settings(server)) as http:
        return http.get("/me").status_code


def test_on_its_own_machine_nothing_has_to_be_configured(encrypted: Encrypted) -> None:
    assert encrypted.url.startswith("https://127.0.0.1:")
    listed = torpor(encrypted.home, "list", "--json")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, []), listed.stderr


def test_it_is_trusted_by_who_trusts_its_authority_and_by_nobody_else(
    encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HostUnreachable), Client(encrypted.url, encrypted.key, retry=ONCE) as client:
        client.me()
    monkeypatch.setenv("TORPOR_CA_FILE", str(encrypted.authority))
    with Client(encrypted.url, encrypted.key, retry=ONCE) as client:
        assert client.me().workspace == "default"


def test_plain_http_is_not_served_beside_it(encrypted: Encrypted) -> None:
    with pytest.raises(OutcomeUnknown), Client(encrypted.url.replace("https", "http"), "tpr_x", retry=ONCE) as client:
        client.me()


def test_only_the_very_certificate_that_the_server_named_is_taken_for_it(
    encrypted: Encrypted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_HOME", str(encrypted.home))
    for name in ("TORPOR_API", "TORPOR_API_KEY", "TORPOR_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    found = locate()
    assert (found.url, found.key) == (encrypted.url, encrypted.key)
    # Of a chain only the first: the others vouch for others, too.
    assert found.pinned is not None
    assert encrypted.certificate.read_text().startswith(found.pinned)
    assert found.pinned.count("BEGIN CERTIFICATE") == 1
    assert me(found) == 200
    _, other, _ = certified(tmp_path / "other", "127.0.0.1")
    with pytest.raises(httpx2.ConnectError):
        me(Server(found.url, found.key, pinned=other.read_text()))


def test_a_file_that_vouches_for_nobody_is_said(tmp_path: Path) -> None:
    for content in (None, "no certificate"):
        file = tmp_path / "ca.pem"
        if content is not None:
            file.write_text(content)
        with pytest.raises(InvalidRequest, match=r"no certificates can be read from .*ca\.pem"):
            connection_settings(Server("https://127.0.0.1:1", "k", ca_file=str(file)))


@pytest.mark.parametrize("wrong", ["missing", "swapped", "other key", "half"])
def test_files_that_cannot_be_served_with_are_said_before_anything_starts(tmp_path: Path, wrong: str) -> None:
    home, (_, certificate, key) = tmp_path / "home", certified(tmp_path / "a", "localhost")
    _, _, other = certified(tmp_path / "b", "localhost")
    files = {
        "missing": (tmp_path / "none.pem", key),
        "swapped": (key, certificate),
        "other key": (certificate, other),
    }
    said = ["--tls-cert", str(certificate)]
    if wrong != "half":
        said = ["--tls-cert", str(files[wrong][0]), "--tls-key", str(files[wrong][1])]
    refused = torpor(home, "serve", "--port", "0", *said)
    assert (refused.returncode, refused.stderr.count("\n"), home.exists()) == (1, 1, False)
    assert "Traceback" not in refused.stderr
    assert ("go together" if wrong == "half" else "cannot be served with") in refused.stderr


def test_a_key_under_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    _, certificate, key = certified(tmp_path / "a", "localhost")
    locked = tmp_path / "locked.key"
    argv = ["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", str(key), "-out", str(locked)]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        argv[1] = "ec"
        subprocess.run(argv, capture_output=True, check=True)
    refused = torpor(tmp_path / "home", "serve", "--tls-cert", str(certificate), "--tls-key", str(locked))
    assert refused.returncode == 1
    assert "cannot be served with" in refused.stderr
