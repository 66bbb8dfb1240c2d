"""Frames: what can be said of many raw messages at once, without decoding any column.

A frame is one XLogData message as it came off the wire: a 25-byte envelope, then the pgoutput message, whose first
byte is its tag. This module finds tags, table OIDs and transactions of a whole block with a few numpy passes.

pgtide's own frames have the same envelope and a tag that pgoutput never uses. So far there is one: the description
of a table, as JSON, which follows each Relation message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgtide.errors import ProtocolError

ENVELOPE_SIZE = 25
_EPOCH_SHIFT_US = 946_684_800_000_000  # 2000-01-01, where Postgres counts from, in Unix time

BEGIN, COMMIT, INSERT, UPDATE, DELETE = (ord(tag) for tag in "BCIUD")
TRUNCATE, MESSAGE, RELATION = (ord(tag) for tag in "TMR")
TABLE_DESCRIPTION = 1

# Messages that count towards a change's ordinal. Relation, Type and Origin do not: whether they are sent depends on
# what the session has seen, and ordinals must be the same on every replay.
COUNTED = np.zeros(256, dtype=bool)
COUNTED[[INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE]] = True


@dataclass(frozen=True)
class Frames:
    """A buffer of frames with where each lies and what its tag is."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    tags: NDArray[np.uint8]

    @classmethod
    def of(cls, buffer: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> Frames:
        ends = np.cumsum(lengths, dtype=np.int64)
        starts = ends - lengths
        if len(lengths) and int(lengths.min()) <= ENVELOPE_SIZE:
            raise ProtocolError("a frame is shorter than its envelope")
        return cls(buffer, starts, ends, buffer[starts + ENVELOPE_SIZE])

    def payload(self, index: int) -> bytes:
        """One frame's pgoutput message."""
        return self.buffer[self.starts[index] + ENVELOPE_SIZE : self.ends[index]].tobytes()

    def where(self, tag: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.tags == tag)

    def field(self, frames: NDArray[np.int64], offset: int, dtype: str) -> NDArray[np.int64]:
        """A big-endian integer at `offset` after the tag of each of these frames."""
        positions = self.starts[frames] + ENVELOPE_SIZE + 1 + offset
        size = np.dtype(dtype).itemsize
        if len(positions) and bool((positions + size > self.ends[frames]).any()):
            raise ProtocolError("a frame is cut short")
        return gather(self.buffer, positions, dtype).astype(np.int64)

    def changes(self) -> NDArray[np.int64]:
        """Frames that change a row."""
        return np.flatnonzero((self.tags == INSERT) | (self.tags == UPDATE) | (self.tags == DELETE))


@dataclass(frozen=True)
class Transaction:
    """The transaction in force at a point of the stream, and the ordinal that its next change gets."""

    commit_lsn: int = 0
    xid: int = 0
    committed_at_us: int = 0
    ordinal: int = 0


@dataclass(frozen=True)
class TransactionColumns:
    """For each frame: the transaction that it belongs to and its ordinal there."""

    commit_lsn: NDArray[np.uint64]
    xid: NDArray[np.int64]
    committed_at_us: NDArray[np.int64]
    ordinal: NDArray[np.int64]


def transactions(frames: Frames, before: Transaction) -> TransactionColumns:
    """Spread each Begin over the frames that follow it. `before` is in force at the first frame."""
    begins = frames.where(BEGIN)
    lsn = np.concatenate(([before.commit_lsn], frames.field(begins, 0, ">i8")))
    time = np.concatenate(([before.committed_at_us], frames.field(begins, 8, ">i8") + _EPOCH_SHIFT_US))
    xid = np.concatenate(([before.xid], frames.field(begins, 16, ">u4")))
    which = np.cumsum(frames.tags == BEGIN)
    counted = COUNTED[frames.tags]
    passed = np.cumsum(counted)
    at_begin = np.concatenate(([-before.ordinal], passed[begins]))
    ordinal = passed - counted - at_begin[which]
    return TransactionColumns(lsn[which].astype(np.uint64), xid[which], time[which], ordinal)


def gather(buffer: NDArray[np.uint8], positions: NDArray[np.int64], dtype: str) -> NDArray[np.generic]:
    """Integers at any byte positions, through an overlapping view of the buffer. Positions must be in bounds."""
    size = np.dtype(dtype).itemsize
    if len(buffer) < size:
        return np.zeros(0, dtype=dtype)
    view: NDArray[np.generic] = np.ndarray((len(buffer) - size + 1,), dtype=dtype, buffer=buffer.data, strides=(1,))
    return view[positions]


def message_prefix(slot: str) -> str:
    """Marks pgtide's logical messages for one slot: every slot of a database gets the messages of all."""
    return f"pgtide:{slot}"


def table_description(document: str) -> bytes:
    """A frame that describes a table."""
    return b"w" + bytes(ENVELOPE_SIZE - 1) + bytes([TABLE_DESCRIPTION]) + document.encode()
