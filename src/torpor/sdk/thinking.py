"""When a sandbox is worth hibernating while something else is waited for: the rule, without any waiting.

To hibernate and wake costs running time, its *break-even*: a wait has to be longer than that to save any. How long a
wait will be nobody knows at its beginning, so the sandbox is hibernated once the wait has lasted for a *threshold*.
With the break-even itself as threshold a wait costs at most twice what it would cost if its length had been known
(the "ski rental" rule). What the waits so far were like can tell of a better one: where most of those that outlast
the break-even end soon after it, a later one.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from statistics import median

# So many of the newest waits decide.
MOST_WAITS = 50
# With fewer waits than these there is nothing to learn from them.
FEWEST_WAITS = 3
# So many of the newest hibernations and wakes say what the next will take.
NEWEST = 5
# One that is in use is looked at again after its break-even, and at least this.
SHORTEST_LOOK_S = 0.25
# Before anything was measured.
FIRST_GUESS_S = 2.0


@dataclass
class Pause:
    """What became of one `thinking` block. Filled in as it goes, and whole when the block has ended.

    `waited_s`: how long the block lasted. `hibernated`: whether the sandbox was hibernated for it. `asleep_s`: for how
    long it slept; 0 if something woke it within the block. `saved_s`: that, less what the waking took; below 0 if
    the wait ended too soon. `break_even_s`: what hibernating and waking were expected to take. `threshold_s`: how long
    a wait had to last. `left`: the state that it was found in when the wait had lasted for that, where that was not
    running, and in which it was left ("in use": a call was using it, up to the end). `error`: what went wrong, if
    something did. Times are in seconds.
    """

    waited_s: float = 0.0
    hibernated: bool = False
    asleep_s: float = 0.0
    saved_s: float = 0.0
    break_even_s: float = 0.0
    threshold_s: float = 0.0
    left: str | None = None
    error: str | None = None

    def __str__(self) -> str:
        slept = f", asleep for {self.asleep_s:.1f} s of it" if self.hibernated else f", {self.left or 'awake'}"
        return f"waited {self.waited_s:.1f} s{slept}" + (f" ({self.error})" if self.error else "")


@dataclass(frozen=True)
class Thought:
    """What all `thinking` blocks of a sandbox have come to. Times in seconds, as in `Pause`."""

    waits: int = 0
    hibernations: int = 0
    waited_s: float = 0.0
    asleep_s: float = 0.0
    saved_s: float = 0.0

    def plus(self, pause: Pause) -> Thought:
        """Return the sum with one more."""
        return Thought(
            self.waits + 1,
            self.hibernations + pause.hibernated,
            self.waited_s + pause.waited_s,
            self.asleep_s + pause.asleep_s,
            self.saved_s + pause.saved_s,
        )

    def __str__(self) -> str:
        return (
            f"{self.waits} waits of {self.waited_s:.1f} s, {self.hibernations} of them asleep, "
            f"for {self.asleep_s:.1f} s; {self.saved_s:.1f} s saved"
        )


class Costs:
    """What hibernating and waking take in one sandbox, in seconds: as measured lately, or as guessed before."""

    def __init__(self) -> None:
        self._hibernations: deque[float] = deque(maxlen=NEWEST)
        self._wakes: deque[float] = deque(maxlen=NEWEST)
        self._guessed_hibernation_s = self._guessed_wake_s = FIRST_GUESS_S / 2

    @property
    def is_measured(self) -> bool:
        """Whether both have been measured."""
        return bool(self._hibernations and self._wakes)

    @property
    def break_even_s(self) -> float:
        """How long a wait has to be for a sleep through it to save anything."""
        hibernation = median(self._hibernations) if self._hibernations else self._guessed_hibernation_s
        return hibernation + (median(self._wakes) if self._wakes else self._guessed_wake_s)

    def guess(self, hibernation_s: float | None, wake_s: float | None) -> None:
        """Take in what the server knows of an earlier hibernation and of the sandbox's start, where it knows it."""
        self._guessed_hibernation_s = hibernation_s or self._guessed_hibernation_s
        self._guessed_wake_s = wake_s or self._guessed_wake_s

    def hibernated(self, seconds: float) -> None:
        """Take in how long a hibernation took."""
        self._hibernations.append(seconds)

    def woke(self, seconds: float) -> None:
        """Take in how long a wake took."""
        self._wakes.append(seconds)


class Waits:
    """How long the waits so far were, in seconds."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=MOST_WAITS)

    def add(self, seconds: float) -> None:
        """Take in one more."""
        self._seen.append(seconds)

    def threshold_s(self, break_even_s: float) -> float:
        """Return how long a wait is to last before the sandbox is hibernated.

        Of the break-even and each seen wait beyond it, the one with which the seen waits would have cost the least, and
        of equals the earliest. With the longest of them none would have been slept through, so never to sleep would
        have been no better.
        """
        if len(self._seen) < FEWEST_WAITS:
            return break_even_s
        beyond = sorted({wait for wait in self._seen if wait > break_even_s})
        return min([break_even_s, *beyond], key=lambda threshold: self._cost(threshold, break_even_s))

    def _cost(self, threshold_s: float, break_even_s: float) -> float:
        return sum(wait if wait <= threshold_s else threshold_s + break_even_s for wait in self._seen)


class Pauses:
    """What one sandbox object knows of its waits. One block at a time decides; those within it do nothing."""

    def __init__(self) -> None:
        self.costs = Costs()
        self.waits = Waits()
        self.thought = Thought()
        self._is_open = False
        self._lock = threading.Lock()

    def enter(self) -> bool:
        """Tell whether a block that begins now decides."""
        with self._lock:
            decides, self._is_open = not self._is_open, True
            return decides

    def leave(self, pause: Pause) -> None:
        """Take in what became of the block that decided."""
        with self._lock:
            self.waits.add(pause.waited_s)
            self.thought = self.thought.plus(pause)
            self._is_open = False
