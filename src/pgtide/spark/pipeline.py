"""A pipeline: one streaming query from the journal to a sink.

Spark keeps the offsets and runs the tasks that read and fold; each batch comes back to the driver once and its tables
are applied side by side. What is applied is decided by the sink's own record of its position, so a batch that runs
again after a kill changes nothing, whatever the query's checkpoint says.
"""

from __future__ import annotations

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgtide.config import Journal as JournalConfig
from pgtide.config import Pipeline as PipelineConfig
from pgtide.errors import PgtideError, SinkError
from pgtide.journal import Consumers, JournalDirectory, JournalReader
from pgtide.lsn import LSN
from pgtide.reading.compact import Compacted, compact
from pgtide.reading.plan import JournalView
from pgtide.reading.progress import read_progress
from pgtide.reading.read import read_changes
from pgtide.schema import Table, TableName
from pgtide.sinks import make_sink
from pgtide.spark.batches import Selection, load_compacted

_PARALLEL_TABLES = 8
# The last line of a Python traceback.
_RAISED = re.compile(r"[A-Za-z_.]+(Error|Exception)\b")


class Pipeline:
    """Runs one configured pipeline on a session."""

    def __init__(self, session: SparkSession, journal: JournalConfig, config: PipelineConfig) -> None:
        self._session = session
        self._config = config
        self._directory = JournalDirectory(journal.path)
        self._consumers = Consumers(self._directory)
        self._sink = make_sink(config.sink, config.name)
        self._pool = ThreadPoolExecutor(_PARALLEL_TABLES, thread_name_prefix=f"apply-{config.name}")
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._copied_as: dict[int, str] = {}
        self.name = config.name
        self.changes = 0
        self.commit_at_us = 0
        self.applied_lsn = LSN(0)

    def start(self) -> None:
        """Start the query, from where it was."""
        self._require_history()
        stream = (
            self._session.readStream.format("pgtide")
            .option("journal", str(self._directory.path))
            .option("compacted", Selection(self._config.tables).dump())
            .option("maxBytesPerTrigger", str(self._config.max_batch_bytes))
            # Counts only where there is no checkpoint, that is on the first start or if it was lost.
            .option("startingPosition", str(self.applied_lsn))
            .load()
        )
        writer = stream.writeStream.queryName(self._config.name).foreachBatch(self._apply_batch)
        checkpoint = self._directory.pipeline(self._config.name) / "checkpoint"
        writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
        self._query = writer.trigger(processingTime=f"{int(self._config.trigger * 1000)} milliseconds").start()

    def poll(self) -> None:
        """Raise what made the pipeline fail, if it has."""
        if self._error is not None:
            raise self._error
        assert self._query is not None
        failure = self._query.exception()
        if failure is not None:
            raise _named(failure, self._config.name)
        if not self._query.isActive:
            raise SinkError(f"pipeline {self._config.name!r} has ended", hint="nothing is lost: run the command again")

    def stop(self) -> None:
        """End the query; a batch under way is abandoned and will run again."""
        if self._query is not None:
            self._query.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _require_history(self) -> None:
        """Sink and journal must know each other: a copy that lacks what came before would look whole and not be."""
        known = self._consumers.load(self._config.name)
        if known is None:
            self._require_unused_sink()
            self._require_first_copies()
            self.applied_lsn = JournalReader(self._directory).start_lsn()
            self._consumers.save(self._config.name, self.applied_lsn)
            return
        self.applied_lsn, self.changes, self.commit_at_us = known.applied_lsn, known.changes, known.commit_at_us
        for table in read_progress(self._directory).values():
            name = TableName.parse(table.table)
            begun = table.done or table.first_chunk_lsn
            if begun and table.first_chunk_lsn <= known.applied_lsn and self._config.selects(name):
                self._require_table(name)

    def _require_first_copies(self) -> None:
        """A new pipeline reads the first copies from the journal: they must still be there."""
        gone = [each.table for each in read_progress(self._directory).values() if each.done and each.started is None]
        gone = [name for name in gone if self._config.selects(TableName.parse(name))]
        if gone:
            raise SinkError(
                f"the journal no longer has the first copy that pipeline {self._config.name!r} needs",
                detail=f"of {', '.join(sorted(gone))}: it is older than journal.retention",
                hint="start with a journal of its own: another journal.url and source.slot for this pipeline",
            )

    def _require_unused_sink(self) -> None:
        if self._sink.in_use():
            raise SinkError(
                f"the sink of pipeline {self._config.name!r} has a copy that this journal does not know",
                hint="remove the sink's tables, or give the pipeline another name and path; if the journal was moved, "
                "point journal.url at it",
            )

    def _require_table(self, name: TableName) -> None:
        if not self._sink.applied_lsn(name):
            raise SinkError(
                f"table {name} is missing from the sink of pipeline {self._config.name!r}",
                detail="the journal says that it was copied there",
                hint="restore the table; or copy everything again: remove the journal and the sink's tables, run "
                "`pgtide destroy` and `pgtide init`",
            )

    def _apply_batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._apply(frame.toArrow())
        except PgtideError as error:
            self._error = error
            raise

    def _apply(self, rows: pa.Table) -> None:
        after = upto = LSN(0)
        tables: dict[str, list[tuple[int, Compacted]]] = defaultdict(list)
        for row in rows.to_pylist():
            if row["table"] is None:
                after, upto = LSN.parse(row["after"]), LSN.parse(row["upto"])
            else:
                compacted = load_compacted(row["header"], row["upserts"], row["deleted"])
                tables[row["table"]].append((row["step"], compacted))
        if not upto:
            return
        waiting = [self._pool.submit(self._apply_table, steps, after, upto) for steps in tables.values()]
        for each in waiting:
            each.result()
        self._note(upto, [compacted for steps in tables.values() for _, compacted in steps])
        self._sink.maintain()

    def _apply_table(self, steps: list[tuple[int, Compacted]], after: LSN, upto: LSN) -> None:
        steps.sort(key=lambda step: step[0])
        table = steps[-1][1].table
        self._require_known_name(table)
        applied = self._sink.applied_lsn(table.name)
        if applied >= upto:
            return
        if after < applied:
            steps = self._fold_again(table, applied, upto)
        for number, (step, compacted) in enumerate(steps):
            self._sink.apply(compacted, upto, step=step, last=number == len(steps) - 1)

    def _require_known_name(self, table: Table) -> None:
        """A renamed table would begin a second, incomplete copy under its new name."""
        if table.oid not in self._copied_as:
            self._copied_as = {each.oid: each.table for each in read_progress(self._directory).values()}
        known = self._copied_as.get(table.oid, str(table.name))
        if known != str(table.name):
            raise SinkError(
                f"table {known} was renamed to {table.name}",
                hint="rename it back; or copy again: stop pgtide, remove the journal and the sink's tables, run "
                "`pgtide destroy`, `pgtide init` and `pgtide run`",
            )

    def _fold_again(self, table: Table, after: LSN, upto: LSN) -> list[tuple[int, Compacted]]:
        """The part of a batch that the sink lacks, when it has come further than the query remembers.

        That is so only if the checkpoint was lost: otherwise a batch that runs again has the bounds it had.
        """
        planned = JournalView(self._directory).plan(after, upto).tables.get(table.oid)
        runs = read_changes(planned) if planned is not None else []
        return [(step, compact(changes)) for step, changes in enumerate(runs)]

    def _note(self, upto: LSN, compacted: list[Compacted]) -> None:
        self.changes += sum(each.changes for each in compacted)
        self.applied_lsn = upto
        self.commit_at_us = max((each.newest_commit_at_us for each in compacted), default=self.commit_at_us)
        self._consumers.save(self._config.name, upto, commit_at_us=self.commit_at_us, changes=self.changes)


def _named(failure: StreamingQueryException | Any, name: str) -> PgtideError:
    """Spark wraps what a task or the source raised in texts of its own; find the error in it.

    Of an error that is not ours only the kind is told: its text may hold values.
    """
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    ours = [line.split("pgtide.errors.", 1)[1] for line in lines if line.startswith("pgtide.errors.")]
    kinds = [match[0] for line in lines if (match := _RAISED.match(line))]
    detail = ours[-1] if ours else kinds[-1] if kinds else "Spark gives no reason"
    return SinkError(f"pipeline {name!r} failed", detail=detail, hint="nothing is lost: mend the cause and run again")
