"""Copying one chunk: from COPY binary into a file of the journal, unread.

The order is what makes it exact. One short REPEATABLE READ transaction takes pg_current_snapshot() and the rows; the
rows are made durable; then a transactional message puts the chunk's high watermark into the WAL. Whoever reads the
watermark finds the file complete; all that the chunk could see committed before it.

Invariant: no lock beyond ACCESS SHARE, and no transaction longer than its chunk.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from psycopg import IsolationLevel, sql

from pgtide.config import Source
from pgtide.errors import SnapshotError
from pgtide.frames import table_description
from pgtide.journal import BlockKind
from pgtide.journal.files import WholeFile
from pgtide.postgres.catalog import one
from pgtide.postgres.connection import Connection, connect, source_errors
from pgtide.postgres.control import emit
from pgtide.schema import Column, Table
from pgtide.snapshot.events import ChunkCopied, PageRange, dump_event

_BLOCK_BYTES = 1024 * 1024
# What COPY binary begins with: signature, flags, length of the header extension.
_COPY_HEADER_BYTES = 19
_COPY_TRAILER = b"\xff\xff"

REPAIR_CHUNK = -1


class TableRewritten(SnapshotError):
    """The table has new storage: its pages are not the ones that were planned."""


@dataclass(frozen=True)
class ChunkTask:
    """All that a task needs to copy one chunk. `keys`, by column, selects rows by key instead of by page."""

    source: Source
    journal: str
    system_identifier: int
    snapshot: str
    table: Table
    filenode: int
    chunk: int
    pages: PageRange
    keys: dict[str, list[str]] | None = None
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def path(self) -> str:
        """Relative to the journal. Each attempt has a name of its own: what a watermark refers to never changes."""
        return f"chunks/{self.snapshot}/{self.table.oid}-{self.chunk}-{self.attempt}.chunk"


def copy_chunk(task: ChunkTask) -> ChunkCopied:
    """Copy one chunk and write its watermark. May be repeated until the watermark is in the journal."""
    with connect(task.source) as connection, source_errors():
        connection.execute("set idle_in_transaction_session_timeout = 0")
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with WholeFile(Path(task.journal, task.path), task.system_identifier) as file:
            with connection.transaction():
                (visible,) = one(connection, "select pg_current_snapshot()::text")
                rows = _copy_rows(connection, task, file)
                # The copy has locked the table, so what is stored now is what was read.
                _require_same_storage(connection, task)
            file.commit()
        connection.isolation_level = None
        connection.read_only = None
        copied = ChunkCopied(
            snapshot=task.snapshot,
            table=str(task.table.name),
            oid=task.table.oid,
            chunk=task.chunk,
            path=task.path,
            rows=rows,
            bytes=file.size,
            visible=visible,
        )
        emit(connection, task.source.slot, dump_event(copied))
    return copied


def _require_same_storage(connection: Connection, task: ChunkTask) -> None:
    query = "select coalesce(pg_relation_filenode(%s::oid), 0)::int8"
    (filenode,) = one(connection, query, [task.table.oid])
    if filenode != task.filenode:
        raise TableRewritten(f"table {task.table.name} was rewritten or dropped while it was being copied")


def _copy_rows(connection: Connection, task: ChunkTask, file: WholeFile) -> int:
    file.append(BlockKind.SCHEMA, [table_description(task.table.to_json())])
    rows = 0
    pending: list[bytes | memoryview] = []
    size = 0
    first = True
    statement, parameters = _statement(task)
    with connection.cursor().copy(statement, parameters) as copy:
        for data in copy:
            row = memoryview(data)
            if first:
                row, first = row[_COPY_HEADER_BYTES:], False
            if not len(row) or row == _COPY_TRAILER:
                continue
            pending.append(row)
            size += len(row)
            if size >= _BLOCK_BYTES:
                file.append(BlockKind.ROWS, pending)
                rows, pending, size = rows + len(pending), [], 0
    if pending:
        file.append(BlockKind.ROWS, pending)
    return rows + len(pending)


def _statement(task: ChunkTask) -> tuple[sql.Composed, Sequence[object]]:
    columns = sql.SQL(", ").join(_selected(column, task.table) for column in task.table.columns)
    table = sql.Identifier(*task.table.name)
    where, parameters = _by_keys(task) if task.keys is not None else (_by_pages(task.pages), [])
    query = sql.SQL("copy (select {} from only {} t where {}) to stdout (format binary)")
    return query.format(columns, table, where), parameters


def _selected(column: Column, table: Table) -> sql.Composable:
    """The column; as text if its type has no binary form, which is how the stream sends it too."""
    name = sql.Identifier("t", column.name)
    info = table.types.get(column.type_oid)
    return name if info is None or info.binary else sql.SQL("{}::text").format(name)


def _by_pages(pages: PageRange) -> sql.Composable:
    first = sql.SQL("t.ctid >= {}::tid").format(sql.Literal(f"({pages.first},0)"))
    if pages.end is None:
        return first
    return sql.SQL("{} and t.ctid < {}::tid").format(first, sql.Literal(f"({pages.end},0)"))


def _by_keys(task: ChunkTask) -> tuple[sql.Composable, list[object]]:
    """Rows whose key is in the list, given as text and cast to the key's own types.

    A type's name is format_type()'s, which the catalog has quoted and qualified.
    """
    assert task.keys is not None
    types = {column.name: column for column in task.table.columns}
    names = list(task.keys)
    lists = sql.SQL(", ").join(sql.SQL("%s::text[]") for _ in names)
    fields = [sql.Identifier(f"k{index}") for index in range(len(names))]
    equal = sql.SQL(" and ").join(
        sql.SQL("{} = w.{}::{}").format(sql.Identifier("t", name), field, sql.SQL(types[name].type_name))
        for name, field in zip(names, fields, strict=True)
    )
    where = sql.SQL("exists (select from unnest({}) w ({}) where {})")
    return where.format(lists, sql.SQL(", ").join(fields), equal), [task.keys[name] for name in names]
