"""From frames to blocks.

Frames come in commit order, transaction after transaction. A block holds whole transactions, or one piece of a
transaction that is larger than a block: so the journal can always be cut between transactions. No column is
decoded here; what a block header says is read off the frames with numpy.

Logical messages that are not transactional belong to no transaction: they come when they are decoded, perhaps again
after a restart, and have no position. Anybody may write them, pgtide does not; they are left out.

Invariant: `blocks` gives every other frame exactly once and in order; a transaction that the journal already has is
refused, never written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pgtide.errors import ProtocolError
from pgtide.frames import (
    BEGIN,
    COMMIT,
    COUNTED,
    MESSAGE,
    RELATION,
    TABLE_DESCRIPTION,
    TRUNCATE,
    Frames,
    Transaction,
    TransactionColumns,
    table_description,
    transactions,
)
from pgtide.journal import BlockFlag, BlockHeader, BlockKind, pack_block
from pgtide.journal.writer import now_us
from pgtide.lsn import LSN
from pgtide.pgoutput import Relation, Truncate, parse_message
from pgtide.postgres.replication import Frame
from pgtide.schema import Table

Describe = Callable[[Relation], Table]

# About a thousand to ten thousand changes: large enough for columnar decoding to pay, small enough to hold several.
BLOCK_SIZE_BYTES = 1024 * 1024


class Assembler:
    """Turns a session's frames into blocks. One for each replication session."""

    def __init__(self, describe: Describe, last_commit_lsn: LSN, xid_ceiling: int) -> None:
        self._describe = describe
        self._last_commit_lsn = last_commit_lsn
        self._xid_ceiling = xid_ceiling
        self._open = Transaction()
        self._restart_lsn = last_commit_lsn
        self._held: list[Frame] = []
        self._tables: dict[int, bytes] = {}

    @property
    def inside_transaction(self) -> bool:
        """True if frames are held back, or pieces written, of a transaction whose commit has not come."""
        return bool(self._held) or bool(self._open.commit_lsn)

    def preamble(self) -> Sequence[bytes]:
        """Descriptions of the tables that this session has announced, as they are before the block given last."""
        return list(self._tables.values())

    def blocks(self, received: Sequence[Frame]) -> Iterator[tuple[BlockHeader, bytes]]:
        """Blocks for what was received; the frames of an unfinished small transaction are held back."""
        pending = [*self._held, *received]
        frames = _view(pending)
        if MESSAGE in frames.tags or RELATION in frames.tags:
            pending = self._with_descriptions(*_without_loose_messages(pending, frames))
            frames = _view(pending)
        commits = frames.where(COMMIT)
        whole = int(commits[-1]) + 1 if len(commits) else 0
        if whole:
            yield from self._whole(frames, commits, whole)
        rest = len(frames.buffer) - (int(frames.starts[whole]) if whole < len(pending) else len(frames.buffer))
        if rest > BLOCK_SIZE_BYTES:
            yield from self._give(frames, whole, len(pending))
            whole = len(pending)
        self._held = [bytes(frame) for frame in pending[whole:]]

    def _whole(self, frames: Frames, commits: NDArray[np.int64], end: int) -> Iterator[tuple[BlockHeader, bytes]]:
        """Frames up to the last commit; the end of an open transaction is a block of its own."""
        start = 0
        if self._open.commit_lsn:
            start = int(commits[0]) + 1
            yield from self._give(frames, 0, start)
        if start < end:
            yield from self._give(frames, start, end)

    def _give(self, frames: Frames, start: int, end: int) -> Iterator[tuple[BlockHeader, bytes]]:
        """One block. A new segment may begin with it, so the preamble learns of its tables only afterwards."""
        part = _slice(frames, start, end)
        yield self._block(part)
        relations = part.where(RELATION)
        for index, oid in zip(relations.tolist(), part.field(relations, 0, ">u4").tolist(), strict=True):
            self._tables[oid] = part.buffer[part.starts[index + 1] : part.ends[index + 1]].tobytes()

    def _block(self, part: Frames) -> tuple[BlockHeader, bytes]:
        before = self._open
        columns = transactions(part, before)
        ends_whole = part.tags[-1] == COMMIT
        continues = bool(before.commit_lsn)
        first = before if continues else _transaction_at(columns, 0)
        self._require_new(first, columns.commit_lsn[part.where(BEGIN)])
        if ends_whole:
            self._last_commit_lsn = LSN(int(columns.commit_lsn[-1]))
            self._restart_lsn = LSN(int(part.field(np.array([len(part.tags) - 1]), 9, ">i8")[0]))
            self._open = Transaction()
        else:
            self._open = _after(columns, part)
        self._raise_ceiling(columns.xid)
        header = BlockHeader(
            kind=BlockKind.STREAM,
            flags=self._flags(part, piece=continues or not ends_whole, continues=continues, open_=not ends_whole),
            commit_lsn=LSN(first.commit_lsn),
            ordinal=before.ordinal if continues else 0,
            xid=first.xid,
            committed_at_us=first.committed_at_us,
            last_commit_lsn=self._last_commit_lsn,
            restart_lsn=self._restart_lsn,
            xid_ceiling=self._xid_ceiling,
            written_at_us=now_us(),
        )
        lengths = (part.ends - part.starts).astype(np.uint32)
        return header, pack_block(header, _directory(part), lengths, part.buffer.tobytes())

    def _require_new(self, first: Transaction, begun: NDArray[np.uint64]) -> None:
        if first.commit_lsn <= self._last_commit_lsn or bool((np.diff(begun.astype(np.int64)) <= 0).any()):
            raise ProtocolError(
                "the source sent a transaction that the journal already has",
                detail=f"commit {LSN(first.commit_lsn)} after {self._last_commit_lsn}",
                hint="start again; if it happens again, report it: this is a bug in pgtide or in the server",
            )

    def _raise_ceiling(self, xids: NDArray[np.int64]) -> None:
        """Follow 32-bit transaction ids over their wrap-around: each is taken as the one nearest to the highest yet."""
        offsets = (xids - self._xid_ceiling + 2**31) % 2**32 - 2**31
        self._xid_ceiling += max(int(offsets.max()), 0)

    def _flags(self, part: Frames, *, piece: bool, continues: bool, open_: bool) -> BlockFlag:
        flags = BlockFlag.NONE
        for condition, flag in (
            (piece, BlockFlag.PIECE),
            (continues, BlockFlag.CONTINUES),
            (open_, BlockFlag.OPEN),
            (bool((part.tags == RELATION).any()), BlockFlag.SCHEMA),
            (bool((part.tags == MESSAGE).any()), BlockFlag.MESSAGE),
        ):
            flags |= flag if condition else BlockFlag.NONE
        return flags

    def _with_descriptions(self, pending: list[Frame], frames: Frames) -> list[Frame]:
        """Put a table's description after each Relation message."""
        out: list[Frame] = []
        previous = 0
        for index in frames.where(RELATION).tolist():
            out += pending[previous : index + 1]
            previous = index + 1
            if index + 1 < len(pending) and frames.tags[index + 1] == TABLE_DESCRIPTION:
                continue  # held back before, and described then
            out.append(self._description(frames.payload(index)))
        return out + pending[previous:]

    def _description(self, payload: bytes) -> bytes:
        relation = parse_message(payload)
        assert isinstance(relation, Relation)
        return table_description(self._describe(relation).to_json())


