"""Connections to one SQLite file in WAL mode: readers never wait, and there is one writer at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from torpor.errors import Failed

_BUSY_TIMEOUT_S = 30


def open_once(path: Path) -> None:
    """Find out that a file can be opened. Raises Failed."""
    # Where a file cannot be opened, aiosqlite's thread may outlive the event loop and then end with a traceback.
    try:
        sqlite3.connect(path).close()
    except sqlite3.Error as error:
        raise Failed(f"the database {path} could not be used: {error}") from error


def writing(path: Path) -> AsyncEngine:
    """Return the way for what has to be on the disk when it is done."""
    return _writer(path, _prepare_durable)


def noting(path: Path) -> AsyncEngine:
    """Return the way for what is written often: it outlives a kill of this program, and perhaps not a loss of power."""
    return _writer(path, _prepare_fast)


def reading(path: Path) -> AsyncEngine:
    """Return the way for questions. They are in autocommit: one statement is one snapshot, without a transaction."""
    engine = _engine(path, pool_size=2, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)
    event.listen(engine.sync_engine, "connect", _prepare_reader)
    return engine


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the database's errors into Failed, but for an IntegrityError, which has a meaning."""
    try:
        yield
    except IntegrityError:
        raise
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        raise Failed(f"the database {path} could not be used: {reason}") from error


def _writer(path: Path, prepare: Any) -> AsyncEngine:
    engine = _engine(path, pool_size=1)
    event.listen(engine.sync_engine, "connect", prepare)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _engine(path: Path, **more: Any) -> AsyncEngine:
    # The driver's own isolation level is None: it would begin transactions late and only before some statements, so
    # `_begin` does it.
    return create_async_engine(
        f"sqlite+aiosqlite:///{path}",
        max_overflow=0,
        pool_timeout=_BUSY_TIMEOUT_S,
        connect_args={"timeout": _BUSY_TIMEOUT_S, "isolation_level": None},
        **more,
    )


def _prepare_durable(connection: Any, _record: Any) -> None:
    _set(connection, "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")


def _prepare_fast(connection: Any, _record: Any) -> None:
    _set(connection, "synchronous = NORMAL")


def _prepare_reader(connection: Any, _record: Any) -> None:
    _set(connection, "query_only = ON")


def _set(connection: Any, *pragmas: str) -> None:
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Any) -> None:
    # Taking the write lock at once means waiting for it here, never failing half-way.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
