"""Compaction: one row for each key and batch, its last state.

The result is what a sink applies: upserts and deletes, in no particular order, at most one for each key, preceded by a
truncate if the batch has one. A column that no change of the batch has set is `unchanged`; its value is the one that
the sink has under the row's key, or under `_from` if the row had another key before the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgtide.reading.changes import CREATE, READ, Array, Changes, Mask, Rows, compute
from pgtide.reading.fold import Folded, after_last_truncate, fold
from pgtide.schema import Table


@dataclass(frozen=True)
class Upserts:
    """Rows that live. `unchanged` has a mask for each column that some row leaves as it is; `moved_from` has, for the
    rows where `moved` is true, the key under which the sink knows the row."""

    columns: dict[str, Array]
    unchanged: dict[str, Mask]
    moved: Mask
    moved_from: dict[str, Array]


@dataclass(frozen=True)
class Compacted:
    """What a batch does to one table. A table without a key has `inserts` and `removals` of whole rows instead."""

    table: Table
    truncated: bool
    upserts: Upserts
    deleted: dict[str, Array]
    changes: int
    newest_commit_at_us: int

    @property
    def empty(self) -> bool:
        return not (self.truncated or self.upsert_count or self.delete_count)

    @property
    def upsert_count(self) -> int:
        return len(self.upserts.moved)

    @property
    def delete_count(self) -> int:
        return len(next(iter(self.deleted.values()))) if self.deleted else 0


ROW_HASH = "_pgtide_row_hash"


def compact(changes: Changes) -> Compacted:
    """Fold a batch of changes of one table."""
    newest = int(changes.committed_at_us.max()) if len(changes) else 0
    truncated, rest = after_last_truncate(changes)
    if changes.table.keyless:
        upserts, deleted = _net(rest)
    else:
        folded = fold(rest)
        upserts, deleted = _upserts(rest, folded), _deleted(rest, folded)
    return Compacted(changes.table, truncated, upserts, deleted, len(changes), newest)


def _upserts(changes: Changes, folded: Folded) -> Upserts:
    live = np.flatnonzero(folded.live)
    last = folded.last[live]
    columns, unchanged = {}, {}
    for name, column in changes.columns.items():
        rows = folded.source[name][live] if name in folded.source else last
        columns[name] = column.take(_indices(rows))
        if bool((rows < 0).any()):
            unchanged[name] = rows < 0
    moved = folded.origin[live] != live
    if unchanged:
        moved &= np.logical_or.reduce(list(unchanged.values()))
    else:
        moved = np.zeros(len(live), dtype=bool)
    examples = np.where(moved, folded.keys.example[folded.origin[live]], -1)
    return Upserts(columns, unchanged, moved, _keys(changes, examples) if moved.any() else {})


def _deleted(changes: Changes, folded: Folded) -> dict[str, Array]:
    gone = np.flatnonzero(~folded.live)
    return _keys(changes, folded.keys.example[gone])


def _keys(changes: Changes, examples: Rows) -> dict[str, Array]:
    """Key columns of rows by example: an own key below the row count, an old one above it, null for -1."""
    keys = {}
    for name in changes.table.key:
        column = changes.columns[name]
        if changes.key_changed is not None:
            column = pa.concat_arrays([column, changes.old_key[name]])
        keys[name] = column.take(_indices(examples))
    return keys


def _net(changes: Changes) -> tuple[Upserts, dict[str, Array]]:
    inserted, removed = net_rows(changes)
    hashes = changes.row_hash
    assert hashes is not None
    columns = {name: column.take(_indices(inserted)) for name, column in changes.columns.items()}
    columns[ROW_HASH] = hashes.take(_indices(inserted))
    upserts = Upserts(columns, {}, np.zeros(len(inserted), dtype=bool), {})
    return upserts, {ROW_HASH: hashes.take(_indices(removed))}


def net_rows(changes: Changes) -> tuple[Rows, Rows]:
    """For a multiset: rows to insert and rows to remove, each as often as it came in more often than it went out."""
    rows = len(changes)
    encoded = compute.dictionary_encode(changes.row_hash)
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    count = len(encoded.dictionary)
    net = np.zeros(count, dtype=np.int64)
    np.add.at(net, codes, np.where((changes.op == CREATE) | (changes.op == READ), 1, -1))
    example = np.full(count, -1, dtype=np.int64)
    example[codes[::-1]] = np.arange(rows)[::-1]
    return np.repeat(example, np.maximum(net, 0)), np.repeat(example, np.maximum(-net, 0))


def _indices(rows: Rows) -> Array:
    return pa.array(rows, mask=rows < 0)
