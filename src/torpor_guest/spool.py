"""What a command has written to one of its streams, kept by offset: in memory, and in a file where it is much."""

from __future__ import annotations

import os

# So much is kept in memory; what is more goes to the file, all at once.
HELD = 64 * 1024
# So much before what is needed is kept where there is room: who listened may have lost what was on its way to him.
_BEHIND = 8 * 1024 * 1024
_FOLDERS = (b"/var/tmp", b"/tmp", b"/")


class Spool:
    """The newest bytes of a stream: those from the offset `start` up to `end`, at most `most` of them.

    Where the disk has no room for that, the file is as large as it could get, or memory has to do (`held` bytes). What
    is needed is not dropped, even if it is more than `most`.
    """

    def __init__(self, most: int, held: int = HELD) -> None:
        self.start = self.end = 0
        self._most, self._held = most, held
        # The end of the stream; what is before it is in the file.
        self._memory = bytearray()
        # Offsets modulo `_ring` are positions in it.
        self._fd = -1
        self._ring = most
        self._spills = True

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self.end - self.start

    def room(self, needed: int) -> int:
        """Return how many bytes may be added so that nothing from the offset `needed` on is lost; may be negative."""
        return self._most - (self.end - self._kept(needed))

    def _kept(self, needed: int) -> int:
        return max(self.start, needed - min(_BEHIND, self._most // 2))

    def add(self, data: bytes, needed: int) -> None:
        """Add bytes at the end. Beyond `most` the oldest are dropped, but none from the offset `needed` on."""
        self._memory += data
        self.end += len(data)
        if self.end - self.start > self._most:
            self._drop_before(min(self.end - self._most, self._kept(needed)))
        if len(self._memory) > self._held and self._spills:
            self._spill()

    def copy(self, at: int, room: memoryview) -> int:
        """Copy bytes from the offset `at` on, and return how many; 0 only if `at` is the end. Raises OSError."""
        memory_at = self.end - len(self._memory)
        if at < memory_at:
            place = at % self._ring
            size = os.preadv(self._fd, [room[: min(memory_at - at, self._ring - place)]], place)
            if size == 0:
                raise OSError("the file of a command's output is too short")
            return size
        data = self._memory[at - memory_at : at - memory_at + len(room)]
        room[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Keep nothing any more."""
        self._memory.clear()
        self.start = self.end
        self._close_file()

    def _drop_before(self, start: int) -> None:
        self.start = start
        memory_at = self.end - len(self._memory)
        if start >= memory_at:  # then the file has nothing that is kept
            del self._memory[: start - memory_at]
            if not self._spills:
                self._close_file()

    def _spill(self) -> None:
        """Move what is in memory to the file, unless more is kept than there is room for."""
        if self.end - self.start > self._most:
            return
        at = self.end - len(self._memory)
        try:
            if self._fd < 0:
                self._fd = _nameless_file()
            with memoryview(self._memory) as view:
                self._write(view, at)
        except OSError:  # no room on the disk, and what else may be wrong with it
            self._make_do(at)
        else:
            self._memory.clear()

    def _write(self, view: memoryview, at: int) -> None:
        done = 0
        while done < len(view):
            place = (at + done) % self._ring
            done += os.pwrite(self._fd, view[done : done + self._ring - place], place)

    def _make_do(self, written: int) -> None:
        """The file takes no more; up to the offset `written` everything is in it."""
        if self._held <= written < self._ring:
            # It goes round earlier. What is in it stays at its place, because it has not gone round yet.
            self._most = self._ring = written
            return
        self._spills, self._most = False, self._held
        if written == 0:
            self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _nameless_file() -> int:
    """Return an open file that no folder knows, and that vanishes when it is closed. Raises OSError."""
    trouble: OSError | None = None
    for folder in _FOLDERS:
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            trouble = error
    raise trouble or FileNotFoundError
