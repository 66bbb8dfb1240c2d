"""What pgtide sets up in the source: a control schema, a publication and a slot.

Everything here is idempotent and says what it did. The slot is created last, so that a failure leaves nothing that
holds back WAL.

Watermarks are written here too: transactional logical messages, which stand in the WAL in commit order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import sql

from pgtide.config import Source
from pgtide.errors import PreflightError, SlotError, SourceError
from pgtide.frames import message_prefix
from pgtide.lsn import LSN
from pgtide.postgres.catalog import list_tables, one, read_tables
from pgtide.postgres.connection import Connection, source_errors
from pgtide.schema import TableName

PLUGIN = "pgoutput"
CONTROL_SCHEMA = "pgtide"
_OLDER_TRANSACTIONS_SECONDS = 60.0


@dataclass(frozen=True)
class Slot:
    """A replication slot as pg_replication_slots shows it."""

    name: str
    plugin: str
    database: str
    active_pid: int | None
    restart_lsn: LSN | None
    confirmed_flush_lsn: LSN | None
    wal_status: str | None
    held_bytes: int
    safe_wal_size: int | None


def read_slot(connection: Connection, name: str) -> Slot | None:
    """The slot, with the WAL that it holds; None if there is none of this name."""
    row = connection.execute(
        "select slot_name::text, plugin::text, database::text, active_pid, restart_lsn::text,"
        " confirmed_flush_lsn::text, wal_status, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8,"
        " safe_wal_size from pg_replication_slots where slot_name = %s",
        [name],
    ).fetchone()
    if row is None:
        return None
    slot_name, plugin, database, pid, restart, confirmed, wal_status, held, safe = row
    return Slot(slot_name, plugin, database, pid, _lsn(restart), _lsn(confirmed), wal_status, held, safe)


def require_usable(slot: Slot | None, source: Source, database: str) -> Slot:
    """The slot, if it can be read by us; each other state is named."""
    if slot is None:
        raise SlotError(
            f"replication slot {source.slot!r} does not exist",
            hint="run `pgtide init`; if a journal was already written from it, changes since are lost: remove the "
            "journal and the sink's tables first",
        )
    if slot.plugin != PLUGIN:
        raise SlotError(
            f"replication slot {slot.name!r} uses plugin {slot.plugin!r}, pgtide needs {PLUGIN!r}",
            hint=f"set source.slot to another name, or: select pg_drop_replication_slot('{slot.name}');",
        )
    if slot.database != database:
        raise SlotError(
            f"replication slot {slot.name!r} belongs to database {slot.database!r}",
            hint="set source.slot to another name",
        )
    if slot.wal_status == "lost":
        raise SlotError(
            f"replication slot {slot.name!r} is lost: Postgres has removed WAL that it needed",
            hint="remove the journal and the sink's tables, run `pgtide destroy` and `pgtide init`; raise "
            "max_slot_wal_keep_size so that it does not happen again",
        )
    return slot


def select_tables(connection: Connection, source: Source) -> list[TableName]:
    """The tables that the configuration chooses. A name without wildcards must exist."""
    names = list_tables(connection)
    for glob in source.tables:
        plain = not set(glob) & set("!*?[")
        if plain and TableName.parse(glob) not in names:
            raise PreflightError(
                f"table {glob!r} does not exist or is not an ordinary table",
                hint="check source.tables; names are schema.table as the catalog writes them, without quotes",
            )
    selected = [name for name in names if source.selects(name)]
    if not selected:
        raise PreflightError(
            "source.tables selects no table",
            detail=f"the database has {len(names)} tables",
            hint='write globs over schema.table, for example tables: ["public.*"]',
        )
    return selected


def create_control_schema(connection: Connection) -> list[str]:
    if _exists(connection, "select 1 from pg_namespace where nspname = %s", CONTROL_SCHEMA):
        return []
    connection.execute(sql.SQL("create schema {}").format(sql.Identifier(CONTROL_SCHEMA)))
    connection.execute(
        sql.SQL("comment on schema {} is 'pgtide: change data capture'").format(sql.Identifier(CONTROL_SCHEMA))
    )
    return [f"created schema {CONTROL_SCHEMA}"]


def create_publication(connection: Connection, source: Source, tables: Sequence[TableName]) -> list[str]:
    """Create the publication for these tables, or add those that an existing one lacks.

    None is taken out: what changes while a table is out of the publication is lost, should it be selected again.
    """
    publication = sql.Identifier(source.publication)
    row = connection.execute(
        "select puballtables from pg_publication where pubname = %s", [source.publication]
    ).fetchone()
    if row is None:
        connection.execute(sql.SQL("create publication {} for table {}").format(publication, _names(tables)))
        return [f"created publication {source.publication} for {len(tables)} tables"]
    if row[0]:
        return []
    added = sorted(set(tables) - published_tables(connection, source.publication))
    if not added:
        return []
    change = sql.SQL("alter publication {} {} table {}")
    connection.execute(change.format(publication, sql.SQL("add"), _names(added)))
    try:
        _wait_for_older_transactions(connection)
    except BaseException:
        connection.execute(change.format(publication, sql.SQL("drop"), _names(added)))
        raise
    return [f"added to publication {source.publication}: {', '.join(map(str, added))}"]


def _wait_for_older_transactions(connection: Connection) -> None:
    """Changes that a running transaction made before its table was published are not in the stream.

    So the table may be copied only when every such transaction has ended: then the copy sees them.
    """
    (newest,) = one(connection, "select pg_snapshot_xmax(pg_current_snapshot())::text::int8")
    deadline = time.monotonic() + _OLDER_TRANSACTIONS_SECONDS
    while one(connection, "select pg_snapshot_xmin(pg_current_snapshot())::text::int8")[0] < newest:
        if time.monotonic() > deadline:
            raise SourceError(
                "transactions that began before the new tables were published are still running",
                detail=f"waited for {_OLDER_TRANSACTIONS_SECONDS:.0f} seconds; the publication is as it was",
                hint="wait for them or end them (pg_stat_activity, xact_start), then run `pgtide init` again",
            )
        time.sleep(0.1)


def published_tables(connection: Connection, publication: str) -> set[TableName]:
    rows = connection.execute(
        "select schemaname::text, tablename::text from pg_publication_tables where pubname = %s", [publication]
    )
    return {TableName(*row) for row in rows}


def require_publication(connection: Connection, source: Source) -> None:
    """Without its publication the slot would be read as if nothing had changed."""
    if not _exists(connection, "select 1 from pg_publication where pubname = %s", source.publication):
        raise SourceError(
            f"publication {source.publication!r} does not exist",
            hint="what changed since it vanished cannot be read any more: remove the journal and the sink's tables, "
            "run `pgtide destroy` and `pgtide init`, and copy again",
        )


def create_slot(connection: Connection, source: Source, database: str) -> list[str]:
    slot = read_slot(connection, source.slot)
    if slot is not None:
        require_usable(slot, source, database)
        return []
    require_free_slot(connection)
    # A slot waits for transactions that run now; without a limit a forgotten one would make this wait for ever.
    connection.execute("set lock_timeout = '60s'")
    try:
        connection.execute("select pg_create_logical_replication_slot(%s, %s)", [source.slot, PLUGIN])
    finally:
        connection.execute("reset lock_timeout")
    return [f"created replication slot {source.slot}"]


def require_free_slot(connection: Connection) -> None:
    used, limit = one(
        connection, "select (select count(*) from pg_replication_slots), current_setting('max_replication_slots')::int"
    )
    if used >= limit:
        raise SlotError(
            "no replication slot is free",
            detail=f"{used} of {limit} are in use",
            hint=f"drop one that is no longer read, or: alter system set max_replication_slots = {limit + 5}; "
            "and restart Postgres",
        )


def initialise(connection: Connection, source: Source) -> list[str]:
    """Set everything up; say what was done. Doing it again does nothing."""
    from pgtide.postgres.preflight import require_ready

    with source_errors():
        require_ready(connection, source)
        tables = select_tables(connection, source)
        database = one(connection, "select current_database()")[0]
        return [
            *create_control_schema(connection),
            *create_publication(connection, source, tables),
            *create_slot(connection, source, database),
        ]


def destroy(connection: Connection, source: Source) -> list[str]:
    """Remove what `initialise` made; say what was removed. A slot in use is an error."""
    done = []
    with source_errors():
        slot = read_slot(connection, source.slot)
        if slot is not None:
            if slot.active_pid is not None:
                raise SlotError(
                    f"replication slot {slot.name!r} is in use by process {slot.active_pid}",
                    hint="stop `pgtide run` first",
                )
            connection.execute("select pg_drop_replication_slot(%s)", [source.slot])
            done.append(f"dropped replication slot {source.slot}")
        if _exists(connection, "select 1 from pg_publication where pubname = %s", source.publication):
            connection.execute(sql.SQL("drop publication {}").format(sql.Identifier(source.publication)))
            done.append(f"dropped publication {source.publication}")
        if _exists(connection, "select 1 from pg_namespace where nspname = %s", CONTROL_SCHEMA):
            connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(CONTROL_SCHEMA)))
            done.append(f"dropped schema {CONTROL_SCHEMA}")
    return done


def emit(connection: Connection, slot: str, event: dict[str, Any]) -> LSN:
    """Put an event into the WAL, in a transaction of its own, for readers of `slot`; gives an LSN inside it."""
    content = json.dumps(event, separators=(",", ":"))
    row = one(connection, "select pg_logical_emit_message(true, %s, %s)::text", [message_prefix(slot), content])
    return LSN.parse(row[0])


def current_lsn(connection: Connection) -> LSN:
    """The end of the WAL as written: every transaction that is visible now committed before it."""
    return LSN.parse(one(connection, "select pg_current_wal_insert_lsn()::text")[0])


def require_tables_copyable(connection: Connection, names: Sequence[TableName]) -> None:
    """Refuse tables whose updates and deletes could not be followed."""
    for source_table in read_tables(connection, names):
        if not source_table.copyable:
            name = source_table.table.name
            raise SourceError(
                f"table {name} has no primary key and no REPLICA IDENTITY FULL",
                detail="its updates and deletes do not say which row they change",
                hint=f"alter table {name} add primary key (…); or alter table {name} replica identity full; "
                f'or exclude it: tables: [… , "!{name}"]',
            )


def _names(tables: Sequence[TableName]) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(table.schema, table.name) for table in tables)


def _exists(connection: Connection, query: LiteralString, name: str) -> bool:
    return connection.execute(query, [name]).fetchone() is not None


def _lsn(text: str | None) -> LSN | None:
    return None if text is None else LSN.parse(text)
