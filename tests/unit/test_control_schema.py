"""The database's schema: brought forward, refused where it is not known, and as fast as its indices promise."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event

from torpor.control.store.access import AuditListing
from torpor.control.store.contract import AccountListing, Claim, EventListing, Listing, SnapshotListing
from torpor.control.store.sql import open_store
from torpor.control.store.tables import SCHEMA_VERSION, metadata
from torpor.control.store.upgrade import MIGRATIONS
from torpor.errors import Failed, Unsupported
from torpor.model.access import AuditKind
from torpor.model.ids import SandboxId, SnapshotId, WorkspaceId
from torpor.model.lifecycle import State
from torpor.model.network import NO_NETWORK
from torpor.model.sandbox import Care
from torpor.model.usage import Interval

HERE = WorkspaceId("default")


async def made(path: Path) -> Path:
    store = await open_store(path)
    await store.aclose()
    return path


async def test_the_migrations_make_the_tables_the_program_uses(tmp_path: Path) -> None:
    path = await made(tmp_path / "torpor.db")
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()
    assert differences == []


def test_the_programs_schema_is_the_newest_migration() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == SCHEMA_VERSION


async def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = await made(tmp_path / "torpor.db")
    await made(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(SCHEMA_VERSION,)]


async def test_a_commit_is_on_the_disk_before_it_returns(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "torpor.db")
    async with store._writer.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA synchronous")).scalar() == 2
        assert (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar() == "wal"
    await store.aclose()


async def test_what_is_only_noted_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "torpor.db")
    async with store._noter.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA synchronous")).scalar() == 1
    await store.aclose()


async def test_a_second_open_interval_of_a_sandbox_is_refused_by_the_database_itself(tmp_path: Path) -> None:
    older(tmp_path / "torpor.db", "0002", FIRST)
    await made(tmp_path / "torpor.db")
    with closing(sqlite3.connect(tmp_path / "torpor.db")) as connection:
        again = (
            "INSERT INTO intervals SELECT NULL, sandbox_id, state, ended_at, ended_at, 1, 0, 0, 0, 0, 0 FROM intervals"
        )
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            connection.execute(again)


async def test_a_newer_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = await made(tmp_path / "torpor.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unsupported, match="9999, which is newer than this program's"):
        await open_store(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


async def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "torpor.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(Failed, match="not Torpor's"):
        await open_store(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "torpor.db"
    path.write_bytes(b"a text that is long enough to look at, but no database at all\n" * 100)
    with pytest.raises(Failed, match=r"torpor\.db"):
        await open_store(path)


async def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="unable to open"):
        await open_store(tmp_path / "missing" / "torpor.db")


FIRST = """
INSERT INTO sandboxes (id, workspace, template, state, created_at, changed_at, cpu, memory_mb, disk_gb, expires_at,
    ttl_seconds, name, metadata, boot_ms, reason)
VALUES ('sbx-1', 'default', 'base', 'running', 1893456000000000, 1893456000000000, 1, 512, 8, 1893459600000000,
    3600, 'web', '{"run": "7"}', 88, NULL);
INSERT INTO labels VALUES ('sbx-1', 'run', '7');
INSERT INTO claims VALUES ('default', 'k', 'd', 'sbx-1');
"""


SECOND = """
INSERT INTO sandboxes (id, workspace, template, state, created_at, changed_at, cpu, memory_mb, disk_gb, metadata,
    boot_ms, last_snapshot)
VALUES ('sbx-2', 'default', 'base', 'hibernated', 1893456000000000, 1893456060000000, 2, 256, 8, '{}', 70, 'snp-1'),
    ('sbx-3', 'default', 'base', 'deleted', 1893456000000000, 1893456070000000, 1, 512, 8, '{}', 70, NULL);
INSERT INTO snapshots VALUES ('snp-1', 'default', 'sbx-2', 'hibernation', NULL, 'base', 1893456060000000, 2, 256, 8,
    4096, NULL, 1.5, 2.5, 8192, 4096);