def _without_loose_messages(pending: list[Frame], frames: Frames) -> tuple[list[Frame], Frames]:
    """Leave out messages that are not transactional: their first byte after the tag says so."""
    messages = frames.where(MESSAGE)
    loose = set(messages[frames.field(messages, 0, ">u1") == 0].tolist())
    if not loose:
        return pending, frames
    kept = [frame for index, frame in enumerate(pending) if index not in loose]
    return kept, _view(kept)


def _view(frames: Sequence[Frame]) -> Frames:
    lengths = np.fromiter(map(len, frames), dtype=np.uint32, count=len(frames))
    return Frames.of(np.frombuffer(b"".join(frames), dtype=np.uint8), lengths)


def _slice(frames: Frames, start: int, end: int) -> Frames:
    if start == 0 and end == len(frames.tags):
        return frames
    base = int(frames.starts[start])
    buffer = frames.buffer[base : int(frames.ends[end - 1])]
    return Frames(buffer, frames.starts[start:end] - base, frames.ends[start:end] - base, frames.tags[start:end])


def _transaction_at(columns: TransactionColumns, index: int) -> Transaction:
    return Transaction(int(columns.commit_lsn[index]), int(columns.xid[index]), int(columns.committed_at_us[index]), 0)


def _after(columns: TransactionColumns, part: Frames) -> Transaction:
    """The transaction that goes on behind `part`."""
    ordinal = int(columns.ordinal[-1]) + int(COUNTED[part.tags[-1]])
    return replace(_transaction_at(columns, -1), ordinal=ordinal)


def _directory(part: Frames) -> dict[int, int]:
    """How many frames concern each table."""
    changes = part.changes()
    oids, counts = np.unique(part.field(changes, 0, ">u4"), return_counts=True)
    directory = dict(zip(oids.tolist(), counts.tolist(), strict=True))
    for index in part.where(TRUNCATE).tolist():
        message = parse_message(part.payload(index))
        assert isinstance(message, Truncate)
        for oid in message.relation_oids:
            directory[oid] = directory.get(oid, 0) + 1
    return directory
