"""What a writer does before it appends: find the journal's true end.

The end is the end of the last whole transaction in the newest segment. Whatever follows it is a torn
block or the pieces of a transaction that never ended; both are cut off, because Postgres will send them again:
nothing of them was ever acknowledged. Older segments are closed and are not touched.

Invariant: nothing that was synced is cut. The head file is written after each sync, so an end before the head
is damage and raises JournalCorrupt with nothing changed. Should a power cut have lost the newest head as
well, capture finds the slot ahead of the journal and stops.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgtide.errors import JournalCorrupt, SourceMismatch
from pgtide.journal.format import (
    BLOCK_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    BlockHeader,
    Head,
    SegmentHeader,
    unpack_block,
)
from pgtide.journal.layout import JournalDirectory, journal_writes, sync_directory
from pgtide.lsn import LSN, ZERO


@dataclass(frozen=True)
class Recovered:
    """The journal's end as found on disk, and how much had to be cut off."""

    head: Head
    xid_ceiling: int
    cut_bytes: int


def recover(directory: JournalDirectory, system_identifier: int) -> Recovered:
    """Find the end, cut off what is not whole, and say where to go on. Safe to repeat."""
    promised = read_head(directory)
    lsns = directory.segment_lsns()
    if lsns and _never_used(directory.segment(lsns[-1]), lsns[-1], promised):
        with journal_writes(directory.path):
            directory.segment(lsns.pop()).unlink()
            sync_directory(directory.segments)
    if not lsns:
        _require_promise_kept(promised, ZERO, directory)
        return Recovered(Head(ZERO, 0, ZERO, ZERO, 0), 0, 0)
    return _recover_segment(directory, lsns, system_identifier, promised)


def read_head(directory: JournalDirectory) -> Head | None:
    """The head file's content; None if there is none or it is torn."""
    try:
        return Head.unpack(directory.head.read_bytes())
    except FileNotFoundError:
        return None


def _recover_segment(
    directory: JournalDirectory, lsns: list[LSN], system_identifier: int, promised: Head | None
) -> Recovered:
    path = directory.segment(lsns[-1])
    size = path.stat().st_size
    with _mapped(path) as data:
        header = SegmentHeader.unpack(bytes(data[:SEGMENT_HEADER_SIZE]), path.name)
        end, last = _whole_end(data, path)
    if header.system_identifier != system_identifier:
        raise SourceMismatch(
            f"segment {path} was written from another Postgres system",
            detail=f"system identifier {header.system_identifier}, expected {system_identifier}",
            hint="point journal.url at the journal of this database, or at an empty directory",
        )
    last = last or _last_header(directory, lsns[:-1])
    commit, restart = (last.last_commit_lsn, last.restart_lsn) if last else (ZERO, lsns[-1])
    _require_promise_kept(promised, restart, directory)
    with journal_writes(directory.path), open(path, "r+b") as file:
        os.ftruncate(file.fileno(), end)
        os.fsync(file.fileno())
    head = Head(lsns[-1], end, commit, restart, last.written_at_us if last else 0)
    return Recovered(head, last.xid_ceiling if last else 0, size - end)


def _never_used(path: Path, lsn: LSN, promised: Head | None) -> bool:
    """A segment syncs its header and its name before its first block: without a header it holds nothing.

    After a power cut a file may have its length and zeros instead of its header; that is taken for a beginning only
    if the head has not come that far.
    """
    if path.stat().st_size < SEGMENT_HEADER_SIZE:
        return True
    with open(path, "rb") as file:
        blank = file.read(SEGMENT_HEADER_SIZE) == bytes(SEGMENT_HEADER_SIZE)
    return blank and promised is not None and promised.segment_lsn < lsn


def _whole_end(data: memoryview, path: Path) -> tuple[int, BlockHeader | None]:
    """Offset after the last whole transaction, and the header of the block that ends it."""
    offset = end = SEGMENT_HEADER_SIZE
    last = None
    while offset < len(data):
        try:
            header = BlockHeader.unpack(bytes(data[offset : offset + BLOCK_HEADER_SIZE]), path.name)
            unpack_block(data[offset : offset + header.size], f"{path.name}+{offset}")
        except JournalCorrupt:
            break
        offset += header.size
        if header.whole:
            end, last = offset, header
    return end, last


def _last_header(directory: JournalDirectory, lsns: list[LSN]) -> BlockHeader | None:
    """The last whole block's header of the newest segment that has one."""
    for lsn in reversed(lsns):
        with _mapped(directory.segment(lsn)) as data:
            _, last = _whole_end(data, directory.segment(lsn))
        if last is not None:
            return last
    return None


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """A segment may be larger than memory (one huge transaction), so it is mapped, not read."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
        memoryview(mapping) as data,
    ):
        yield data


def _require_promise_kept(promised: Head | None, restart: LSN, directory: JournalDirectory) -> None:
    if promised is not None and restart < promised.restart_lsn:
        raise JournalCorrupt(
            f"journal at {directory.path} ends before what was synced",
            detail=f"segments can be read up to {restart}, the head file says {promised.restart_lsn}",
            hint="a segment was removed, cut or damaged: restore it from a copy, or remove the journal and the "
            "sink's tables and start again with `pgtide init`",
        )
