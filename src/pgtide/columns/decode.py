"""Slices of wire tuples to Arrow columns.

A column is null in every row that holds no value, be it NULL or unchanged: the slices' state tells the
two apart, and whoever goes on with the column must keep it. Every field is nullable whatever the
table says, because a delete has only the key and an update may leave columns out.

Invariant: a decoded column has the type that `arrow_schema` gives it and as many rows as its slices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgtide.columns.gather import Bytes
from pgtide.columns.kernel import Kernel
from pgtide.columns.kernels import kernel_for
from pgtide.columns.tuples import BINARY, TEXT, ColumnSlices
from pgtide.errors import ProtocolError, UnsupportedValue
from pgtide.schema import Table


def arrow_schema(table: Table) -> pa.Schema:
    """The Arrow schema of the table's columns, in their order."""
    return pa.schema([pa.field(column.name, kernel_for(column, table.types).arrow_type) for column in table.columns])


def decode_columns(
    buffer: Bytes, slices: Sequence[ColumnSlices], table: Table, only: Collection[str] | None = None
) -> dict[str, pa.Array[Any]]:
    """The table's columns, or only those named, in the table's order.

    There must be slices for each column of the table. Raises ProtocolError and UnsupportedValue, which
    name the column.
    """
    columns: dict[str, pa.Array[Any]] = {}
    for column, each in zip(table.columns, slices, strict=True):
        if only is not None and column.name not in only:
            continue
        try:
            columns[column.name] = decode_column(buffer, each, kernel_for(column, table.types))
        except (ProtocolError, UnsupportedValue) as error:
            place = f"column {column.name} of {table.name}"
            detail = f"{place}: {error.detail}" if error.detail else place
            raise type(error)(error.message, detail=detail, hint=error.hint) from error
    return columns


def decode_column(buffer: Bytes, slices: ColumnSlices, kernel: Kernel) -> pa.Array[Any]:
    """One column: a value where the slices hold one, else null."""
    state, start, length = slices.state, slices.start, slices.length
    binary = state == BINARY
    if binary.all():
        return kernel.decode(buffer, start, length, None)
    text = state == TEXT
    if not text.any():
        return kernel.decode(buffer, start, length, binary) if binary.any() else _nulls(kernel, state.size)
    as_text = kernel.decode_text(buffer, start, np.where(text, length, 0), None if text.all() else text)
    if not binary.any():
        return as_text
    # Both forms in one block: the source changed its mind about the type in between.
    as_binary = kernel.decode(buffer, start, np.where(binary, length, 0), binary)
    merged: pa.Array[Any] = pc.coalesce(as_binary, as_text)
    return merged


def _nulls(kernel: Kernel, rows: int) -> pa.Array[Any]:
    nulls: pa.Array[Any] = pa.nulls(rows, kernel.arrow_type)  # type: ignore[call-overload]  # of any type
    return nulls
