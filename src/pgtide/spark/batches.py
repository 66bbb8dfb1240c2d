"""Batches as they travel from Spark's tasks to the driver: folded changes of many tables, one row each.

A task reads and folds whole tables, so nothing has to be shuffled, and one Spark job serves all tables of a batch. A
folded table is an Arrow stream in a binary column: it is not looked at again before the sink has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.lsn import LSN
from pgtide.reading.changes import Array
from pgtide.reading.compact import Compacted, Upserts, compact
from pgtide.reading.plan import TableRange
from pgtide.reading.read import read_changes
from pgtide.schema import Table, TableName, selected_by

_COMPACTED: dict[str, Any] = {
    "table": pa.string(),
    "step": pa.int32(),
    "after": pa.string(),
    "upto": pa.string(),
    "header": pa.string(),
    "upserts": pa.binary(),
    "deleted": pa.binary(),
}
COMPACTED_SCHEMA = pa.schema(_COMPACTED)

_MOVED = "_moved_from_"
_IS_MOVED = "_moved"
_UNCHANGED = "_unchanged_"


@dataclass(frozen=True)
class Selection:
    """The tables of a pipeline, in a form that a source option can carry."""

    globs: tuple[str, ...]

    def dump(self) -> str:
        return json.dumps(self.globs)

    @classmethod
    def load(cls, text: str) -> Selection:
        return cls(tuple(json.loads(text)))

    def selects(self, name: TableName) -> bool:
        return selected_by(self.globs, name)


def split_tasks(ranges: Sequence[TableRange], small_bytes: int = 4 * 1024 * 1024) -> list[list[TableRange]]:
    """Tables into tasks: small ones together, a large one alone."""
    tasks: list[list[TableRange]] = []
    size = small_bytes
    for planned in sorted(ranges, key=lambda each: each.size_bytes):
        if size + planned.size_bytes > small_bytes:
            tasks.append([])
            size = 0
        tasks[-1].append(planned)
        size += planned.size_bytes
    return tasks


def compacted_batches(ranges: Sequence[TableRange], after: LSN, upto: LSN) -> Iterator[pa.RecordBatch]:
    """Read and fold tables; one row for each version of each table that changed.

    The first row has only the positions: the pipeline comes that far even if no table has changed.
    """
    yield pa.RecordBatch.from_pylist([{"after": str(after), "upto": str(upto)}], schema=COMPACTED_SCHEMA)
    for planned in ranges:
        for step, changes in enumerate(read_changes(planned)):
            yield _row(compact(changes), step)


def _row(compacted: Compacted, step: int) -> pa.RecordBatch:
    header = {
        "table": compacted.table.to_json(),
        "truncated": compacted.truncated,
        "changes": compacted.changes,
        "newest_commit_at_us": compacted.newest_commit_at_us,
    }
    row = {
        "table": str(compacted.table.name),
        "step": step,
        "header": json.dumps(header),
        "upserts": _to_ipc(_upsert_columns(compacted.upserts)),
        "deleted": _to_ipc(compacted.deleted),
    }
    return pa.RecordBatch.from_pylist([row], schema=COMPACTED_SCHEMA)


def load_compacted(header: str, upserts: bytes, deleted: bytes) -> Compacted:
    """The mirror of what a task sent."""
    document = json.loads(header)
    return Compacted(
        table=Table.from_json(document["table"]),
        truncated=document["truncated"],
        upserts=_load_upserts(upserts),
        deleted=_from_ipc(deleted),
        changes=document["changes"],
        newest_commit_at_us=document["newest_commit_at_us"],
    )


def _upsert_columns(upserts: Upserts) -> dict[str, Array]:
    columns = {f"={name}": column for name, column in upserts.columns.items()}
    columns |= {f"{_UNCHANGED}{name}": pa.array(mask) for name, mask in upserts.unchanged.items()}
    columns[_IS_MOVED] = pa.array(upserts.moved)
    return columns | {f"{_MOVED}{name}": column for name, column in upserts.moved_from.items()}


def _load_upserts(data: bytes) -> Upserts:
    columns = _from_ipc(data)
    return Upserts(
        columns={name[1:]: column for name, column in columns.items() if name.startswith("=")},
        unchanged={n.removeprefix(_UNCHANGED): _mask(c) for n, c in columns.items() if n.startswith(_UNCHANGED)},
        moved=_mask(columns[_IS_MOVED]),
        moved_from={n.removeprefix(_MOVED): c for n, c in columns.items() if n.startswith(_MOVED)},
    )


def _mask(column: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def _to_ipc(columns: dict[str, Array]) -> bytes:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _from_ipc(data: bytes) -> dict[str, Array]:
    table = pa.ipc.open_stream(data).read_all()
    return {name: table.column(name).combine_chunks() for name in table.column_names}
