"""What `pgtide check` looks at: every requirement, passed or failed, with the remedy.

Each check is one small function in the list at the end; it only reads. `init` and `run` use the same list, so that a
failure says the same thing everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psycopg import sql

from pgtide.config import Source
from pgtide.errors import PgtideError, PreflightError
from pgtide.postgres.catalog import one, read_tables
from pgtide.postgres.connection import Connection, source_errors
from pgtide.postgres.control import published_tables, read_slot, require_usable, select_tables
from pgtide.schema import TableName

OLDEST_VERSION = 140000


@dataclass(frozen=True)
class CheckResult:
    """One requirement. `remedy` is what to do, mostly SQL, when it is not met."""

    name: str
    passed: bool
    finding: str
    remedy: str | None = None


Check = Callable[[Connection, Source], Iterator[CheckResult]]


def run_checks(connection: Connection, source: Source, *, set_up: bool = True) -> list[CheckResult]:
    """All results. With `set_up`, also whether `init` has been run."""
    checks = [*REQUIREMENTS, *(SET_UP if set_up else ())]
    with source_errors():
        return [result for check in checks for result in check(connection, source)]


def require_ready(connection: Connection, source: Source, *, set_up: bool = False) -> None:
    """Raise PreflightError for the first requirement that is not met."""
    for result in run_checks(connection, source, set_up=set_up):
        if not result.passed:
            raise PreflightError(f"{result.name}: {result.finding}", hint=result.remedy)


def server_version(connection: Connection, source: Source) -> Iterator[CheckResult]:
    number, text = one(
        connection, "select current_setting('server_version_num')::int, current_setting('server_version')"
    )
    yield CheckResult("Postgres version", number >= OLDEST_VERSION, text, "upgrade to Postgres 14 or newer")


def wal_level(connection: Connection, source: Source) -> Iterator[CheckResult]:
    (level,) = one(connection, "select current_setting('wal_level')")
    remedy = "alter system set wal_level = 'logical'; then restart Postgres"
    yield CheckResult("wal_level", level == "logical", level, remedy)


def primary_server(connection: Connection, source: Source) -> Iterator[CheckResult]:
    """Watermarks are written into the WAL, which only a primary can."""
    (standby,) = one(connection, "select pg_is_in_recovery()")
    finding = "the source is a standby" if standby else "the source is a primary"
    yield CheckResult("primary server", not standby, finding, "point source.dsn at the primary")


def replication_privilege(connection: Connection, source: Source) -> Iterator[CheckResult]:
    role, allowed = one(
        connection,
        "select current_user::text, rolreplication or rolsuper from pg_roles where rolname = current_user",
    )
    remedy = sql.SQL("alter role {} with replication;").format(sql.Identifier(role)).as_string(connection)
    finding = f"role {role} may replicate" if allowed else f"role {role} may not replicate"
    yield CheckResult("replication privilege", bool(allowed), finding, remedy)


def walsender_capacity(connection: Connection, source: Source) -> Iterator[CheckResult]:
    used, limit = one(
        connection,
        "select (select count(*) from pg_stat_replication), current_setting('max_wal_senders')::int",
    )
    remedy = f"alter system set max_wal_senders = {limit + 5}; then restart Postgres"
    yield CheckResult(
        "max_wal_senders", used < limit or _slot_active(connection, source), f"{used} of {limit} in use", remedy
    )


def slot_capacity(connection: Connection, source: Source) -> Iterator[CheckResult]:
    used, limit = one(
        connection,
        "select (select count(*) from pg_replication_slots), current_setting('max_replication_slots')::int",
    )
    remedy = (
        "drop a slot that is no longer read, or: "
        f"alter system set max_replication_slots = {limit + 5}; then restart Postgres"
    )
    there = read_slot(connection, source.slot) is not None
    yield CheckResult("max_replication_slots", there or used < limit, f"{used} of {limit} in use", remedy)


def tables_selected(connection: Connection, source: Source) -> Iterator[CheckResult]:
    try:
        names = select_tables(connection, source)
    except PgtideError as error:
        yield CheckResult("tables", False, error.message, error.hint)
        return
    yield CheckResult("tables", True, f"{len(names)} selected")
    yield from _tables_readable(connection, names)
    yield from _tables_identified(connection, names)


def _tables_readable(connection: Connection, names: list[TableName]) -> Iterator[CheckResult]:
    """The first copy reads the tables."""
    for name in names:
        identifier = sql.Identifier(name.schema, name.name).as_string(connection)
        (allowed,) = one(connection, "select has_table_privilege(%s, 'select')", [identifier])
        if not allowed:
            remedy = f"grant select on {identifier} to current_user;".replace("current_user", _role(connection))
            yield CheckResult("select privilege", False, f"no right to read {name}", remedy)


def _tables_identified(connection: Connection, names: list[TableName]) -> Iterator[CheckResult]:
    """Updates and deletes must say which row they change."""
    for source_table in read_tables(connection, names):
        if source_table.copyable:
            continue
        identifier = sql.Identifier(*source_table.table.name).as_string(connection)
        remedy = (
            f"alter table {identifier} add primary key (…); or alter table {identifier} replica identity full; "
            f'or leave it out: tables: ["!{source_table.table.name}"]'
        )
        yield CheckResult(
            "row identity", False, f"{source_table.table.name} has no key and no REPLICA IDENTITY FULL", remedy
        )


def publication_ready(connection: Connection, source: Source) -> Iterator[CheckResult]:
    published = published_tables(connection, source.publication)
    if not published:
        yield CheckResult("publication", False, f"{source.publication} does not exist or is empty", "pgtide init")
        return
    try:
        missing = set(select_tables(connection, source)) - published
    except PgtideError:
        return  # the selection has been found wrong by then
    finding = f"{source.publication} lacks {', '.join(map(str, sorted(missing)))}" if missing else source.publication
    yield CheckResult("publication", not missing, finding, "pgtide init")


def slot_ready(connection: Connection, source: Source) -> Iterator[CheckResult]:
    slot = read_slot(connection, source.slot)
    (database,) = one(connection, "select current_database()")
    try:
        slot = require_usable(slot, source, database)
    except PgtideError as error:
        yield CheckResult("replication slot", False, error.message, error.hint)
        return
    reader = f", read by process {slot.active_pid}" if slot.active_pid else ""
    yield CheckResult("replication slot", True, f"{slot.name}, holds {slot.held_bytes} bytes of WAL{reader}")


def _slot_active(connection: Connection, source: Source) -> bool:
    slot = read_slot(connection, source.slot)
    return slot is not None and slot.active_pid is not None


def _role(connection: Connection) -> str:
    (role,) = one(connection, "select current_user::text")
    return sql.Identifier(role).as_string(connection)


REQUIREMENTS: list[Check] = [
    server_version,
    wal_level,
    primary_server,
    replication_privilege,
    walsender_capacity,
    slot_capacity,
    tables_selected,
]
SET_UP: list[Check] = [publication_ready, slot_ready]
