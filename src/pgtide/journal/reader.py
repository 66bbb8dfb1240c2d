"""Reading the journal, in any process, while it is being written.

A reader walks block headers from a segment's start, which is cheap, and reads only the blocks it wants. It never
looks past the head, so everything it sees is synced and every transaction it sees is whole. A segment is named by the
end of the one before it, so a missing one, or a missing end of one, does not go unnoticed.

Invariant: `blocks(after, upto)` gives every block that may hold a transaction with after < commit LSN <= upto, in
order, or raises JournalGap.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from pgtide.errors import JournalCorrupt, JournalGap
from pgtide.journal.format import (
    BLOCK_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    Block,
    BlockHeader,
    BlockKind,
    Head,
    SegmentHeader,
    directory_bytes,
    unpack_block,
    unpack_directory,
)
from pgtide.journal.layout import JournalDirectory
from pgtide.lsn import LSN, ZERO

EMPTY_HEAD = Head(ZERO, 0, ZERO, ZERO, 0)


@dataclass(frozen=True)
class BlockRef:
    """Where a block lies, and what its header and directory say."""

    path: str
    offset: int
    header: BlockHeader
    directory: dict[int, int]

    def read(self) -> Block:
        """Read and verify the block."""
        with _open_segment(Path(self.path)) as file:
            data = os.pread(file.fileno(), self.header.size, self.offset)
        return unpack_block(data, f"{os.path.basename(self.path)}+{self.offset}")


class JournalReader:
    """Finds blocks by position. Keeps an index of the segments it has walked, so a tail costs little."""

    def __init__(self, directory: JournalDirectory) -> None:
        self.directory = directory
        self._index: dict[LSN, _SegmentIndex] = {}

    def head(self) -> Head:
        """How far the journal is synced now; an empty head before anything was written."""
        for _ in range(100):
            try:
                data = self.directory.head.read_bytes()
            except FileNotFoundError:
                return EMPTY_HEAD
            if not data:
                return EMPTY_HEAD
            head = Head.unpack(data)
            if head is not None:
                return head
        raise JournalCorrupt(f"the head of the journal at {self.directory.path} is unreadable")

    def start_lsn(self) -> LSN:
        """Where the oldest kept segment begins: earlier changes are no longer here."""
        lsns = self.directory.segment_lsns()
        return lsns[0] if lsns else ZERO

    def segment_start(self, after: LSN) -> LSN:
        """Start of the segment in which reading after `after` begins."""
        lsns = self.directory.segment_lsns()
        if not lsns:
            return ZERO
        if after < lsns[0]:
            raise JournalGap(
                f"the journal at {self.directory.path} no longer reaches back to {after}",
                detail=f"it begins at {lsns[0]}",
                hint="this consumer was away for longer than journal.retention: remove its target and its "
                "position and let it start again from a new snapshot",
            )
        return lsns[bisect_right(lsns, after) - 1]

    def blocks(self, after: LSN, upto: LSN) -> Iterator[BlockRef]:
        """Blocks from the one that holds the first commit past `after` to the one that holds `upto`."""
        for block in self.walk(self.segment_start(after)):
            if block.header.kind != BlockKind.STREAM or block.header.newest_commit_lsn <= after:
                continue
            if block.header.commit_lsn > upto:
                return
            yield block

    def walk(self, segment_lsn: LSN) -> Iterator[BlockRef]:
        """Every synced block from the start of the named segment on, of every kind."""
        head = self.head()
        end = None
        for lsn in self._segments_between(segment_lsn, head):
            if end is not None and end != lsn:
                raise _hole(self.directory, end, lsn)
            limit = head.offset if lsn == head.segment_lsn else None
            for ref in self._segment(lsn).upto(limit):
                end = ref.header.restart_lsn
                yield ref

    def _segments_between(self, segment_lsn: LSN, head: Head) -> list[LSN]:
        if segment_lsn > head.segment_lsn or not head.offset:
            return []
        lsns = [lsn for lsn in self.directory.segment_lsns() if segment_lsn <= lsn <= head.segment_lsn]
        if not lsns or lsns[-1] != head.segment_lsn:
            raise _hole(self.directory, head.segment_lsn, head.restart_lsn)
        return lsns

    def _segment(self, lsn: LSN) -> _SegmentIndex:
        if lsn not in self._index:
            self._index[lsn] = _SegmentIndex(self.directory.segment(lsn))
        return self._index[lsn]

    def forget_before(self, lsn: LSN) -> None:
        """Let go of the index of segments that end before `lsn`."""
        known = sorted(self._index)
        for each, following in pairwise(known):
            if following <= lsn:
                del self._index[each]


class _SegmentIndex:
    """The block headers of one segment, walked as far as somebody has asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._blocks: list[BlockRef] = []
        self._offset = 0

    def upto(self, limit: int | None) -> Iterator[BlockRef]:
        self._extend(limit)
        for block in self._blocks:
            if limit is not None and block.offset >= limit:
                return
            yield block

    def _extend(self, limit: int | None) -> None:
        if limit is not None and self._offset >= limit:
            return
        with _open_segment(self._path) as file:
            descriptor = file.fileno()
            limit = os.fstat(descriptor).st_size if limit is None else limit
            if self._offset == 0:
                SegmentHeader.unpack(os.pread(descriptor, SEGMENT_HEADER_SIZE, 0), self._path.name)
                self._offset = SEGMENT_HEADER_SIZE
            while self._offset < limit:
                block = self._read_header(descriptor)
                self._blocks.append(block)
                self._offset += block.header.size
        if self._offset != limit:
            raise JournalCorrupt(f"journal is damaged at {self._path.name}+{limit}", detail="no block ends here")

    def _read_header(self, descriptor: int) -> BlockRef:
        # Directories are short: one read usually brings both.
        data = os.pread(descriptor, BLOCK_HEADER_SIZE + 512, self._offset)
        where = f"{self._path.name}+{self._offset}"
        header = BlockHeader.unpack(data, where)
        end = BLOCK_HEADER_SIZE + directory_bytes(header)
        if len(data) < end:
            data = os.pread(descriptor, end, self._offset)
        if len(data) < end:
            raise JournalCorrupt(f"block at {where} is cut short")
        directory = unpack_directory(header, data[BLOCK_HEADER_SIZE:end], where)
        return BlockRef(str(self._path), self._offset, header, directory)


def _open_segment(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise JournalGap(
            f"segment {path.name} of the journal is no longer there",
            hint="retention removed it while it was being read: begin again from a newer position",
        ) from None


def _hole(directory: JournalDirectory, end: LSN, start: LSN) -> JournalGap:
    return JournalGap(
        f"the journal at {directory.path} has a hole",
        detail=f"changes between {end} and {start} are missing",
        hint="a segment was removed or cut: restore it from a copy, or remove the journal and the sink's tables and "
        "start again with `pgtide init`",
    )
