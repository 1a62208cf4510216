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

    A command that is being listened to, and a stream of events, are something else: where the line breaks or falls
    silent, it is made anew, however often, until for `reattach_s` seconds from then on no line has brought anything.
    So they outlive a restart of the server, whose orderly stop alone may take a minute.
    """

    attempts: int = 5
    first_delay_s: float = 0.1
    longest_delay_s: float = 2.0
    patience_s: float = 15.0
    reattach_s: float = 180.0


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
        delay = _delay_s(self._retry, self._failed, error)
        if time.monotonic() - self._since + delay > self._retry.patience_s:
            return None
        return delay

    def verdict(self, error: TorporError) -> TorporError:
        """Return what is to be raised when `error` was the last try's.

        That it says nothing happened is true of the last try only: if the answer to an earlier one was lost, nobody
        knows.
        """
        return self._unknown if self._unknown is not None and isinstance(error, Unavailable) else error


class Reattaching:
    """The lines of one stream: where one breaks, new ones go on with it, until they have been no use for too long."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._failed = 0
        self._broken_since = 0.0
        self._may_have_begun = False
        self._unknown: OutcomeUnknown | None = None

    def opened(self) -> None:
        """Take in that the server answered: what is listened to is there."""
        self._may_have_begun = True

    def progress(self) -> None:
        """Take in that the line brought what it is there for. That a server gives signs of life is not that."""
        self._failed = 0
        self._unknown = None

    def left_s(self) -> float:
        """Return for how long there is still hope, in seconds; infinite while nothing has failed."""
        if self._failed == 0:
            return float("inf")
        return max(0.0, self._retry.reattach_s - (time.monotonic() - self._broken_since))

    def delay_s(self, error: TorporError) -> float | None:
        """Return how long to wait before the next line, in seconds, or None if the error is to be raised.

        As long as nothing can have reached the server, there is nothing to go on with, and each error is raised.
        """
        if isinstance(error, OutcomeUnknown):
            self._may_have_begun = True
            self._unknown = error
        elif not isinstance(error, Unavailable):
            return None
        if not self._may_have_begun:
            return None
        if self._failed == 0:
            self._broken_since = time.monotonic()
        self._failed += 1
        delay = _delay_s(self._retry, self._failed, error)
        return delay if delay < self.left_s() else None

    def wait_s(self, error: TorporError) -> float:
        """Return how long to wait before the next line, in seconds. Raises what is to be raised if there is none."""
        if (delay := self.delay_s(error)) is None:
            raise self.verdict(error) from error.__cause__
        return delay

    def verdict(self, error: TorporError) -> TorporError:
        """Return what is to be raised when `error` was the last line's."""
        return self._unknown if self._unknown is not None and isinstance(error, Unavailable) else error


def _delay_s(retry: Retry, failed: int, error: TorporError) -> float:
    delay = min(retry.longest_delay_s, retry.first_delay_s * 2.0 ** min(failed - 1, 30))
    # Spread out, so that clients refused together do not return together.
    delay *= random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
    return max(delay, error.retry_after_s or 0.0)
