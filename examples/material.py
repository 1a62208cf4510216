"""What the examples work on, made on this machine so that the runs need no internet: a repository and a package."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from pathlib import Path

# A service that greets over HTTP, with one mistake in it.
SERVICE = '''"""A service that greets whoever asks: GET /Ada answers "Hello, Ada!"."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from salutations import EXCLAMATION, HELLO


def greet(name):
    return f"{HELLO} {name}{EXCLAMATION}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = greet(self.path.strip("/") or "world").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''

# Two ways to put the comma in. Only the tests tell which is right.
FIXED_SERVICE = SERVICE.replace('f"{HELLO} {name}{EXCLAMATION}"', 'f"{HELLO}, {name}{EXCLAMATION}"')
JOINED_SERVICE = SERVICE.replace('f"{HELLO} {name}{EXCLAMATION}"', '", ".join((HELLO, name, EXCLAMATION))')

# An interpreter that keeps its memory from one step to the next.
INTERPRETER = '''"""Runs the Python that is posted to it, always in the same memory, and answers what that printed."""

import contextlib
import io
import sys
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer

memory = {}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        code, said, status = self.rfile.read(int(self.headers["Content-Length"])), io.StringIO(), 200
        try:
            with contextlib.redirect_stdout(said):
                exec(code, memory)
        except Exception:
            said.write(traceback.format_exc())
            status = 422
        body = said.getvalue().encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''

TESTS = """import unittest

from service import greet


class Greeting(unittest.TestCase):
    def test_it_names_whom_it_greets(self):
        self.assertIn("Ada", greet("Ada"))

    def test_it_puts_a_comma_before_the_name(self):
        self.assertEqual(greet("Ada"), "Hello, Ada!")
"""

# The package the service depends on, which an index would serve elsewhere.
PACKAGE = {
    "salutations/__init__.py": 'HELLO = "Hello"\nEXCLAMATION = "!"\n',
    "salutations-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: salutations\nVersion: 1.0\n",
    "salutations-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: example\n"
    "Root-Is-Purelib: true\nTag: py3-none-any\n",
}
WHEEL_NAME = "salutations-1.0-py3-none-any.whl"


def make_repository(folder: Path) -> Path:
    """Make a git repository with the service in it, and return it as a bundle: a whole repository in one file."""
    repository = folder / "service"
    repository.mkdir()
    for name, text in {
        "service.py": SERVICE,
        "test_service.py": TESTS,
        "requirements.txt": "salutations==1.0\n",
    }.items():
        (repository / name).write_text(text)
    author = ["-c", "user.name=Example", "-c", "user.email=example@example.org"]
    bundle = folder / "service.bundle"
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "."],
        [*author, "commit", "--quiet", "--message=A service that greets"],
        ["bundle", "create", "--quiet", str(bundle), "main"],
    ):
        subprocess.run(["git", *command], cwd=repository, check=True)
    return bundle


def make_wheel(folder: Path) -> Path:
    """Make the package that pip installs in the sandbox, and return it."""
    record = "salutations-1.0.dist-info/RECORD"
    lines = [f"{name},{_digest(text)},{len(text.encode())}" for name, text in PACKAGE.items()]
    wheel = folder / WHEEL_NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in PACKAGE.items():
            archive.writestr(name, text)
        archive.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n")
    return wheel


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
