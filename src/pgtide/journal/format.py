"""The journal's bytes: segment headers, block headers and the head file.

    segment = segment header, then blocks
    block   = block header, directory, frame lengths, frames

docs/journal-format.md is the byte table of what this module packs and unpacks. Nothing here does I/O
and nothing here knows Postgres: a frame is bytes, a directory counts frames by a 32-bit key.

A block has two checksums: one of its header and directory, which a reader checks when it decides whether the block
concerns it at all, and one of everything.

Invariant: whatever is unpacked has passed its checksum, or JournalCorrupt was raised.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from pgtide.errors import JournalCorrupt
from pgtide.lsn import LSN

FORMAT_VERSION = 1

_SEGMENT_MAGIC = b"PGTIDESG"
_SEGMENT = struct.Struct("<8sHHIQQq20xI")
SEGMENT_HEADER_SIZE = _SEGMENT.size

_BLOCK_MAGIC = b"PGTB"
_BLOCK = struct.Struct("<4sBBHIIIIQQIIqQQqq")
BLOCK_HEADER_SIZE = _BLOCK.size
_BLOCK_CHECKSUM = slice(20, 24)

_HEAD_MAGIC = b"PGTIDEHD"
_HEAD = struct.Struct("<8sHHIQQQQqI")
HEAD_SIZE = _HEAD.size

_DIRECTORY_ENTRY = np.dtype([("key", "<u4"), ("frames", "<u4")])


class BlockKind(IntEnum):
    """What a block's frames are."""

    STREAM = 1  # whole transactions, or one piece of a large one
    ADVANCE = 2  # no frames: the source was idle up to `restart_lsn`
    SCHEMA = 3  # the table descriptions in force where a segment begins
    ROWS = 4  # rows of a snapshot chunk, as COPY sent them


class BlockFlag(IntFlag):
    """What a reader may want to know before it reads a block's frames."""

    NONE = 0
    PIECE = 1  # part of one transaction that is larger than a block
    OPEN = 2  # the transaction goes on in the next block
    SCHEMA = 4  # describes tables
    MESSAGE = 8  # has messages of pgtide's own
    CONTINUES = 16  # the transaction began in an earlier block


@dataclass(frozen=True)
class SegmentHeader:
    """Says what a segment file is, and whose."""

    system_identifier: int
    start_lsn: LSN
    created_at_us: int

    def pack(self) -> bytes:
        body = _SEGMENT.pack(
            _SEGMENT_MAGIC,
            FORMAT_VERSION,
            0,
            SEGMENT_HEADER_SIZE,
            self.system_identifier,
            self.start_lsn,
            self.created_at_us,
            0,
        )[:-4]
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def unpack(cls, data: bytes, where: str) -> SegmentHeader:
        if len(data) < SEGMENT_HEADER_SIZE:
            raise JournalCorrupt(f"segment {where} is shorter than its header")
        data = data[:SEGMENT_HEADER_SIZE]
        magic, version, _, _, system_identifier, start_lsn, created_at_us, checksum = _SEGMENT.unpack(data)
        _require(magic == _SEGMENT_MAGIC, where, "it is not a journal segment")
        _require(version == FORMAT_VERSION, where, f"format version {version}, expected {FORMAT_VERSION}")
        _require(checksum == zlib.crc32(data[:-4]), where, "the checksum of the segment header is wrong")
        return cls(system_identifier, LSN(start_lsn), created_at_us)


