"""Rows as digests: one for the key, one for the whole row, from the same text on both sides.

A record is 32 bytes: the MD5 digest of the key's text, then that of the row's. For a table without a key both are the
row's, and equal rows are equal records: then a record and how often it occurs is all there is to compare. Digests make
a table's size in memory independent of its rows' size, and can be shown where a value must not be.

The key's text is the key's columns as printed, with commas between them: where the key is a number or a uuid,
`md5(id::text)` in SQL is the digest that is shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from psycopg import sql

from pgtide.columns import arrow_schema
from pgtide.errors import SinkError
from pgtide.schema import Table
from pgtide.verify.canonical import (
    TEXT,
    Array,
    Form,
    Types,
    UnexpectedType,
    ask_field,
    form_for,
    join_fields,
    render_field,
    text_memory,
)

DIGEST_BYTES = 16
RECORD_BYTES = 2 * DIGEST_BYTES

# One record a row, as bytes.
Records = NDArray[np.uint8]


def no_records() -> Records:
    return np.zeros((0, RECORD_BYTES), np.uint8)


@dataclass(frozen=True)
class RowForm:
    """How the rows of one table are written and digested, on either side."""

    table: Table
    forms: dict[str, Form]
    utf8: bool

    @classmethod
    def of(cls, table: Table, types: Types, *, utf8: bool) -> RowForm:
        schema = arrow_schema(table)
        arrow_types = dict(zip(schema.names, schema.types, strict=True))
        forms = {column.name: form_for(arrow_types[column.name], column.type_oid, types) for column in table.columns}
        return cls(table, forms, utf8)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that a row is known by: all of them if the table has no key."""
        return self.table.key or tuple(self.forms)

    @property
    def findable(self) -> bool:
        """The server can look rows up by the texts of their keys."""
        return bool(self.table.key) and all(self.forms[name].printed for name in self.table.key)

    def ask_key(self) -> sql.Composable:
        """SQL for the text of a row's key; the table's alias is t."""
        return self._ask(self.key)

    def ask_key_digest(self) -> sql.Composable:
        return self._ask_digest(self.ask_key())

    def ask_record(self) -> sql.Composable:
        """SQL for the columns of which a record is made: one for a table without a key, else two."""
        row = self._ask_digest(self._ask(tuple(self.forms)))
        return sql.SQL("{}, {}").format(self.ask_key_digest(), row) if self.table.key else row

    def key_texts(self, batch: pa.RecordBatch) -> Array:
        """The texts of the keys of a batch that was read from the sink."""
        return self._texts(batch, self.key)

    def records(self, batch: pa.RecordBatch) -> Records:
        """A batch that was read from the sink, as records."""
        rows = digests(self._texts(batch, tuple(self.forms)))
        keys = digests(self.key_texts(batch)) if self.table.key else rows
        return np.concatenate((keys, rows), axis=1)

    def _ask(self, names: tuple[str, ...]) -> sql.Composable:
        if not names:
            return sql.SQL("''")
        fields = [ask_field(self.forms[name], sql.Identifier("t", name), utf8=self.utf8) for name in names]
        return _concatenated(fields)

    def _ask_digest(self, text: sql.Composable) -> sql.Composable:
        text = text if self.utf8 else sql.SQL("convert_to({}, 'UTF8')").format(text)
        return sql.SQL("decode(md5({}), 'hex')").format(text)

    def _texts(self, batch: pa.RecordBatch, names: tuple[str, ...]) -> Array:
        if not names:
            return pa.array([""] * batch.num_rows, TEXT)
        return join_fields([self._field(batch, name) for name in names])

    def _field(self, batch: pa.RecordBatch, name: str) -> Array:
        """A column's fields. One that the sink does not have yet is null in every row, as its readers will find."""
        if name not in batch.schema.names:
            return pa.array(["N"] * batch.num_rows, TEXT)
        column: Any = batch.column(name)
        try:
            return render_field(self.forms[name], column)
        except UnexpectedType as error:
            raise SinkError(
                f"column {name} of {self.table.name} has a type in the sink that its type in the source never becomes",
                detail=f"it is {error}",
                hint="was the column's type altered, or the sink's table written by something else? copy it again",
            ) from None


# A function of Postgres takes at most 100 arguments.
_ARGUMENTS = 90


def _concatenated(fields: Sequence[sql.Composable]) -> sql.Composable:
    comma = sql.SQL(", ")
    groups = [fields[start : start + _ARGUMENTS] for start in range(0, len(fields), _ARGUMENTS)]
    joined = [sql.SQL("concat_ws(',', {})").format(comma.join(group)) for group in groups]
    return joined[0] if len(joined) == 1 else _concatenated(joined)


def digests(texts: Array) -> NDArray[np.uint8]:
    """The MD5 digest of each text, one a row."""
    data, offsets = text_memory(texts)
    view = data.data
    md5 = hashlib.md5
    each = [md5(view[a:b], usedforsecurity=False).digest() for a, b in pairwise(offsets.tolist())]
    return np.frombuffer(b"".join(each), np.uint8).reshape(-1, DIGEST_BYTES)
