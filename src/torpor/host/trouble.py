"""What this host's file system says, as Torpor's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torpor.errors import Failed, OutOfSpace
from torpor.kit.files import is_full


@contextmanager
def translated(failure: type[Failed], what: str) -> Iterator[None]:
    """Raise an OSError of the block as OutOfSpace where the disk is full, else as `failure`; `what` did not work."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise OutOfSpace(
                "the host's disk is full", hint="free some of it; `torpor doctor` says how much"
            ) from error
        raise failure(f"{what}: {error}") from error
