"""Changes of one table as columns: what reading gives and compaction takes.

Rows stand in position order. A column's array holds the new value of each row; for a delete, what the old row told
(at least the key). `unchanged` says, for the columns where it happens at all, in which rows a value was not sent
because it lies unchanged in TOAST: there the array is null, but null is not what it means.

Rows of a table without a key are only inserts and deletes of whole rows; an update is one of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from pgtide.columns import arrow_schema
from pgtide.schema import Table

CREATE, UPDATE, DELETE, READ, TRUNCATE = (ord(op) for op in "cudrt")

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
# Arrow arrays, and the functions on them: their stubs are generic in ways that say nothing here.
Array = Any
compute: Any = pyarrow.compute


@dataclass(frozen=True)
class Changes:
    """Changes of one version of a table. All arrays have one entry a row."""

    table: Table
    op: NDArray[np.uint8]
    columns: Mapping[str, Array]
    commit_lsn: NDArray[np.uint64]
    ordinal: Rows
    xid: Rows
    committed_at_us: Rows
    unchanged: Mapping[str, Mask] = field(default_factory=dict)
    key_changed: Mask | None = None
    old_key: Mapping[str, Array] = field(default_factory=dict)
    row_hash: Array | None = None

    def __len__(self) -> int:
        return len(self.op)

    def take(self, rows: Rows) -> Changes:
        """These rows, in this order."""
        indices = pa.array(rows)
        return replace(
            self,
            op=self.op[rows],
            columns={name: column.take(indices) for name, column in self.columns.items()},
            commit_lsn=self.commit_lsn[rows],
            ordinal=self.ordinal[rows],
            xid=self.xid[rows],
            committed_at_us=self.committed_at_us[rows],
            unchanged={name: mask[rows] for name, mask in self.unchanged.items()},
            key_changed=None if self.key_changed is None else self.key_changed[rows],
            old_key={name: column.take(indices) for name, column in self.old_key.items()},
            row_hash=None if self.row_hash is None else self.row_hash.take(indices),
        )


def concat(parts: Sequence[Changes], table: Table) -> Changes:
    """Put parts of one table version one after the other."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return empty(table)
    if len(parts) == 1:
        return parts[0]
    unchanged = {name for part in parts for name in part.unchanged}
    any_key_change = any(part.key_changed is not None for part in parts)
    return Changes(
        table=table,
        op=np.concatenate([part.op for part in parts]),
        columns={name: _join([part.columns[name] for part in parts]) for name in parts[0].columns},
        commit_lsn=np.concatenate([part.commit_lsn for part in parts]),
        ordinal=np.concatenate([part.ordinal for part in parts]),
        xid=np.concatenate([part.xid for part in parts]),
        committed_at_us=np.concatenate([part.committed_at_us for part in parts]),
        unchanged={name: np.concatenate([_mask(part, name) for part in parts]) for name in unchanged},
        key_changed=np.concatenate([_key_changed(part) for part in parts]) if any_key_change else None,
        old_key={name: _join([_old_key(part, name) for part in parts]) for name in table.key} if any_key_change else {},
        row_hash=None if parts[0].row_hash is None else _join([part.row_hash for part in parts]),
    )


def empty(table: Table) -> Changes:
    schema = arrow_schema(table)
    none = np.zeros(0, dtype=np.int64)
    return Changes(
        table=table,
        op=np.zeros(0, dtype=np.uint8),
        columns={column.name: pa.nulls(0, column.type) for column in schema},
        commit_lsn=none.astype(np.uint64),
        ordinal=none,
        xid=none,
        committed_at_us=none,
        row_hash=pa.nulls(0, pa.binary()) if table.keyless else None,
    )


def key_codes(column: Array) -> Rows:
    """Small integers that are the same exactly where the values are; null is a value, and NaN is itself."""
    if pa.types.is_nested(column.type):
        # Arrow has no hash of a list. Arrays are rare in keys, and short.
        column = pa.array([None if each is None else repr(each) for each in column.to_pylist()], pa.string())
    encoded = compute.dictionary_encode(column, null_encoding="encode")
    codes: Rows = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _join(arrays: Sequence[Array]) -> Array:
    return pa.concat_arrays(list(arrays))


def _mask(part: Changes, name: str) -> Mask:
    return part.unchanged.get(name, np.zeros(len(part), dtype=bool))


def _key_changed(part: Changes) -> Mask:
    return np.zeros(len(part), dtype=bool) if part.key_changed is None else part.key_changed


def _old_key(part: Changes, name: str) -> Array:
    return part.old_key[name] if part.old_key else pa.nulls(len(part), part.columns[name].type)