"""


def older(path: Path, revision: str, *content: str) -> None:
    """Make a database as an earlier program made it, by its own migrations, with what it held."""
    engine = create_engine(f"sqlite:///{path}")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    with closing(sqlite3.connect(path)) as filling, filling:
        for script in content:
            filling.executescript(script)


async def test_a_database_of_the_first_schema_is_brought_forward_with_all_it_holds(tmp_path: Path) -> None:
    older(tmp_path / "torpor.db", "0001", FIRST)
    store = await open_store(tmp_path / "torpor.db")
    (found,) = await store.page(Listing(HERE, metadata={"run": "7"}))
    assert (found.id, found.state.value, found.name, found.boot_ms) == ("sbx-1", "running", "web", 88)
    assert (found.parent, found.from_snapshot, found.last_snapshot) == (None, None, None)
    assert await store.claimed(HERE, Claim("k", "d")) == found
    assert await store.next_expiry(found.created_at) == found.expires_at
    assert await store.every_snapshot() == []
    await store.aclose()


async def test_a_database_without_a_ledger_gets_one_that_begins_where_each_sandbox_stands(tmp_path: Path) -> None:
    older(tmp_path / "torpor.db", "0002", FIRST, SECOND)
    store = await open_store(tmp_path / "torpor.db")
    found = {account.sandbox.id: account for account in await store.accounts(AccountListing(HERE))}
    began = datetime(2030, 1, 1, 0, 1, tzinfo=UTC)
    assert found[SandboxId("sbx-2")].intervals == [Interval(State.HIBERNATED, began, began, is_open=True)]
    assert found[SandboxId("sbx-1")].intervals[0].state is State.RUNNING
    assert found[SandboxId("sbx-3")].intervals == []
    assert found[SandboxId("sbx-3")].deleted_at == began + timedelta(seconds=10)
    sleeper = found[SandboxId("sbx-2")].sandbox
    assert (sleeper.last_snapshot, sleeper.care) == ("snp-1", Care())
    assert await store.last_event() == 0
    at = began + timedelta(seconds=30)
    moved = await store.move(sleeper.id, {State.HIBERNATED}, State.WAKING, at)
    assert moved is not None
    (account,) = await store.accounts(AccountListing(HERE, sandbox=sleeper.id))
    assert [(one.state, one.began_at, one.ended_at) for one in account.intervals] == [
        (State.HIBERNATED, began, at),
        (State.WAKING, at, at),
    ]
    await store.aclose()


async def test_a_database_from_before_networks_and_secrets_says_that_there_were_none(tmp_path: Path) -> None:
    older(tmp_path / "torpor.db", "0003", SECOND)
    store = await open_store(tmp_path / "torpor.db")
    sandbox, snapshot = await store.get(SandboxId("sbx-2")), await store.snapshot(SnapshotId("snp-1"))
    assert sandbox is not None
    assert snapshot is not None
    assert (sandbox.network, sandbox.guest_ip) == (NO_NETWORK, None)
    assert (sandbox.secret_names, sandbox.has_own_secrets) == ((), False)
    assert (snapshot.network, snapshot.secret_names) == (NO_NETWORK, ())
    assert (sandbox.volumes, snapshot.volumes, await store.with_volumes(HERE)) == ((), (), [])
    assert (await store.builds(HERE), await store.own_templates(None), await store.every_volume()) == ([], [], [])
    await store.aclose()


@pytest.mark.parametrize(
    ("question", "index"),
    [
        ("page", "sandboxes_listing"),
        ("page_by_metadata", "sandboxes_listing"),
        ("due", "sandboxes_expiry"),
        ("next_expiry", "sandboxes_expiry"),
        ("get", "sqlite_autoindex_sandboxes_1"),
        ("snapshots", "snapshots_listing"),
        ("snapshots_of_one", "snapshots_sandbox"),
        ("snapshots_of", "snapshots_sandbox"),
        ("snapshot", "sqlite_autoindex_snapshots_1"),
        ("events", "PRIMARY KEY"),
        ("events_of_one", "events_sandbox"),
        ("last_event", "events"),
        ("key_of", "sqlite_autoindex_keys_2"),
        ("keys", "keys_workspace"),
        ("audit", "audit_workspace"),
        ("audit_of_kinds", "audit_kind"),
        ("audit_of_all", "audit"),
    ],
)
async def test_each_frequent_question_is_answered_from_an_index(tmp_path: Path, question: str, index: str) -> None:
    path = tmp_path / "torpor.db"
    store = await open_store(path)
    asked: list[tuple[str, object]] = []

    def note(_c: object, _u: object, statement: str, parameters: object, _x: object, _m: object) -> None:
        asked.append((statement, parameters))

    event.listen(store._reader.sync_engine, "before_cursor_execute", note)
    questions: dict[str, Callable[[], Awaitable[object]]] = {
        "page": lambda: store.page(Listing(HERE)),
        "page_by_metadata": lambda: store.page(Listing(HERE, metadata={"run": "1"})),
        "due": lambda: store.due(datetime.now(UTC), 1),
        "next_expiry": lambda: store.next_expiry(datetime.now(UTC)),
        "get": lambda: store.get(SandboxId("x")),
        "snapshots": lambda: store.snapshots(SnapshotListing(HERE)),
        "snapshots_of_one": lambda: store.snapshots(SnapshotListing(HERE, sandbox=SandboxId("x"))),
        "snapshots_of": lambda: store.snapshots_of(SandboxId("x")),
        "snapshot": lambda: store.snapshot(SnapshotId("x")),
        "events": lambda: store.events(EventListing(HERE, after=5)),
        "events_of_one": lambda: store.events(EventListing(HERE, sandbox=SandboxId("x"), after=5)),
        "last_event": store.last_event,
        "key_of": lambda: store.key_of("0" * 64),
        "keys": lambda: store.keys(HERE),
        "audit": lambda: store.audit(AuditListing(HERE, after=5)),
        "audit_of_kinds": lambda: store.audit(AuditListing(HERE, kinds=frozenset({AuditKind.CHANGE}))),
        "audit_of_all": lambda: store.audit(AuditListing(None)),
    }
    await questions[question]()
    await store.aclose()
    ((statement, parameters),) = asked
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()  # type: ignore[arg-type]
    steps = [row[3] for row in plan]
    assert any(index in step for step in steps), steps
    scans = ("SCAN sandboxes", "SCAN snapshots", "SCAN intervals", "SCAN events", "SCAN keys")
    assert not any(step.startswith(scans) and "INDEX" not in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps
