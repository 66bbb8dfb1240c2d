"""A lake written by hand, and a pipeline that only says how far it has come: what verify needs, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import numpy as np
import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from psycopg import sql

from pgtide.columns import decode_columns, walk_copy_tuples
from pgtide.config import Config, Pipeline
from pgtide.journal import Consumers, JournalDirectory
from pgtide.lsn import LSN
from pgtide.postgres.catalog import read_tables
from pgtide.schema import Table, TableName
from pgtide.sinks.delta import DeltaSink

PIPELINE = "lake"
FAR = LSN(2**62)
"""Past everything that a test writes."""

COPY_HEADER_BYTES = 19
COPY_TRAILER = b"\xff\xff"


@dataclass(frozen=True)
class Lake:
    """A source, a lake directory and a journal that has nothing but the pipeline's position."""

    connection: psycopg.Connection
    config: Config

    @property
    def pipeline(self) -> Pipeline:
        return self.config.pipelines[0]

    @property
    def consumers(self) -> Consumers:
        return Consumers(JournalDirectory(self.config.journal.path))

    def execute(self, *statements: LiteralString) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def pass_everything(self) -> None:
        """Be a pipeline that has applied all there will ever be."""
        self.consumers.save(PIPELINE, FAR)

    def table(self, name: str) -> Table:
        return described(self.connection, name)

    def path(self, name: str) -> Path:
        return DeltaSink(self.pipeline.sink, PIPELINE).path(TableName.parse(name))

    def copy(self, name: str) -> None:
        """Write the table as it is now into the lake, as a new version."""
        self.write(name, copied(self.connection, self.table(name)))

    def write(self, name: str, rows: pa.Table) -> None:
        write_deltalake(str(self.path(name)), rows, mode="overwrite", schema_mode="overwrite")

    def append(self, name: str, rows: pa.Table) -> None:
        write_deltalake(str(self.path(name)), rows, mode="append")

    def merge(self, name: str, rows: pa.Table, key: str) -> None:
        """Put rows in by key, as the sink does: what a merge writes has other Arrow types than what an append does."""
        (
            DeltaTable(str(self.path(name)))
            .merge(rows, f"target.{key} = source.{key}", source_alias="source", target_alias="target")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def read(self, name: str) -> pa.Table:
        return DeltaTable(str(self.path(name))).to_pyarrow_table()


def lake_at(connection: psycopg.Connection, dsn: str, directory: Path, **pipeline: Any) -> Lake:
    sink = {"type": "delta", "path": str(directory / "lake")}
    document = {
        "source": {"dsn": dsn, "slot": "verified", "publication": "verified"},
        "journal": {"url": str(directory / "journal")},
        "pipelines": [{"name": PIPELINE, "sink": sink, **pipeline}],
    }
    return Lake(connection, Config.model_validate(document))


def described(connection: psycopg.Connection, name: str) -> Table:
    (found,) = read_tables(connection, [TableName.parse(name)])
    return found.table


def copied(connection: psycopg.Connection, table: Table) -> pa.Table:
    """All rows of the table, through pgtide's own decoder: as a pipeline would have written them."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
    statement = sql.SQL("copy (select {} from only {}) to stdout (format binary)")
    with connection.cursor().copy(statement.format(columns, sql.Identifier(*table.name))) as copy:
        pieces = [bytes(each) for each in copy]
    pieces[0] = pieces[0][COPY_HEADER_BYTES:]
    return decoded([piece for piece in pieces if piece not in (b"", COPY_TRAILER)], table)


def decoded(rows: Sequence[bytes], table: Table) -> pa.Table:
    lengths = np.array([len(row) for row in rows], np.int64)
    ends = np.cumsum(lengths)
    buffer = np.frombuffer(b"".join(rows), np.uint8)
    slices, _ = walk_copy_tuples(buffer, ends - lengths, ends, len(table.columns))
    return pa.table(decode_columns(buffer, slices, table))
