"""Source against sink, row by row, while both are being written to.

For each table: read the source; note where the WAL is and wait until the pipeline has passed that point; read the sink;
compare. What differs then may only be younger than the first look, so it is looked at again in rounds (`compare` says
how) until it is cleared, or has differed in several rounds in a row while the source stood still, or has kept changing
for as long as we watch.

Invariant: a difference is only reported for a row that the source showed unchanged, and the pipeline had passed, each
time that the sink showed another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from pgtide.config import Config, Pipeline
from pgtide.errors import ConfigError, VerifyError
from pgtide.journal import JournalDirectory
from pgtide.postgres.catalog import read_tables
from pgtide.postgres.connection import Connection, connect, source_errors
from pgtide.postgres.control import select_tables
from pgtide.reading.progress import read_progress
from pgtide.schema import TableName
from pgtide.sinks.delta import DeltaSink
from pgtide.verify.compare import Differences, Suspects, find_suspects, join_suspects, judge
from pgtide.verify.digests import RowForm
from pgtide.verify.passing import Passing
from pgtide.verify.result import TableResult, VerifyResult
from pgtide.verify.sink import SinkReader
from pgtide.verify.source import KnownKeys, SourceReader, describe_rows, prepare_session
from pgtide.verify.spool import Spool, partitions

TIMEOUT_SECONDS = 120.0
# Each round waits for the pipeline once. A row that is written so often that no round sees it at rest stays undecided.
_ROUNDS = 10
# Up to here suspects are looked up by key; more are found faster by reading the table again.
_FEW_SUSPECTS = 100_000


# Takes a line for people, now and then.
Progress = Callable[[str], None]


def verify(
    config: Config,
    pipeline: Pipeline,
    *,
    progress: Progress = lambda line: None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    tables: Sequence[str] | None = None,
) -> VerifyResult:
    """Compare the tables of a pipeline, or those of them that `tables` names (globs over schema.table).

    The pipeline must be running. Raises VerifyError if it stands still for `timeout_seconds`, ConfigError if there is
    nothing to verify, SinkError and SourceError if a side cannot be read.
    """
    started_at = time.monotonic()
    results = []
    with connect(config.source) as connection, source_errors():
        prepare_session(connection)
        passing = Passing(connection, config, pipeline.name, timeout_seconds)
        sink = DeltaSink(pipeline.sink, pipeline.name)
        chosen = _chosen(connection, config, pipeline, tables)
        _require_copied(config, chosen)
        for name in chosen:
            form = _describe(connection, name)
            readers = SourceReader(connection, form), SinkReader(sink.path(name), form)
            results.append(_TableCheck(form, *readers, passing, progress).run())
    return VerifyResult(pipeline.name, tuple(results), time.monotonic() - started_at)


def _require_copied(config: Config, chosen: Sequence[TableName]) -> None:
    """A table whose first copy is under way differs, of course: that is not worth looking at."""
    progress = read_progress(JournalDirectory(config.journal.path)).values()
    copying = {each.table for each in progress if not each.done}
    unfinished = sorted(str(name) for name in chosen if str(name) in copying)
    if unfinished:
        raise VerifyError(
            "the first copy is not complete",
            detail=f"still to be copied: {', '.join(unfinished)}",
            hint="wait until `pgtide status` shows it as done",
        )


def _chosen(connection: Connection, config: Config, pipeline: Pipeline, globs: Sequence[str] | None) -> list[TableName]:
    ours = [name for name in select_tables(connection, config.source) if pipeline.selects(name)]
    if not ours:
        raise ConfigError(
            f"pipeline {pipeline.name!r} selects no table", hint="check its tables; they are globs over schema.table"
        )
    if globs is None:
        return ours
    wanted = [glob if "." in glob else f"public.{glob}" for glob in globs]
    for glob in wanted:
        if not any(fnmatchcase(str(name), glob) for name in ours):
            raise ConfigError(
                f"pipeline {pipeline.name!r} has no table {glob!r}",
                hint=f"it has {', '.join(map(str, ours[:10]))}{' …' if len(ours) > 10 else ''}",
            )
    return [name for name in ours if any(fnmatchcase(str(name), glob) for glob in wanted)]


def _describe(connection: Connection, name: TableName) -> RowForm:
    found = read_tables(connection, [name])
    if not found:
        raise VerifyError(f"table {name} was dropped while its pipeline was being verified", hint="verify again")
    return describe_rows(connection, found[0].table)


class _TableCheck:
    """The check of one table, from the first look to the last round."""

    def __init__(
        self, form: RowForm, source: SourceReader, sink: SinkReader, passing: Passing, progress: Progress
    ) -> None:
        self._form = form
        self._source = source
        self._sink = sink
        self._passing = passing
        self._progress = progress
        self._known: KnownKeys | None = None

    def run(self) -> TableResult:
        started_at = time.monotonic()
        rows, sink_rows, suspects = self._first_look()
        differences = Differences()
        rounds = 0
        while len(suspects) and rounds < _ROUNDS:
            rounds += 1
            suspects = self._round(rounds, suspects, differences)
        return TableResult(
            table=self._form.table.name,
            rows=rows,
            sink_rows=sink_rows,
            missing=differences.missing,
            extra=differences.extra,
            different=differences.different,
            undecided=len(suspects),
            rounds=rounds,
            seconds=time.monotonic() - started_at,
            examples=tuple(key.hex() for key in differences.examples),
        )

    def _first_look(self) -> tuple[int, int, Suspects]:
        self._say("reading source and sink")
        with self._source.read_all() as source:
            self._passing.wait()
            with self._sink.read_all() as sink:
                found = [find_suspects(source.read(part), sink.read(part)) for part in partitions(source, sink)]
                return source.rows, sink.rows, join_suspects(found)

    def _round(self, number: int, suspects: Suspects, differences: Differences) -> Suspects:
        """Source, wait, sink, source: whoever is still suspect after it. Differences found are added."""
        read_source, read_sink = self._lookup(suspects)
        self._say(f"looking again at what differed or has changed ({len(suspects):,} rows), round {number}")
        with read_source() as before:
            self._passing.wait()
            with read_sink() as sink, read_source() as after:
                parts = partitions(before, sink, after)
                return self._judge(suspects, (before, sink, after), parts, differences)

    def _judge(
        self,
        suspects: Suspects,
        spools: tuple[Spool, Spool, Spool],
        parts: Iterable[int | None],
        differences: Differences,
    ) -> Suspects:
        left = []
        for part in parts:
            before, sink, after = (spool.read(part) for spool in spools)
            still, found = judge(suspects.in_partition(part), before, sink, after)
            left.append(still)
            differences.add(found)
        return join_suspects(left)

    def _lookup(self, suspects: Suspects) -> tuple[Callable[[], Spool], Callable[[], Spool]]:
        """How the suspects are read on each side; more rows than they may come, never fewer."""
        if len(suspects) > _FEW_SUSPECTS:
            return self._source.read_all, self._sink.read_all
        if not self._form.findable:
            return lambda: self._source.read_digests(suspects.keys), self._sink.read_all
        known = self._resolve(suspects)
        return lambda: self._source.read_keys(known), lambda: self._sink.read_keys(known)

    def _resolve(self, suspects: Suspects) -> KnownKeys:
        """The keys behind the digests, once. One that neither side has any more is equal on both."""
        if self._known is None:
            found = self._source.resolve(suspects.keys)
            absent = [key.tobytes() not in found for key in suspects.keys]
            if any(absent):
                found |= self._sink.resolve(suspects.keys[absent])
            self._known = KnownKeys.of(found)
        return self._known

    def _say(self, line: str) -> None:
        self._progress(f"{self._form.table.name}: {line}")
