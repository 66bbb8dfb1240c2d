"""The first copy of tables: a Spark job whose tasks copy chunks.

What has been done is what the journal says (snapshot/events): on every start a barrier is written and awaited, so that
all earlier watermarks have come by, and the copy goes on with the chunks that are missing. A table whose storage was
rewritten is begun again. A table that took several chunks ends with a repair chunk: rows can move from a page not yet
read to one already read, and then no chunk has their values that lie unchanged in TOAST.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import SnapshotError
from pgtide.journal import JournalDirectory
from pgtide.lsn import LSN, ZERO
from pgtide.postgres.catalog import SourceTable, read_tables, source_identity, with_estimate
from pgtide.postgres.connection import Connection, connect
from pgtide.postgres.control import emit, require_tables_copyable, select_tables
from pgtide.reading.changes import Array, Changes
from pgtide.reading.plan import ChunkRead, JournalView, TableRange
from pgtide.reading.progress import TableProgress, keep_progress, read_progress
from pgtide.reading.read import read_changes
from pgtide.snapshot.chunks import plan_chunks
from pgtide.snapshot.copy import REPAIR_CHUNK, ChunkTask, TableRewritten, copy_chunk
from pgtide.snapshot.events import Barrier, ChunkCopied, PageRange, SnapshotDone, SnapshotStarted, dump_event

_RESTARTS = 5


class Snapshot:
    """Copies every selected table that has not been copied yet."""

    def __init__(self, session: SparkSession, config: Config, stopping: Callable[[], bool] = lambda: False) -> None:
        self._session = session
        self._config = config
        self._stopping = stopping
        self._directory = JournalDirectory(config.journal.path)
        self._view = JournalView(self._directory)
        self._keeping = threading.Lock()
        self.progress: dict[int, TableProgress] = {}

    def run(self) -> None:
        """Copy what is missing. Returns when every table is done, or when told to stop."""
        with connect(self._config.source) as connection:
            self._await(connection)
            self.progress = read_progress(self._directory, self._view)
            names = select_tables(connection, self._config.source)
            require_tables_copyable(connection, names)
            tables = [with_estimate(connection, each) for each in read_tables(connection, names)]
            self._system_identifier = source_identity(connection).system_identifier
        pending = [each for each in tables if not self._finished(each.table.oid)]
        # Small tables first: most of the database is there soon.
        pending.sort(key=lambda each: each.size_bytes)
        with ThreadPoolExecutor(self._config.source.snapshot_readers, thread_name_prefix="snapshot") as pool:
            waiting = {pool.submit(self._copy_table, each) for each in pending}
            self._drain(waiting)

    def _drain(self, waiting: set[Future[None]]) -> None:
        while waiting:
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for each in done:
                if each.exception() is not None:
                    for other in waiting:
                        other.cancel()
                each.result()

    def _finished(self, oid: int) -> bool:
        return oid in self.progress and self.progress[oid].done

    def _copy_table(self, source_table: SourceTable) -> None:
        for _ in range(_RESTARTS):
            if self._stopping():
                return
            try:
                self._copy_once(source_table)
                return
            except TableRewritten:
                source_table = self._read_again(source_table)
        raise SnapshotError(
            f"table {source_table.table.name} is rewritten again and again while it is being copied",
            hint="run VACUUM FULL, CLUSTER and rewriting ALTER TABLE at another time, then start again",
        )

    def _copy_once(self, source_table: SourceTable) -> None:
        progress = self._begin(source_table)
        self._copy_chunks(source_table, progress, progress.missing)
        if self._stopping():
            return
        assert progress.started is not None
        if len(progress.started.chunks) > 1:
            self._repair(source_table, progress)
        if self._stopping():
            return  # perhaps before the repair was complete: the next start does it again
        with connect(self._config.source) as connection:
            done = SnapshotDone(progress.started.snapshot, progress.table, progress.oid, progress.rows)
            emit(connection, self._config.source.slot, dump_event(done))
            self._await(connection)
        with self._keeping:
            progress.done = True
            keep_progress(self._directory, self.progress.values())

    def _begin(self, source_table: SourceTable) -> TableProgress:
        """The copy that is under way, if its plan still fits, else a new one."""
        table = source_table.table
        known = self.progress.get(table.oid)
        if known is not None and known.started is not None and known.started.filenode == source_table.filenode:
            return known
        started = SnapshotStarted(
            snapshot=uuid.uuid4().hex[:12],
            table=str(table.name),
            oid=table.oid,
            filenode=source_table.filenode,
            chunks=plan_chunks(
                source_table.pages,
                source_table.size_bytes,
                self._config.source.snapshot_chunk_bytes,
                keyless=table.keyless,
            ),
            estimated_rows=source_table.estimated_rows,
        )
        with connect(self._config.source) as connection:
            emit(connection, self._config.source.slot, dump_event(started))
        self.progress[table.oid] = TableProgress(str(table.name), table.oid, started)
        return self.progress[table.oid]

    def _copy_chunks(self, source_table: SourceTable, progress: TableProgress, chunks: Sequence[int]) -> None:
        assert progress.started is not None
        for chunk in chunks:
            if self._stopping():
                return
            task = self._task(source_table, progress.started, chunk, progress.started.chunks[chunk])
            progress.chunks[chunk] = self._run_task(task)

    def _task(
        self,
        source_table: SourceTable,
        started: SnapshotStarted,
        chunk: int,
        pages: PageRange,
        keys: dict[str, list[str]] | None = None,
    ) -> ChunkTask:
        return ChunkTask(
            source=self._config.source,
            journal=str(self._directory.path.absolute()),
            system_identifier=self._system_identifier,
            snapshot=started.snapshot,
            table=source_table.table,
            filenode=started.filenode,
            chunk=chunk,
            pages=pages,
            keys=keys,
        )

    def _run_task(self, task: ChunkTask) -> ChunkCopied:
        """One chunk as a Spark task, on whatever executor is free."""
        results = self._session.sparkContext.parallelize([task], 1).map(_copy_in_task).collect()
        result = results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def _repair(self, source_table: SourceTable, progress: TableProgress) -> None:
        """Select again the rows whose changes, made during the copy, left values unchanged in TOAST."""
        started = progress.started
        assert started is not None
        with connect(self._config.source) as connection:
            upto = self._await(connection)
        if self._stopping():
            return
        xmin = min(chunk.visibility.xmin for chunk in progress.chunks.values())
        rows = self._partial_changes(source_table, xmin, upto)
        if rows:
            # Without a text form for the key, all rows are read again: more than needed, and as exact.
            keys = key_texts(rows, source_table.table.key)
            task = self._task(source_table, started, REPAIR_CHUNK, PageRange(0, None), keys)
            progress.chunks[REPAIR_CHUNK] = self._run_task(task)

    def _partial_changes(self, source_table: SourceTable, xmin: int, upto: LSN) -> list[Changes]:
        """Changes by transactions from xmin on that left a column unchanged."""
        table = source_table.table
        blocks, known = self._view.window(xmin, upto, table.oid)
        none: tuple[ChunkRead, ...] = ()
        changes = read_changes(TableRange(table.oid, known, ZERO, upto, blocks, none))
        return [part.take(partial) for part in changes if len(partial := _partial(part))]

    def _read_again(self, source_table: SourceTable) -> SourceTable:
        with connect(self._config.source) as connection:
            found = read_tables(connection, [source_table.table.name])
        if not found:
            raise SnapshotError(f"table {source_table.table.name} was dropped while it was being copied")
        return found[0]

    def _await(self, connection: Connection) -> LSN:
        """Write a barrier and wait until the journal has it: then it has everything that committed before."""
        lsn = emit(connection, self._config.source.slot, dump_event(Barrier(uuid.uuid4().hex[:12])))
        while self._view.end() < lsn and not self._stopping():
            time.sleep(0.02)
        return self._view.end()


def _partial(changes: Changes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows that leave some column unchanged."""
    if not changes.unchanged:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.logical_or.reduce(list(changes.unchanged.values())))


def key_texts(rows: Sequence[Changes], key: Sequence[str]) -> dict[str, list[str]] | None:
    """Keys as Postgres reads them; None if one of the key's types has no text that is exact for every value."""
    texts = {}
    for name in key:
        column: Array = pa.concat_arrays([part.columns[name] for part in rows])
        plain = pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_decimal(column.type)
        if not plain:
            return None
        texts[name] = column.cast(pa.string()).to_pylist()
    return texts


def _copy_in_task(task: ChunkTask) -> ChunkCopied | Exception:
    """Errors go back as values: Spark would bury them in its own."""
    try:
        return copy_chunk(task)
    except Exception as error:
        return error
