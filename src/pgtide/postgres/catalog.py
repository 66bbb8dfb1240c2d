"""Asking the source what its tables and types are.

Invariant: names are compared as the catalog stores them, never as text that was quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from psycopg import sql

from pgtide.pgoutput import Relation
from pgtide.postgres.connection import Connection
from pgtide.schema import Column, Table, TableName, TypeInfo

# Types below this OID are built into every Postgres and never change.
FIRST_USER_OID = 16384


def load_sql(name: str) -> str:
    """A statement from the sql/ directory."""
    return resources.files("pgtide.postgres").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class SourceIdentity:
    """Which server and database we talk to."""

    system_identifier: int
    database: str
    version: int
    timeline: int


def source_identity(connection: Connection) -> SourceIdentity:
    row = one(
        connection,
        "select s.system_identifier, current_database(), current_setting('server_version_num')::int, c.timeline_id"
        " from pg_control_system() s, pg_control_checkpoint() c",
    )
    return SourceIdentity(*row)


@dataclass(frozen=True)
class SourceTable:
    """A table of the source, with what decides whether and how it can be copied."""

    table: Table
    estimated_rows: int
    size_bytes: int
    pages: int
    filenode: int

    @property
    def copyable(self) -> bool:
        """Updates and deletes can be followed: there is a key, or the whole old row is sent."""
        return bool(self.table.key) or self.table.replica_identity == "f"


def list_tables(connection: Connection) -> list[TableName]:
    """Every ordinary table that is not a system's or pgtide's own."""
    rows = connection.execute(load_sql("list_tables")).fetchall()
    return [TableName(*row) for row in rows]


def read_tables(connection: Connection, names: Sequence[TableName]) -> list[SourceTable]:
    """Describe the named tables from the catalog, in the given order; those that do not exist are left out."""
    if not names:
        return []
    rows = connection.execute(
        load_sql("read_tables"), {"schemas": [n.schema for n in names], "names": [n.name for n in names]}
    ).fetchall()
    types = read_types(connection, {column["type_oid"] for row in rows for column in row[4]})
    tables = {TableName(row[1], row[2]): _source_table(row, types) for row in rows}
    return [tables[name] for name in names if name in tables]


def describe_relation(connection: Connection, relation: Relation) -> Table:
    """A table as the stream announces it, completed from the catalog.

    The columns, their order and types are the stream's; the catalog adds the primary key, attribute numbers and
    types. It may already be newer than the stream: what it says of columns the stream does not have is ignored.
    """
    rows = connection.execute(load_sql("read_table_by_oid"), {"oid": relation.relation_oid}).fetchall()
    known = {column["name"]: column for column in rows[0][0]} if rows else {}
    columns = tuple(
        Column(
            name=column.name,
            type_oid=column.type_oid,
            type_modifier=column.type_modifier,
            key=column.key,
            attnum=known.get(column.name, {}).get("attnum", 0),
            not_null=known.get(column.name, {}).get("not_null", False),
            type_name=known.get(column.name, {}).get("type_name", ""),
            has_default=known.get(column.name, {}).get("has_default", False),
        )
        for column in relation.columns
    )
    return Table(
        oid=relation.relation_oid,
        name=TableName(relation.namespace, relation.name),
        columns=columns,
        key=_announced_key(columns, rows[0][1] if rows else [], relation.replica_identity),
        replica_identity=relation.replica_identity,
        types=_type_closure(columns, read_types(connection, {column.type_oid for column in columns})),
    )


def read_types(connection: Connection, oids: Iterable[int]) -> dict[int, TypeInfo]:
    """Types by OID, with the types they are made of.

    Built-in ones are known without asking, but for the few that have no binary form.
    """
    types: dict[int, TypeInfo] = {}
    wanted = set(oids)
    while wanted:
        rows = connection.execute(load_sql("read_types"), {"oids": sorted(wanted)}).fetchall()
        for row in rows:
            types[row[0]] = TypeInfo(*row)
        parts = {part for each in types.values() for part in (each.base, each.element)}
        wanted = {oid for oid in parts if oid >= FIRST_USER_OID} - set(types)
    return types


def one(connection: Connection, statement: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The one row of a query that always has one."""
    row = connection.execute(statement, parameters).fetchone()
    assert row is not None
    return tuple(row)


def with_estimate(connection: Connection, source_table: SourceTable) -> SourceTable:
    """A table that was never analysed has no row count; then the planner guesses from its pages.

    Needs the right to read the table.
    """
    if source_table.estimated_rows or not source_table.pages:
        return source_table
    query = sql.SQL("explain (format json) select from only {}").format(sql.Identifier(*source_table.table.name))
    row = connection.execute(query).fetchone()
    assert row is not None
    return replace(source_table, estimated_rows=int(row[0][0]["Plan"]["Plan Rows"]))


def _source_table(row: tuple[Any, ...], types: dict[int, TypeInfo]) -> SourceTable:
    oid, schema, name, replica_identity, column_rows, primary_key, estimated_rows, size_bytes, pages, filenode = row
    columns = tuple(Column(**column) for column in column_rows)
    table = Table(
        oid=oid,
        name=TableName(schema, name),
        columns=columns,
        key=_key(columns, primary_key, replica_identity),
        replica_identity=replica_identity,
        types=_type_closure(columns, types),
    )
    return SourceTable(table, estimated_rows, size_bytes, pages, filenode)


def _announced_key(columns: tuple[Column, ...], primary_key: list[str], replica_identity: str) -> tuple[str, ...]:
    """The stream itself marks the primary key; the catalog, which may be newer, only puts its columns in order."""
    marked = tuple(column.name for column in columns if column.key)
    if replica_identity == "d" and set(marked) != set(primary_key):
        return marked
    return _key(columns, primary_key, replica_identity)


def _key(columns: tuple[Column, ...], primary_key: list[str], replica_identity: str) -> tuple[str, ...]:
    """The primary key where the stream tells it, else the replica identity's index, else none.

    Under REPLICA IDENTITY USING INDEX an update of the primary key does not send its old value, so there the index is
    the key.
    """
    names = {column.name for column in columns}
    if replica_identity in "df" and primary_key and names.issuperset(primary_key):
        return tuple(primary_key)
    if replica_identity == "i":
        return tuple(column.name for column in columns if column.key)
    return ()


def _type_closure(columns: tuple[Column, ...], types: dict[int, TypeInfo]) -> dict[int, TypeInfo]:
    """The types that these columns need, directly or through others."""
    needed: dict[int, TypeInfo] = {}
    wanted = [column.type_oid for column in columns]
    while wanted:
        oid = wanted.pop()
        if oid in types and oid not in needed:
            needed[oid] = types[oid]
            wanted += [types[oid].base, types[oid].element]
    return needed
