"""Where the log of a server or a bake goes. Only these two have one."""

from __future__ import annotations

import sys

import structlog


def log_to_stderr(level: int) -> None:
    """Send log lines of at least `level` (of `logging`) to stderr, one `key=value` line each."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"], sort_keys=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # The stream as it is when something is logged: it may have been replaced meanwhile, and closed.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
