"""Files that are written once and whole: the chunks of a snapshot.

A chunk file has a segment's form: a header, then blocks. It gets its name only when all of it is on disk, so a file
that has a name is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from pgtide.errors import JournalGap
from pgtide.journal.format import (
    BLOCK_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    Block,
    BlockFlag,
    BlockHeader,
    BlockKind,
    SegmentHeader,
    pack_block,
    unpack_block,
)
from pgtide.journal.layout import journal_writes, sync_directory
from pgtide.journal.writer import now_us
from pgtide.lsn import ZERO


class WholeFile:
    """Writes blocks to a temporary name; `commit` makes them durable and gives the file its name."""

    def __init__(self, path: Path, system_identifier: int) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self.size = 0
        with journal_writes(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open(self._temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
        self._write(SegmentHeader(system_identifier, ZERO, now_us()).pack())

    def append(self, kind: BlockKind, frames: Sequence[bytes | memoryview]) -> None:
        header = BlockHeader(kind, BlockFlag.NONE, ZERO, 0, 0, 0, ZERO, ZERO, 0, now_us())
        self._write(pack_block(header, {}, [len(frame) for frame in frames], b"".join(frames)))

    def commit(self) -> None:
        with journal_writes(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._path)
            sync_directory(self._path.parent)

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without a commit, nothing is left."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        with journal_writes(self._path):
            self._file.write(data)
        self.size += len(data)


def read_blocks(path: str) -> Iterator[Block]:
    """All blocks of a whole file, verified."""
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise JournalGap(
            f"the rows of a snapshot are missing: {path}",
            hint="restore the file, or remove the journal and the sink's tables and start again with `pgtide init`",
        ) from None
    name = os.path.basename(path)
    with file:
        SegmentHeader.unpack(file.read(SEGMENT_HEADER_SIZE), name)
        while head := file.read(BLOCK_HEADER_SIZE):
            where = f"{name}+{file.tell() - len(head)}"
            header = BlockHeader.unpack(head, where)
            yield unpack_block(head + file.read(header.payload_size), where)
