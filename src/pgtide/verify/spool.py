"""Records of a whole table, in bounded memory.

Records are gathered up to a limit in memory. Past it they go to a temporary file in runs, each sorted by the first byte
of the key's digest, and are read back by that byte: digests are evenly spread, so each of the 256 partitions has its
share of the table and no more.

Bound: a spool holds at most one run in memory, 32 MB for a million rows. Comparing takes about 130 bytes more for each
record at hand: up to a million on each side as long as nothing was spilled, afterwards a 256th of the table. That
is some 400 MB at most for tables up to 256 million rows. On disk a record takes 32 bytes. No cell value is in a spool.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from pgtide.errors import VerifyError
from pgtide.verify.digests import RECORD_BYTES, Records, no_records

RUN_BYTES = 32 * 1024 * 1024
PARTITIONS = 256


class Spool:
    """Takes records, then gives them back by partition. A context manager: its file goes with it."""

    def __init__(self, run_bytes: int | None = None) -> None:
        self._run_bytes = RUN_BYTES if run_bytes is None else run_bytes
        self._pending: list[Records] = []
        self._pending_bytes = 0
        self._file = tempfile.TemporaryFile(prefix="pgtide-verify-", buffering=0)  # noqa: SIM115
        # For each run where it begins, in records, and where each of its partitions does, one more for its end.
        self._runs: list[tuple[int, NDArray[np.int64]]] = []
        self.rows = 0

    @property
    def spilled(self) -> bool:
        return bool(self._runs)

    def append(self, records: Records) -> None:
        self._pending.append(records)
        self._pending_bytes += records.nbytes
        self.rows += len(records)
        if self._pending_bytes >= self._run_bytes:
            self._spill()

    def read(self, partition: int | None) -> Records:
        """The records of a partition; all of them for None, which only a spool that has not spilled can give."""
        if partition is None:
            assert not self.spilled
            return _joined(self._pending)
        if self._pending:
            self._spill()
        return _joined([self._read_run(start, bounds, partition) for start, bounds in self._runs])

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._pending = []
        self._file.close()

    def _spill(self) -> None:
        records = _joined(self._pending)
        first = records[:, 0]
        bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(first, minlength=PARTITIONS))))
        run = np.ascontiguousarray(records[np.argsort(first, kind="stable")])
        start = self._runs[-1][0] + int(self._runs[-1][1][-1]) if self._runs else 0
        try:
            self._file.seek(start * RECORD_BYTES)
            view = run.data.cast("B")
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:
            raise VerifyError(
                "no room for the digests of a large table",
                detail=error.strerror,
                hint=f"free space in {tempfile.gettempdir()}, or set TMPDIR to a directory that has it",
            ) from error
        self._runs.append((start, bounds))
        self._pending, self._pending_bytes = [], 0

    def _read_run(self, start: int, bounds: NDArray[np.int64], partition: int) -> Records:
        begin, end = int(bounds[partition]), int(bounds[partition + 1])
        self._file.seek((start + begin) * RECORD_BYTES)
        wanted = (end - begin) * RECORD_BYTES
        data = bytearray()
        while len(data) < wanted:
            piece = self._file.read(wanted - len(data))
            assert piece, "a spool's file ends before its last run"
            data += piece
        return np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)


def partitions(*spools: Spool) -> Iterator[int | None]:
    """The partitions in which these spools are best compared: one for all records while nothing was spilled."""
    if any(spool.spilled for spool in spools):
        yield from range(PARTITIONS)
    else:
        yield None


def _joined(parts: list[Records]) -> Records:
    return np.concatenate(parts) if parts else no_records()