@dataclass(frozen=True)
class BlockHeader:
    """Everything about a block but its frames.

    `commit_lsn`, `ordinal`, `xid` and `committed_at_us` describe the transaction in force at the first
    frame, which only matters for a piece that continues one. `last_commit_lsn` is the newest commit that is
    whole after this block; capture may restart from `restart_lsn`. `xid_ceiling` is the highest
    transaction id seen in the journal so far: it never falls, so a reader can find by it where the
    window of a snapshot begins.
    """

    kind: BlockKind
    flags: BlockFlag
    commit_lsn: LSN
    ordinal: int
    xid: int
    committed_at_us: int
    last_commit_lsn: LSN
    restart_lsn: LSN
    xid_ceiling: int
    written_at_us: int
    payload_size: int = 0
    frame_count: int = 0
    directory_size: int = 0
    checksum: int = 0
    head_checksum: int = 0

    @property
    def size(self) -> int:
        return BLOCK_HEADER_SIZE + self.payload_size

    @property
    def whole(self) -> bool:
        """True if the journal may end after this block: no transaction is open."""
        return not self.flags & BlockFlag.OPEN

    @property
    def newest_commit_lsn(self) -> LSN:
        """The commit LSN of the last transaction that has frames here, whole or not."""
        return self.last_commit_lsn if self.whole else self.commit_lsn

    def pack(self) -> bytes:
        return _BLOCK.pack(
            _BLOCK_MAGIC,
            FORMAT_VERSION,
            self.kind,
            self.flags,
            self.payload_size,
            self.frame_count,
            self.directory_size,
            self.checksum,
            self.commit_lsn,
            self.ordinal,
            self.xid,
            self.head_checksum,
            self.committed_at_us,
            self.last_commit_lsn,
            self.restart_lsn,
            self.xid_ceiling,
            self.written_at_us,
        )

    @classmethod
    def unpack(cls, data: bytes, where: str) -> BlockHeader:
        """Read a header. It is not to be trusted before `unpack_directory` or `unpack_block` has checked it."""
        if len(data) < BLOCK_HEADER_SIZE:
            raise JournalCorrupt(f"block header at {where} is cut short")
        fields = _BLOCK.unpack(data[:BLOCK_HEADER_SIZE])
        _require(fields[0] == _BLOCK_MAGIC, where, "there is no block")
        _require(fields[1] == FORMAT_VERSION, where, f"format version {fields[1]}, expected {FORMAT_VERSION}")
        _require(fields[2] in tuple(BlockKind), where, f"unknown block kind {fields[2]}")
        return cls(
            kind=BlockKind(fields[2]),
            flags=BlockFlag(fields[3]),
            payload_size=fields[4],
            frame_count=fields[5],
            directory_size=fields[6],
            checksum=fields[7],
            commit_lsn=LSN(fields[8]),
            ordinal=fields[9],
            xid=fields[10],
            head_checksum=fields[11],
            committed_at_us=fields[12],
            last_commit_lsn=LSN(fields[13]),
            restart_lsn=LSN(fields[14]),
            xid_ceiling=fields[15],
            written_at_us=fields[16],
        )


@dataclass(frozen=True)
class Block:
    """A verified block: its header and views into its payload."""

    header: BlockHeader
    directory: NDArray[np.void]
    lengths: NDArray[np.uint32]
    frames: NDArray[np.uint8]

    @property
    def keys(self) -> NDArray[np.uint32]:
        keys: NDArray[np.uint32] = self.directory["key"]
        return keys


def pack_block(
    header: BlockHeader, directory: dict[int, int], lengths: Sequence[int] | NDArray[np.uint32], frames: bytes
) -> bytes:
    """Give the bytes of a block; sizes, counts and the checksum of `header` are filled in."""
    entries = np.array(list(directory.items()), dtype=_DIRECTORY_ENTRY).tobytes()
    sizes = np.asarray(lengths, dtype="<u4").tobytes()
    header = replace(
        header,
        payload_size=len(entries) + len(sizes) + len(frames),
        frame_count=len(lengths),
        directory_size=len(directory),
        checksum=0,
        head_checksum=0,
    )
    header = replace(header, head_checksum=zlib.crc32(entries, zlib.crc32(header.pack())))
    checksum = zlib.crc32(frames, zlib.crc32(sizes, zlib.crc32(entries, zlib.crc32(header.pack()))))
    return b"".join((replace(header, checksum=checksum).pack(), entries, sizes, frames))


