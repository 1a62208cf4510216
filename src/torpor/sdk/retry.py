"""When a failed call is tried again. The branch of the error decides, never its leaf."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from torpor.errors import OutcomeUnknown, TorporError, Unavailable


@dataclass(frozen=True, slots=True)
class Retry:
    """How patient a client is with a server that is away or full.

    At most `attempts` tries within `patience_s` seconds; the wait starts near `first_delay_s`, doubles, and stays below
    `longest_delay_s`. A `Retry-After` of the server lengthens a wait.
    """

    attempts: int = 5
    first_delay_s: float = 0.1
    longest_delay_s: float = 2.0
    patience_s: float = 15.0


class Attempts:
    """The tries of one call."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._failed = 0
        self._since = time.monotonic()
        self._unknown: OutcomeUnknown | None = None

    def delay_s(self, error: TorporError, *, repeatable: bool) -> float | None:
        """Return how long to wait before the next try, in seconds, or None if the error is to be raised.

        Unavailable says that nothing happened, so any call may be tried again. After OutcomeUnknown only a `repeatable`
        one may: a call whose second run changes nothing more.
        """
        if isinstance(error, OutcomeUnknown):
            self._unknown = error
        if not (isinstance(error, Unavailable) or (repeatable and isinstance(error, OutcomeUnknown))):
            return None
        self._failed += 1
        if self._failed >= self._retry.attempts:
            return None
        delay = min(self._retry.longest_delay_s, self._retry.first_delay_s * 2.0 ** (self._failed - 1))
        # Spread out, so that clients refused together do not return together.
        delay *= random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        delay = max(delay, error.retry_after_s or 0.0)
        if time.monotonic() - self._since + delay > self._retry.patience_s:
            return None
        return delay

    def verdict(self, error: TorporError) -> TorporError:
        """Return what is to be raised when `error` was the last try's.

        That it says nothing happened is true of the last try only: if the answer to an earlier one was lost, nobody
        knows.
        """
        return self._unknown if self._unknown is not None and isinstance(error, Unavailable) else error
