"""Appending to the journal.

One process writes (an flock says which). Blocks go to the newest segment; `sync` makes them durable and
only then moves the head, so no reader ever sees what a power cut could take away. A segment is closed and a new
one begun only between transactions, so a closed segment never changes and never ends inside one.

Invariants: after `sync` returns, everything appended before is on disk. `restart_lsn` of the head is the only thing
that capture may acknowledge to Postgres.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pgtide.errors import JournalInUse
from pgtide.journal.format import BlockFlag, BlockHeader, BlockKind, Head, SegmentHeader, pack_block
from pgtide.journal.layout import Identity, JournalDirectory, journal_writes, sync_directory
from pgtide.journal.recovery import recover
from pgtide.lsn import LSN, ZERO

# Large enough that a busy day is thousands of files rather than millions; small enough that retention
# gives space back soon and that finding a position by walking one segment's block headers is quick.
SEGMENT_SIZE_BYTES = 64 * 1024 * 1024

# Frames that describe every table that the next frames may refer to.
Preamble = Callable[[], Sequence[bytes]]


class JournalWriter:
    """The journal's one writer. Opening it recovers a torn tail."""

    def __init__(
        self,
        directory: JournalDirectory,
        identity: Identity,
        *,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        preamble: Preamble = tuple,
    ) -> None:
        self.directory = directory
        self._identity = identity
        self._segment_size_bytes = segment_size_bytes
        self._preamble = preamble
        self._file = -1
        directory.create(identity)
        self._lock = _take_lock(directory.lock)
        try:
            recovered = recover(directory, identity.system_identifier)
            self.head = self._durable = recovered.head
            self.xid_ceiling = recovered.xid_ceiling
            self._offset = recovered.head.offset
            self._whole_offset = self._offset
            with journal_writes(directory.path):
                self._head_file = os.open(directory.head, os.O_RDWR | os.O_CREAT, 0o600)
                if self._offset:
                    self._file = os.open(directory.segment(self.head.segment_lsn), os.O_RDWR)
                self._write_head(self.head)
        except BaseException:
            self.close()
            raise

    @property
    def empty(self) -> bool:
        """True if nothing was ever written."""
        return self._file < 0

    def append(self, header: BlockHeader, block: bytes) -> None:
        """Write a block after the last one. Not durable, and not visible to readers, before `sync`."""
        with journal_writes(self.directory.path):
            if not header.flags & BlockFlag.CONTINUES and self._full():
                self._roll(header)
            self._write(block)
        if header.whole:
            self._whole_offset = self._offset
            self.head = replace(self.head, commit_lsn=header.last_commit_lsn, restart_lsn=header.restart_lsn)
        self.xid_ceiling = max(self.xid_ceiling, header.xid_ceiling)

    def sync(self) -> Head:
        """Make everything appended so far durable, then let readers see it."""
        with journal_writes(self.directory.path):
            if self._file >= 0:
                os.fdatasync(self._file)
            head = replace(self.head, offset=self._whole_offset, written_at_us=now_us())
            self._write_head(head)
        self.head = self._durable = head
        return head

    def advance(self, restart_lsn: LSN) -> Head:
        """Note durably that the source had nothing for us up to `restart_lsn`."""
        if restart_lsn <= self.head.restart_lsn:
            return self.head
        if self._offset > self._whole_offset:
            self.sync()
            self.go_back()
        header = self._header(BlockKind.ADVANCE, BlockFlag.NONE, restart_lsn)
        self.append(header, pack_block(header, {}, [], b""))
        return self.sync()

    def go_back(self) -> None:
        """Forget everything past the last sync, and pieces of a transaction whose end never came.

        For a new session after a failure: the source sends all of it again. A failed sync is not simply repeated,
        because the system may by then have dropped what it could not write.
        """
        durable = self._durable
        with journal_writes(self.directory.path):
            for lsn in self.directory.segment_lsns():
                if lsn > durable.segment_lsn or not durable.offset:
                    self.directory.segment(lsn).unlink()
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
            if durable.offset:
                self._file = os.open(self.directory.segment(durable.segment_lsn), os.O_RDWR)
                os.ftruncate(self._file, durable.offset)
        self.head = durable
        self._offset = self._whole_offset = durable.offset

    def close(self) -> None:
        """Close the files; leaves an open transaction's pieces to recovery."""
        for name in ("_file", "_head_file", "_lock"):
            descriptor = getattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)
            setattr(self, name, -1)

    def _full(self) -> bool:
        """Time for a new segment. One that has only its table descriptions is not full, however many they are."""
        if self._file < 0:
            return True
        return self._offset >= self._segment_size_bytes and self.head.restart_lsn > self.head.segment_lsn

    def _roll(self, header: BlockHeader) -> None:
        """Begin a new segment, named by the first LSN that it may hold; if that fails, nothing has changed."""
        start_lsn = self.head.restart_lsn or header.restart_lsn
        if self._file >= 0:
            os.fdatasync(self._file)
        opening = SegmentHeader(self._identity.system_identifier, start_lsn, now_us()).pack() + self._schema(start_lsn)
        path = self.directory.segment(start_lsn)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write_at(file, opening, 0)
            os.fdatasync(file)
            sync_directory(self.directory.segments)
        except BaseException:
            os.close(file)
            path.unlink()
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._offset = self._whole_offset = len(opening)
        self.head = replace(self.head, segment_lsn=start_lsn)

    def _schema(self, start_lsn: LSN) -> bytes:
        """The block that every segment begins with."""
        frames = self._preamble()
        header = self._header(BlockKind.SCHEMA, BlockFlag.SCHEMA, start_lsn)
        return pack_block(header, {}, [len(frame) for frame in frames], b"".join(frames))

    def _header(self, kind: BlockKind, flags: BlockFlag, restart_lsn: LSN) -> BlockHeader:
        """The header of a block that holds no transaction."""
        return BlockHeader(
            kind=kind,
            flags=flags,
            commit_lsn=ZERO,
            ordinal=0,
            xid=0,
            committed_at_us=0,
            last_commit_lsn=self.head.commit_lsn,
            restart_lsn=restart_lsn,
            xid_ceiling=self.xid_ceiling,
            written_at_us=now_us(),
        )

    def _write(self, data: bytes) -> None:
        """Write all of `data` at the end; on failure the file is cut back to where it was."""
        try:
            _write_at(self._file, data, self._offset)
        except OSError:
            os.ftruncate(self._file, self._offset)
            raise
        self._offset += len(data)

    def _write_head(self, head: Head) -> None:
        os.pwrite(self._head_file, head.pack(), 0)


def _write_at(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    written = 0
    while written < len(view):
        written += os.pwrite(file, view[written:], offset + written)


def now_us() -> int:
    return time.time_ns() // 1000


def _take_lock(path: Path) -> int:
    with journal_writes(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise JournalInUse(
            f"journal at {path.parent} is being written by another process",
            detail=f"process {holder}" if holder else None,
            hint="stop the other `pgtide run` or `pgtide capture` first, or choose another journal.url",
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
