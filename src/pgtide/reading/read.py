"""Reading one table's changes, as planned: stream and snapshot merged in position order.

Runs anywhere: it needs the plan and the journal's files. Small blocks are decoded together, so that many small
transactions cost no more than one large one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgtide import frames as tag
from pgtide.columns import decode_columns, walk_copy_tuples
from pgtide.errors import JournalCorrupt, JournalGap
from pgtide.frames import Frames, TransactionColumns, transactions
from pgtide.journal import BlockKind, BlockRef
from pgtide.journal.files import read_blocks
from pgtide.lsn import LSN
from pgtide.reading.changes import READ, TRUNCATE, Array, Changes, concat, empty
from pgtide.reading.compact import net_rows
from pgtide.reading.fold import after_last_truncate, fold
from pgtide.reading.plan import ChunkRead, TableRange, read_chunk_table, transaction_before
from pgtide.reading.stream import decode_frames, in_order, row_hashes
from pgtide.schema import Table

# Enough for columnar decoding to be at its best, small enough to stay in the cache of a task's memory.
_DECODE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class _Piece:
    """Frames under one version of the table."""

    table: Table
    frames: Frames
    transactions: TransactionColumns


def read_changes(planned: TableRange) -> list[Changes]:
    """The range's changes in position order: one element for each run of rows under one table version.

    An empty table that was copied gives one run without rows: it is known now.
    """
    stream = list(_stream(planned.blocks, planned.oid, planned.table, planned.after, planned.upto))
    chunks = [_merge_chunk(chunk) for chunk in planned.chunks]
    marks = [chunk.placed.commit_lsn for chunk in planned.chunks]
    stream = [piece for part in stream for piece in _cut(part, marks)]
    parts = sorted((part for part in [*stream, *chunks] if len(part)), key=lambda part: int(part.commit_lsn[0]))
    runs = []
    for _, group in groupby(parts, key=lambda part: _shape(part.table)):
        run = list(group)
        runs.append(in_order(concat(run, run[-1].table)))
    return runs or chunks[:1]


def _cut(part: Changes, marks: Sequence[LSN]) -> list[Changes]:
    """Cut changes at watermarks, so that a chunk under another version of the table finds its place between them."""
    bounds = [0, *np.searchsorted(part.commit_lsn, np.array(sorted(marks), dtype=np.uint64)).tolist(), len(part)]
    if len(bounds) == 2:
        return [part]
    return [part.take(np.arange(start, end)) for start, end in pairwise(bounds) if start < end]


def _shape(table: Table) -> tuple[object, ...]:
    """What two versions must share for their rows to stand in one set of columns."""
    columns = tuple((column.name, column.type_oid, column.type_modifier) for column in table.columns)
    return columns, table.key


def _stream(blocks: Iterable[BlockRef], oid: int, table: Table | None, after: LSN, upto: LSN) -> Iterator[Changes]:
    """Changes of the table in these blocks with after < commit LSN <= upto."""
    waiting: list[_Piece] = []
    size = 0
    for piece in _pieces(blocks, oid, table):
        if waiting and (waiting[-1].table != piece.table or size > _DECODE_BYTES):
            yield _decode(waiting, after, upto)
            waiting, size = [], 0
        waiting.append(piece)
        size += len(piece.frames.buffer)
    if waiting:
        yield _decode(waiting, after, upto)


def _pieces(blocks: Iterable[BlockRef], oid: int, table: Table | None) -> Iterator[_Piece]:
    """Blocks, cut where the table's description changes."""
    for ref in blocks:
        block = ref.read()
        frames = Frames.of(block.frames, block.lengths)
        columns = transactions(frames, transaction_before(block))
        start = 0
        for index in frames.where(tag.TABLE_DESCRIPTION).tolist():
            described = Table.from_json(frames.payload(index)[1:])
            if described.oid == oid and described != table:
                if table is not None:
                    yield _Piece(table, *_part(frames, columns, start, index))
                table, start = described, index
        if table is None:
            raise JournalCorrupt(f"the journal does not describe table {oid} before its first change")
        yield _Piece(table, *_part(frames, columns, start, len(frames.tags)))


def _part(frames: Frames, columns: TransactionColumns, start: int, end: int) -> tuple[Frames, TransactionColumns]:
    if start == 0 and end == len(frames.tags):
        return frames, columns
    rows = slice(start, end)
    return (
        Frames(frames.buffer, frames.starts[rows], frames.ends[rows], frames.tags[rows]),
        TransactionColumns(
            columns.commit_lsn[rows], columns.xid[rows], columns.committed_at_us[rows], columns.ordinal[rows]
        ),
    )


def _decode(pieces: list[_Piece], after: LSN, upto: LSN) -> Changes:
    frames, columns = _joined(pieces)
    wanted = (columns.commit_lsn > np.uint64(after)) & (columns.commit_lsn <= np.uint64(upto))
    return decode_frames(frames, columns, pieces[0].table, wanted)


def _joined(pieces: list[_Piece]) -> tuple[Frames, TransactionColumns]:
    if len(pieces) == 1:
        return pieces[0].frames, pieces[0].transactions
    shifts = np.cumsum([0] + [len(piece.frames.buffer) for piece in pieces[:-1]])
    shifted = list(zip(pieces, shifts.tolist(), strict=True))
    frames = Frames(
        np.concatenate([piece.frames.buffer for piece in pieces]),
        np.concatenate([piece.frames.starts + shift for piece, shift in shifted]),
        np.concatenate([piece.frames.ends + shift for piece, shift in shifted]),
        np.concatenate([piece.frames.tags for piece in pieces]),
    )
    columns = TransactionColumns(
        np.concatenate([piece.transactions.commit_lsn for piece in pieces]),
        np.concatenate([piece.transactions.xid for piece in pieces]),
        np.concatenate([piece.transactions.committed_at_us for piece in pieces]),
        np.concatenate([piece.transactions.ordinal for piece in pieces]),
    )
    return frames, columns


