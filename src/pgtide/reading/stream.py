"""From the journal's stream frames to changes of one table.

All frames of a table in a buffer are decoded together: first the tuples are walked, then each column is turned
into Arrow once. Nothing here decides what a change means for another; that is `fold`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgtide import frames as tag
from pgtide.columns import NULL, UNCHANGED, ColumnSlices, decode_columns, walk_stream_tuples
from pgtide.errors import ProtocolError
from pgtide.frames import ENVELOPE_SIZE, Frames, TransactionColumns
from pgtide.pgoutput import Truncate, parse_message
from pgtide.reading.changes import (
    CREATE,
    DELETE,
    TRUNCATE,
    UPDATE,
    Array,
    Changes,
    Mask,
    Rows,
    compute,
    concat,
    empty,
    key_codes,
)
from pgtide.schema import Table

_OP = np.zeros(256, dtype=np.uint8)
_OP[[tag.INSERT, tag.UPDATE, tag.DELETE, tag.TRUNCATE]] = [CREATE, UPDATE, DELETE, TRUNCATE]
_TUPLE = 1 + 4  # after the tag: the table's OID, then a byte that says which tuple follows
_NEW, _OLD_KEY, _OLD_ROW = (ord(kind) for kind in "NKO")


def decode_frames(frames: Frames, transactions: TransactionColumns, table: Table, wanted: Mask) -> Changes:
    """Changes of `table` among the frames where `wanted` is true, in order."""
    rows = _frames_of(frames, table.oid, wanted)
    truncates = _truncates_of(frames, table.oid, wanted)
    changes = _decode_rows(frames, rows, table) if len(rows) else empty(table)
    which = np.repeat(rows, 1 + (frames.tags[rows] == tag.UPDATE)) if table.keyless else rows
    changes = _placed(changes, transactions, which)
    return _with_truncates(changes, transactions, truncates)


def _frames_of(frames: Frames, oid: int, wanted: Mask) -> Rows:
    candidates = frames.changes()
    candidates = candidates[wanted[candidates]]
    rows: Rows = candidates[frames.field(candidates, 0, ">u4") == oid]
    return rows


def _truncates_of(frames: Frames, oid: int, wanted: Mask) -> Rows:
    found = [
        index for index in frames.where(tag.TRUNCATE).tolist() if wanted[index] and oid in _truncated(frames, index)
    ]
    return np.array(found, dtype=np.int64)


def _truncated(frames: Frames, index: int) -> tuple[int, ...]:
    message = parse_message(frames.payload(index))
    assert isinstance(message, Truncate)
    return message.relation_oids


def _decode_rows(frames: Frames, rows: Rows, table: Table) -> Changes:
    tags = frames.tags[rows]
    starts = frames.starts[rows] + ENVELOPE_SIZE + _TUPLE
    ends = frames.ends[rows]
    kinds = frames.buffer[np.minimum(starts, len(frames.buffer) - 1)]
    _require_kinds(tags, kinds)
    starts = starts + 1
    has_old = np.flatnonzero((tags == tag.UPDATE) & (kinds != _NEW))
    if table.keyless:
        return _decode_keyless(frames, table, tags, starts, ends)
    old, after = walk_stream_tuples(frames.buffer, starts[has_old], ends[has_old], len(table.columns))
    if len(has_old) and bool((frames.buffer[np.minimum(after, len(frames.buffer) - 1)] != _NEW).any()):
        raise ProtocolError("an update has no new row after the old one")
    starts[has_old] = after + 1
    new, _ = walk_stream_tuples(frames.buffer, starts, ends, len(table.columns))
    _fill_unchanged(table, new, old, has_old, kinds[has_old] == _OLD_ROW)
    columns = decode_columns(frames.buffer, new, table)
    key_changed, old_key = _old_keys(frames, table, columns, old, has_old, len(rows))
    changes = replace(empty(table), op=_OP[tags], columns=columns, unchanged=_unchanged(new, table, tags))
    return replace(changes, key_changed=key_changed, old_key=old_key)


def _require_kinds(tags: NDArray[np.uint8], kinds: NDArray[np.uint8]) -> None:
    new = kinds == _NEW
    old = (kinds == _OLD_KEY) | (kinds == _OLD_ROW)
    fits = np.where(tags == tag.INSERT, new, np.where(tags == tag.DELETE, old, new | old))
    if not fits.all():
        raise ProtocolError("a change carries a tuple of the wrong kind")


def _fill_unchanged(
    table: Table, new: Sequence[ColumnSlices], old: Sequence[ColumnSlices], has_old: Rows, whole: Mask
) -> None:
    """Take values that were not sent from the old row: all of them if it is a whole row, else those of the key.

    A key can lie in TOAST too; then Postgres sends the old key even though it is still the key.
    """
    for column, new_column, old_column in zip(table.columns, new, old, strict=True):
        missing = (whole | column.key) & (new_column.state[has_old] == UNCHANGED)
        rows = has_old[missing]
        new_column.state[rows] = old_column.state[missing]
        new_column.start[rows] = old_column.start[missing]
        new_column.length[rows] = old_column.length[missing]


def _unchanged(slices: Sequence[ColumnSlices], table: Table, tags: NDArray[np.uint8]) -> dict[str, Mask]:
    masks = {}
    for column, slice_ in zip(table.columns, slices, strict=True):
        mask = (slice_.state == UNCHANGED) & (tags == tag.UPDATE)
        if mask.any():
            masks[column.name] = mask
    return masks


def _old_keys(
    frames: Frames,
    table: Table,
    columns: dict[str, Array],
    old: Sequence[ColumnSlices],
    has_old: Rows,
    count: int,
) -> tuple[Mask | None, dict[str, Array]]:
    """Which updates changed the key, and the keys they had before."""
    if not len(has_old):
        return None, {}
    decoded = decode_columns(frames.buffer, old, table, only=table.key)
    differs = np.zeros(len(has_old), dtype=bool)
    for name in table.key:
        differs |= ~_same(decoded[name], columns[name].take(pa.array(has_old)))
    if not differs.any():
        return None, {}
    key_changed = np.zeros(count, dtype=bool)
    key_changed[has_old[differs]] = True
    places = np.full(count, -1, dtype=np.int64)
    places[has_old[differs]] = np.flatnonzero(differs)
    indices: Array = pa.array(places, mask=places < 0)
    return key_changed, {name: decoded[name].take(indices) for name in table.key}


def _same(left: Array, right: Array) -> Mask:
    if pa.types.is_floating(left.type) or pa.types.is_nested(left.type):
        # A key of NaN is equal to itself; and lists cannot be compared.
        codes = key_codes(pa.concat_arrays([left, right]))
        same: Mask = codes[: len(left)] == codes[len(left) :]
        return same
    equal: Array = compute.fill_null(compute.equal(left, right), False)
    mask: Mask = equal.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def _decode_keyless(frames: Frames, table: Table, tags: NDArray[np.uint8], starts: Rows, ends: Rows) -> Changes:
    """Whole rows in and out: an update gives the old row as a delete, then the new one as an insert."""
    updates = np.flatnonzero(tags == tag.UPDATE)
    _, after = walk_stream_tuples(frames.buffer, starts[updates], ends[updates], len(table.columns))
    which = np.repeat(np.arange(len(tags)), 1 + (tags == tag.UPDATE))
    second = np.flatnonzero(np.diff(which, prepend=-1) == 0)
    row_starts = starts[which]
    row_starts[second] = after + 1
    slices, _ = walk_stream_tuples(frames.buffer, row_starts, ends[which], len(table.columns))
    for column in slices:
        missing = second[column.state[second] == UNCHANGED]
        for values in (column.state, column.start, column.length):
            values[missing] = values[missing - 1]
    op = np.where(tags[which] == tag.INSERT, CREATE, DELETE).astype(np.uint8)
    op[second] = CREATE
    columns = decode_columns(frames.buffer, slices, table)
    hashes = row_hashes(frames.buffer, slices)
    return replace(empty(table), op=op, columns=columns, row_hash=hashes)


def row_hashes(buffer: NDArray[np.uint8], slices: Sequence[ColumnSlices]) -> Array:
    """A digest of each whole row, from the bytes as sent: the same for a streamed row and a copied one."""
    data = buffer.tobytes()
    digests = [hashlib.md5(usedforsecurity=False) for _ in range(len(slices[0].start))] if slices else []
    for column in slices:
        lengths = np.where(column.state == NULL, -1, column.length).tolist()
        for digest, start, length in zip(digests, column.start.tolist(), lengths, strict=True):
            digest.update(length.to_bytes(5, "big", signed=True))
            if length > 0:
                digest.update(data[start : start + length])
    return pa.array([digest.digest() for digest in digests], pa.binary())


def _placed(changes: Changes, transactions: TransactionColumns, frames: Rows) -> Changes:
    return replace(
        changes,
        commit_lsn=transactions.commit_lsn[frames],
        ordinal=transactions.ordinal[frames],
        xid=transactions.xid[frames],
        committed_at_us=transactions.committed_at_us[frames],
    )


def _with_truncates(changes: Changes, transactions: TransactionColumns, truncates: Rows) -> Changes:
    """Put a row of nulls where the table was truncated."""
    if not len(truncates):
        return changes
    count = len(truncates)
    marks = replace(
        empty(changes.table),
        op=np.full(count, TRUNCATE, dtype=np.uint8),
        columns={name: pa.nulls(count, column.type) for name, column in changes.columns.items()},
        row_hash=pa.nulls(count, pa.binary()) if changes.table.keyless else None,
    )
    return in_order(concat([changes, _placed(marks, transactions, truncates)], changes.table))


def in_order(changes: Changes) -> Changes:
    """Sort by position; rows of one position keep their order."""
    order = np.lexsort((np.arange(len(changes)), changes.ordinal, changes.commit_lsn))
    return changes if bool((np.diff(order) == 1).all()) else changes.take(order)
