"""What the kernel lets this process have."""

from __future__ import annotations

import resource

# Beyond this some kernels refuse, and nobody needs it.
_MOST_OPEN_FILES = 1 << 20


def allow_many_open_files() -> None:
    """Let this process, and those it starts, have as many open files as its owner may allow it.

    What it may have at first is made for programs that ask for a thousand at most.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
