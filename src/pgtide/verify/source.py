"""The source's side: digests that the server itself computes, streamed through COPY.

Each read is one statement, and so one snapshot: what it shows was all true at the same time. Nothing is locked beyond
ACCESS SHARE. Two digests come for a row, however wide it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from psycopg import errors, sql

from pgtide.errors import VerifyError
from pgtide.postgres.catalog import one
from pgtide.postgres.connection import Connection
from pgtide.schema import Table, TableName
from pgtide.verify.canonical import SourceType
from pgtide.verify.compare import Keys
from pgtide.verify.digests import DIGEST_BYTES, Records, RowForm
from pgtide.verify.spool import Spool

# What COPY binary begins with: signature, flags, length of the header extension; and its end.
_COPY_HEADER_BYTES = 19
_COPY_TRAILER = b"\xff\xff"
# A row is a 16-bit number of columns and for each of them a 32-bit length and a digest.
_COUNT_BYTES = 2
_LENGTH_BYTES = 4

_BLOCK_ROWS = 100_000


# By key digest: the key's text, and the printed form of each of its columns.
Found = dict[bytes, tuple[str, list[str]]]


@dataclass(frozen=True)
class KnownKeys:
    """Keys by which rows can be looked up: their texts, and the printed forms of their columns."""

    texts: list[str]
    columns: list[list[str]]

    @classmethod
    def of(cls, found: Found) -> KnownKeys:
        return cls([text for text, _ in found.values()], [columns for _, columns in found.values()])


def prepare_session(connection: Connection) -> None:
    """Let long reads be long, and make sure that they see every row.

    Under row security a read would silently leave rows out that replication sends; switched off, it is refused.
    """
    connection.execute("set statement_timeout = 0")
    connection.execute("set row_security = off")


def describe_rows(connection: Connection, table: Table) -> RowForm:
    """How the rows of a table are written, by what the catalog says of its types."""
    utf8 = one(connection, "select current_setting('server_encoding')")[0] == "UTF8"
    return RowForm.of(table, read_source_types(connection, {column.type_oid for column in table.columns}), utf8=utf8)


def read_source_types(connection: Connection, oids: Iterable[int]) -> dict[int, SourceType]:
    """These types and all that they are made of."""
    types: dict[int, SourceType] = {}
    wanted = set(oids)
    while wanted:
        rows = connection.execute(
            "select t.oid::int8, t.typtype::text, t.typbasetype::int8, t.typelem::int8, n.nspname, p.proname"
            " from pg_type t left join pg_proc p on p.oid = t.typsend"
            " left join pg_namespace n on n.oid = p.pronamespace where t.oid = any (%s::oid[])",
            [sorted(wanted)],
        ).fetchall()
        for oid, kind, base, element, schema, name in rows:
            types[oid] = SourceType(oid, kind, base, element, (schema, name) if name else None)
        wanted = {part for each in types.values() for part in (each.base, each.element) if part} - set(types)
    return types


class SourceReader:
    """Reads one table of the source as records."""

    def __init__(self, connection: Connection, form: RowForm) -> None:
        self._connection = connection
        self._form = form
        self._table = sql.Identifier(*form.table.name)

    def read_all(self) -> Spool:
        """Every row."""
        return self._read(sql.SQL("from only {} t").format(self._table))

    def read_digests(self, keys: Keys) -> Spool:
        """The rows with these key digests, found by reading all of the table."""
        return self._read(self._with_digests(keys))

    def read_keys(self, known: KnownKeys) -> Spool:
        """The rows with these keys, through the key's index."""
        types = {column.name: column.type_name for column in self._form.table.columns}
        names = self._form.key
        fields = [sql.Identifier(f"k{index}") for index in range(len(names))]
        lists = [sql.Literal([key[index] for key in known.columns]) for index in range(len(names))]
        # A type's name is format_type()'s, which the catalog has quoted and qualified.
        equal = [
            sql.SQL("t.{} = w.{}::{}").format(sql.Identifier(name), each, sql.SQL(types[name]))
            for name, each in zip(names, fields, strict=True)
        ]
        return self._read(
            sql.SQL("from only {} t join unnest({}) w ({}) on {}").format(
                self._table,
                sql.SQL(", ").join(sql.SQL("{}::text[]").format(each) for each in lists),
                sql.SQL(", ").join(fields),
                sql.SQL(" and ").join(equal),
            )
        )

    def resolve(self, keys: Keys) -> Found:
        """For those of these key digests that the source has, the key's text and its columns as printed."""
        printed = sql.SQL(", ").join(sql.SQL("concat(t.{})").format(sql.Identifier(name)) for name in self._form.key)
        statement = sql.SQL("select {}, {}, {} {}").format(
            self._form.ask_key_digest(), self._form.ask_key(), printed, self._with_digests(keys)
        )
        with _while_verifying(self._form.table.name):
            rows = self._connection.execute(statement).fetchall()
        return {bytes(digest): (text, list(columns)) for digest, text, *columns in rows}

    def _with_digests(self, keys: Keys) -> sql.Composable:
        wanted = sql.Literal([key.tobytes() for key in keys])
        return sql.SQL("from only {} t where {} = any ({}::bytea[])").format(
            self._table, self._form.ask_key_digest(), wanted
        )

    def _read(self, origin: sql.Composable) -> Spool:
        statement = sql.SQL("copy (select {} {}) to stdout (format binary)").format(self._form.ask_record(), origin)
        spool = Spool()
        try:
            with _while_verifying(self._form.table.name):
                for records in self._copied(statement):
                    spool.append(records)
        except BaseException:
            spool.close()
            raise
        return spool

    def _copied(self, statement: sql.Composed) -> Iterator[Records]:
        digests = 2 if self._form.table.key else 1
        pending: list[bytes | bytearray | memoryview] = []
        begun = False
        with self._connection.cursor().copy(statement) as copy:
            for data in copy:
                pending.append(data if begun else memoryview(data)[_COPY_HEADER_BYTES:])
                begun = True
                if len(pending) >= _BLOCK_ROWS:
                    yield _records(b"".join(pending), digests)
                    pending = []
        yield _records(b"".join(pending).removesuffix(_COPY_TRAILER), digests)


def _records(rows: bytes, digests: int) -> Records:
    """Rows of COPY binary with one or two digests each, all of the same length: every so many bytes begins one."""
    cell = _LENGTH_BYTES + DIGEST_BYTES
    table = np.frombuffer(rows, np.uint8).reshape(-1, _COUNT_BYTES + digests * cell)
    starts = [_COUNT_BYTES + index * cell + _LENGTH_BYTES for index in range(digests)]
    parts = [table[:, start : start + DIGEST_BYTES] for start in starts]
    return np.concatenate((parts[0], parts[-1]), axis=1)


@contextmanager
def _while_verifying(table: TableName) -> Iterator[None]:
    """Name the one refusal that is nobody's fault: the table is no longer what it was a moment ago."""
    try:
        yield
    except (errors.UndefinedTable, errors.UndefinedColumn) as error:
        raise VerifyError(
            f"table {table} was altered or dropped while it was being verified", hint="verify again"
        ) from error