def _merge_chunk(planned: ChunkRead) -> Changes:
    """A chunk's rows as they are true at its high watermark."""
    rows = read_chunk(planned.path)
    if len(rows) != planned.chunk.rows:
        raise JournalCorrupt(
            f"chunk {planned.path} is damaged", detail=f"it has {len(rows)} rows, {planned.chunk.rows} were written"
        )
    visibility = planned.chunk.visibility
    before = LSN(planned.placed.commit_lsn - 1)
    window = []
    for part in _stream(planned.window, planned.chunk.oid, planned.window_table or rows.table, LSN(0), before):
        unseen = np.flatnonzero(visibility.unseen(part.xid))
        if len(unseen):
            window.append(part.take(unseen))
    return _at(reduce_chunk(rows, window), planned)


def reduce_chunk(rows: Changes, window: list[Changes]) -> Changes:
    """What of a chunk is still news after the changes in its window that it could not see.

    The chunk's rows are put before those changes and the whole is folded: a row that nothing touched is emitted
    whole; of a touched one only the columns that still come from the chunk, under the key that the row has by then.
    """
    if rows.table.keyless:
        return _reduce_multiset(rows, window)
    if not window:
        return rows
    sequence = concat([rows, *(_aligned(part, rows.table) for part in window)], rows.table)
    truncated, sequence = after_last_truncate(sequence)
    if truncated:
        return empty(rows.table)
    folded = fold(sequence)
    count = len(rows)
    source = {name: folded.source.get(name, folded.last) for name in rows.columns}
    from_chunk = {name: (each >= 0) & (each < count) & folded.live for name, each in source.items()}
    untouched = (folded.last < count) & folded.live
    non_key = [mask for name, mask in from_chunk.items() if name not in rows.table.key]
    needed = untouched | (np.logical_or.reduce(non_key) if non_key else np.zeros(len(untouched), dtype=bool))
    codes = np.flatnonzero(needed)
    last = folded.last[codes]
    columns, unchanged = {}, {}
    for name, column in sequence.columns.items():
        if name in rows.table.key:
            columns[name] = column.take(pa.array(last))
            continue
        kept = from_chunk[name][codes]
        columns[name] = column.take(pa.array(np.where(kept, source[name][codes], 0), mask=~kept))
        if not kept.all():
            unchanged[name] = ~kept
    zeros = np.zeros(len(codes), dtype=np.int64)
    return replace(
        empty(rows.table),
        op=np.full(len(codes), READ, dtype=np.uint8),
        columns=columns,
        unchanged=unchanged,
        commit_lsn=zeros.astype(np.uint64),
        ordinal=zeros,
        xid=zeros,
        committed_at_us=zeros,
    )


def _reduce_multiset(rows: Changes, window: list[Changes]) -> Changes:
    """A table without a key is copied in one chunk, which replaces what was told of it before."""
    sequence = concat([rows, *window], rows.table)
    _, sequence = after_last_truncate(sequence)
    kept, _ = net_rows(sequence)
    count = len(kept) + 1
    zeros = np.zeros(count, dtype=np.int64)
    taken = sequence.take(kept)
    op = np.full(count, READ, dtype=np.uint8)
    op[0] = TRUNCATE

    def led_by_null(column: Array) -> Array:
        return pa.concat_arrays([pa.nulls(1, column.type), column])

    return replace(
        empty(rows.table),
        op=op,
        columns={name: led_by_null(column) for name, column in taken.columns.items()},
        row_hash=led_by_null(taken.row_hash),
        commit_lsn=zeros.astype(np.uint64),
        ordinal=zeros,
        xid=zeros,
        committed_at_us=zeros,
    )


def _aligned(part: Changes, table: Table) -> Changes:
    """Window changes under another version of the table than the chunk's cannot be told apart by column."""
    if _shape(part.table) != _shape(table):
        raise JournalGap(
            f"table {table.name} was altered while it was being copied",
            hint="remove the journal and the sink's tables and copy again",
        )
    return part


def _at(changes: Changes, planned: ChunkRead) -> Changes:
    """Place rows at the chunk's high watermark."""
    count = len(changes)
    placed = planned.placed
    return replace(
        changes,
        commit_lsn=np.full(count, placed.commit_lsn, dtype=np.uint64),
        ordinal=np.arange(1, count + 1),
        xid=np.full(count, placed.xid, dtype=np.int64),
        committed_at_us=np.full(count, placed.committed_at_us, dtype=np.int64),
    )


def read_chunk(path: str) -> Changes:
    """All rows of a chunk file, unplaced."""
    table = read_chunk_table(path)
    blocks = (block for block in read_blocks(path) if block.header.kind == BlockKind.ROWS)
    return concat([_copied_rows(block.frames, block.lengths, table) for block in blocks], table)


def _copied_rows(buffer: NDArray[np.uint8], lengths: NDArray[np.uint32], table: Table) -> Changes:
    ends = np.cumsum(lengths, dtype=np.int64)
    slices, _ = walk_copy_tuples(buffer, ends - lengths, ends, len(table.columns))
    count = len(lengths)
    zeros = np.zeros(count, dtype=np.int64)
    return replace(
        empty(table),
        op=np.full(count, READ, dtype=np.uint8),
        columns=decode_columns(buffer, slices, table),
        row_hash=row_hashes(buffer, slices) if table.keyless else None,
        commit_lsn=zeros.astype(np.uint64),
        ordinal=zeros,
        xid=zeros,
        committed_at_us=zeros,
    )
