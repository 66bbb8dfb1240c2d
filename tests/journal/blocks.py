"""Small blocks for journals of the tests: transactions by number, whole or in pieces.

Transaction n commits at n * 100 and ends at n * 100 + 50, so that everything a header says follows from n.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pgtide.journal import (
    BlockFlag,
    BlockHeader,
    BlockKind,
    Identity,
    JournalDirectory,
    JournalReader,
    JournalWriter,
    pack_block,
)
from pgtide.lsn import LSN

IDENTITY = Identity(7_000_000_000_000_000_001, "shop", "pgtide_shop")
OID = 16385
PREAMBLE = (b"table one", b"table two")

AppendedBlock = tuple[BlockHeader, bytes]


def commit_of(number: int) -> LSN:
    return LSN(number * 100)


def end_of(number: int) -> LSN:
    return LSN(number * 100 + 50)


def transaction(number: int, frames: int = 2, size: int = 8) -> AppendedBlock:
    """A whole transaction in one block."""
    return _block(number, frames, size, BlockFlag.NONE)


def pieces(number: int, count: int, frames: int = 2, size: int = 8) -> list[AppendedBlock]:
    """A transaction larger than a block."""
    blocks = []
    for index in range(count):
        flags = BlockFlag.PIECE
        flags |= BlockFlag.CONTINUES if index else BlockFlag.NONE
        flags |= BlockFlag.OPEN if index < count - 1 else BlockFlag.NONE
        blocks.append(_block(number, frames, size, flags, index * frames))
    return blocks


def _block(number: int, frames: int, size: int, flags: BlockFlag, ordinal: int = 0) -> AppendedBlock:
    done = number - 1 if flags & BlockFlag.OPEN else number
    header = BlockHeader(
        kind=BlockKind.STREAM,
        flags=flags,
        commit_lsn=commit_of(number),
        ordinal=ordinal,
        xid=700 + number,
        committed_at_us=number,
        last_commit_lsn=commit_of(done),
        restart_lsn=end_of(done),
        xid_ceiling=700 + number,
        written_at_us=number,
    )
    bodies = [frame(number, ordinal + index, size) for index in range(frames)]
    return header, pack_block(header, {OID: frames}, [len(body) for body in bodies], b"".join(bodies))


def frame(number: int, ordinal: int, size: int = 8) -> bytes:
    return f"{number}.{ordinal}".encode().ljust(size, b"#")


def writer_at(path: Path, **more) -> JournalWriter:
    """A writer; it begins a new journal as capture does, with a note of where the source stands."""
    writer = JournalWriter(JournalDirectory(path), IDENTITY, preamble=lambda: PREAMBLE, **more)
    if writer.empty:
        writer.advance(end_of(0))
    return writer


def append(writer: JournalWriter, *blocks: AppendedBlock) -> None:
    for header, block in blocks:
        writer.append(header, block)


def write_journal(path: Path, blocks: Iterable[AppendedBlock], **more) -> None:
    """A journal that was closed in good order."""
    writer = writer_at(path, **more)
    append(writer, *blocks)
    writer.sync()
    writer.close()


def read_frames(path: Path, after: int = 0, upto: int = 10**6) -> list[bytes]:
    """Every frame of the stream that a reader finds between two transactions, verified."""
    reader = JournalReader(JournalDirectory(path))
    start = max(commit_of(after), reader.start_lsn())
    found = []
    for ref in reader.blocks(start, commit_of(upto)):
        block = ref.read()
        data, position = block.frames.tobytes(), 0
        for length in block.lengths.tolist():
            found.append(data[position : position + length])
            position += length
    return found


def frames_of(numbers: Iterable[int], frames: int = 2, size: int = 8) -> list[bytes]:
    return [frame(number, ordinal, size) for number in numbers for ordinal in range(frames)]


def segments(path: Path) -> list[Path]:
    return sorted((path / "segments").iterdir())
