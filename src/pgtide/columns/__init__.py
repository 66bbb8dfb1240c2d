"""From wire tuples to Arrow columns, a whole block at a time.

The path has three steps. `tuples` finds where each column of each row starts, one numpy pass per
column over all rows. `kernels` says, from a column's type, which Arrow type it becomes and which
kernel reads it. `decode` puts the two together.

Streamed rows (pgoutput) and snapshot rows (COPY binary) differ only in how a tuple is walked; behind
the walk there is one decoder. So a streamed row and a snapshot row of the same table can differ
neither in type nor in value. The package does no I/O and knows nothing of the journal or of Spark.
"""

from __future__ import annotations

from pgtide.columns.decode import arrow_schema, decode_column, decode_columns
from pgtide.columns.kernels import Kernel, kernel_for
from pgtide.columns.tuples import (
    BINARY,
    NULL,
    TEXT,
    UNCHANGED,
    ColumnSlices,
    walk_copy_tuples,
    walk_stream_tuples,
)

__all__ = [
    "BINARY",
    "NULL",
    "TEXT",
    "UNCHANGED",
    "ColumnSlices",
    "Kernel",
    "arrow_schema",
    "decode_column",
    "decode_columns",
    "kernel_for",
    "walk_copy_tuples",
    "walk_stream_tuples",
]