def unpack_block(data: bytes | memoryview, where: str) -> Block:
    """Verify a whole block (header and payload) and give views of its parts, without copying."""
    view = memoryview(data)
    header = BlockHeader.unpack(bytes(view[:BLOCK_HEADER_SIZE]), where)
    _require(len(view) == header.size, where, "the block is cut short")
    _require(_checksum(view) == header.checksum, where, "the checksum of the block is wrong")
    directory_end = BLOCK_HEADER_SIZE + header.directory_size * _DIRECTORY_ENTRY.itemsize
    lengths_end = directory_end + 4 * header.frame_count
    _require(lengths_end <= len(view), where, "the block's counts exceed its size")
    lengths = np.frombuffer(view[directory_end:lengths_end], dtype="<u4")
    frames = np.frombuffer(view[lengths_end:], dtype=np.uint8)
    _require(int(lengths.sum(dtype=np.int64)) == len(frames), where, "the frame lengths do not add up")
    directory = np.frombuffer(view[BLOCK_HEADER_SIZE:directory_end], dtype=_DIRECTORY_ENTRY)
    return Block(header, directory, lengths, frames)


def unpack_directory(header: BlockHeader, entries_data: bytes, where: str) -> dict[int, int]:
    """The directory alone, for a reader that looks for blocks of a table; verifies the header with it."""
    blank = replace(header, checksum=0, head_checksum=0).pack()
    checksum = zlib.crc32(entries_data, zlib.crc32(blank))
    _require(checksum == header.head_checksum, where, "the checksum of the block's header is wrong")
    entries = np.frombuffer(entries_data, dtype=_DIRECTORY_ENTRY)
    return dict(zip(entries["key"].tolist(), entries["frames"].tolist(), strict=True))


def directory_bytes(header: BlockHeader) -> int:
    return header.directory_size * _DIRECTORY_ENTRY.itemsize


@dataclass(frozen=True)
class Head:
    """How far the journal is synced: readers never look past it.

    `commit_lsn` is the newest whole transaction, `restart_lsn` is how far the source has been read.
    """

    segment_lsn: LSN
    offset: int
    commit_lsn: LSN
    restart_lsn: LSN
    written_at_us: int

    def pack(self) -> bytes:
        body = _HEAD.pack(
            _HEAD_MAGIC,
            FORMAT_VERSION,
            0,
            HEAD_SIZE,
            self.segment_lsn,
            self.offset,
            self.commit_lsn,
            self.restart_lsn,
            self.written_at_us,
            0,
        )[:-4]
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def unpack(cls, data: bytes) -> Head | None:
        """Read a head; None if the bytes are torn (a writer may be in the middle of replacing them)."""
        if len(data) != HEAD_SIZE:
            return None
        magic, version, _, _, segment, offset, commit, restart, written, checksum = _HEAD.unpack(data)
        if magic != _HEAD_MAGIC or checksum != zlib.crc32(data[:-4]):
            return None
        _require(version == FORMAT_VERSION, "head", f"format version {version}, expected {FORMAT_VERSION}")
        return cls(LSN(segment), offset, LSN(commit), LSN(restart), written)


def _checksum(view: memoryview) -> int:
    start, stop = _BLOCK_CHECKSUM.start, _BLOCK_CHECKSUM.stop
    checksum = zlib.crc32(view[:start])
    checksum = zlib.crc32(b"\0\0\0\0", checksum)
    return zlib.crc32(view[stop:], checksum)


def _require(condition: bool, where: str, problem: str) -> None:
    if not condition:
        raise JournalCorrupt(
            f"journal is damaged at {where}",
            detail=problem,
            hint="run `pgtide journal verify` to see how much is affected; restore the file from a copy, or "
            "remove the journal and the sink's tables and start again with `pgtide init`",
        )
