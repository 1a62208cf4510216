"""Secrets of a new sandbox: said on the command line, taken from the caller's environment, or read from a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from torpor.errors import InvalidRequest

# Larger than any file of secrets that can be sent.
_MOST_BYTES = 1024 * 1024

Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME[=VALUE]",
        help="A secret, in the environment of its commands only. Without a value it is taken from your environment;"
        " with one, others on this machine see it in the list of processes. Can be repeated.",
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option("--secret-file", metavar="FILE", help="A file with a NAME=VALUE on each line, `-` for stdin."),
]
NoSecrets = Annotated[bool, typer.Option("--no-secrets", help="Leave it without the secrets that the original had.")]


def secrets_of(given: Sequence[str] | None, file: Path | None, *, none: bool = False) -> dict[str, str] | None:
    """Return the secrets that the options above name, None if they name none; those on the command line win.

    Raises InvalidRequest, without any value in its sentence.
    """
    if none and (given or file is not None):
        raise InvalidRequest("--no-secrets leaves no secrets, so it cannot be given together with some")
    if not given and file is None:
        return {} if none else None
    secrets = {} if file is None else _read(file)
    return secrets | dict(_named(text) for text in given or ())


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise InvalidRequest("--secret takes NAME or NAME=VALUE, and one has no name")
    if equals:
        return name, value
    if name not in os.environ:
        raise InvalidRequest(f"--secret {name}: your environment has no variable of that name")
    return name, os.environ[name]


def _read(file: Path) -> dict[str, str]:
    shown = "stdin" if file == Path("-") else f"the file {file}"
    try:
        if file == Path("-"):
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with file.open("rb") as source:
                data = source.read(_MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise InvalidRequest(f"--secret-file: {shown} cannot be read: {(error.strerror or '').lower()}") from error
    except UnicodeDecodeError:
        raise InvalidRequest(f"--secret-file: {shown} is not text in UTF-8") from None  # its cause has the bytes
    if len(data) > _MOST_BYTES:
        raise InvalidRequest(f"--secret-file: {shown} is larger than {_MOST_BYTES >> 20} MiB")
    return _parsed(text, shown)


def _parsed(text: str, shown: str) -> dict[str, str]:
    """Return what the lines say. A value is the rest of its line, as it is; empty lines and comments say nothing."""
    secrets = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not name.strip() or not equals:
            raise InvalidRequest(f"--secret-file: line {number} of {shown} is not NAME=VALUE")
        secrets[name.strip()] = value
    return secrets
