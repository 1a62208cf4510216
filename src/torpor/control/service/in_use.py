"""What is being used at this moment, and so must not be cleared away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class InUse:
    """Counts who uses something, by its name."""

    def __init__(self) -> None:
        self._used = Counter[str]()

    @contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Count one user more of it (None: of nothing) while the block runs."""
        if name is None:
            yield
            return
        self._used[name] += 1
        try:
            yield
        finally:
            self._used[name] -= 1
            self._used += Counter()  # drops what is at zero

    def __contains__(self, name: str) -> bool:
        return name in self._used
