"""`pgtide run`: capture, snapshot and pipelines, until stopped.

Capture is a process of its own; Spark, the snapshot and the pipelines live here. Whatever fails stops everything, in
order, with its own error; nothing is lost by that, because each part continues from what is durable. The order of
stopping is the stream's: snapshot, pipelines, then capture.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from py4j.protocol import Py4JError

from pgtide.capture.loop import Progress
from pgtide.capture.process import CaptureProcess
from pgtide.config import Config
from pgtide.errors import PgtideError
from pgtide.journal import JournalDirectory, JournalReader
from pgtide.lsn import LSN, ZERO
from pgtide.postgres.catalog import one
from pgtide.postgres.connection import connect, source_errors
from pgtide.postgres.control import read_slot, require_usable
from pgtide.postgres.preflight import require_ready
from pgtide.reading.progress import TableProgress
from pgtide.reading.retention import apply_retention
from pgtide.retry import Verdict, backoff, verdict
from pgtide.sinks import make_sink

_TICK_SECONDS = 0.1
_WATCH_SECONDS = 1.0
_RETENTION_SECONDS = 60.0


@dataclass
class RunProgress:
    """What a person watching wants to know."""

    phase: str = "starting"
    capture: Progress = field(default_factory=Progress)
    tables: list[TableProgress] = field(default_factory=list)
    applied: dict[str, LSN] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    wal_lsn: LSN = ZERO
    lag_bytes: int = 0
    lag_seconds: float = 0.0


Watch = Callable[[RunProgress], None]


class Supervisor:
    """Runs everything that a configuration asks for."""

    def __init__(self, config: Config, watch: Watch = lambda progress: None) -> None:
        self._config = config
        self._watch = watch
        self._stop = threading.Event()
        self._capture = CaptureProcess(config)
        self._reader = JournalReader(JournalDirectory(config.journal.path))
        self._failure: BaseException | None = None
        self._watched_at = 0.0
        self._started_at = time.time()
        self._retained_at = time.monotonic()
        self.progress = RunProgress()

    def stop(self) -> None:
        """Ask for a clean end. May be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Run until stopped; raise what made it impossible to go on."""
        require_runnable(self._config)
        self._capture.start()
        try:
            self._run()
        finally:
            self._set_phase("stopping")
            self._capture.stop()

    def _run(self) -> None:
        self._capture.wait_until_streaming(stopping=self._stop.is_set)
        if self._stop.is_set():
            return
        # Spark takes seconds to import and start; by now it is clear that there is something to do for it.
        from pgtide.spark.pipeline import Pipeline
        from pgtide.spark.session import start_session
        from pgtide.spark.snapshot import Snapshot

        self._set_phase("starting Spark")
        session = start_session()
        try:
            self._pipelines = [Pipeline(session, self._config.journal, each) for each in self._config.pipelines]
            self._snapshot = Snapshot(session, self._config, self._stop.is_set)
            copying = threading.Thread(target=self._copy, name="snapshot", daemon=True)
            copying.start()
            for pipeline in self._pipelines:
                pipeline.start()
            try:
                self._set_phase("running")
                while not self._stop.wait(_TICK_SECONDS):
                    self._tick()
            finally:
                self._set_phase("stopping")
                self._stop.set()
                # A signal to the whole group may have ended the JVM before us; there is nothing to stop then.
                with contextlib.suppress(Py4JError, OSError):
                    for pipeline in self._pipelines:
                        pipeline.stop()
                copying.join(timeout=60)
        finally:
            with contextlib.suppress(Py4JError, OSError):
                session.stop()

    def _copy(self) -> None:
        """The first copy; it goes on where it was when a source that was away is back."""
        delays = backoff()
        while not self._stop.is_set():
            try:
                self._snapshot.run()
                return
            except BaseException as error:
                if verdict(error) is Verdict.STOP:
                    self._failure = error
                    return
            self._stop.wait(next(delays))

    def _tick(self) -> None:
        progress = self.progress
        progress.capture = self._capture.poll()
        for pipeline in self._pipelines:
            pipeline.poll()
            progress.applied[pipeline.name] = pipeline.applied_lsn
            progress.changes[pipeline.name] = pipeline.changes
        if self._failure is not None:
            raise self._failure
        progress.tables = sorted(self._snapshot.progress.values(), key=lambda each: each.table)
        self._measure_lag()
        self._watch(progress)
        if time.monotonic() - self._retained_at > _RETENTION_SECONDS:
            self._retained_at = time.monotonic()
            apply_retention(JournalDirectory(self._config.journal.path), self._config.journal.retention)

    def _measure_lag(self) -> None:
        """How far the slowest pipeline is behind the source."""
        head = self._reader.head()
        slowest = min(self.progress.applied.values(), default=head.commit_lsn)
        caught_up = slowest >= head.commit_lsn
        if time.monotonic() - self._watched_at > _WATCH_SECONDS:
            self._watched_at = time.monotonic()
            self.progress.wal_lsn = self._source_lsn() or self.progress.wal_lsn
        reached = max(head.restart_lsn, self.progress.capture.source_lsn) if caught_up else slowest
        self.progress.lag_bytes = max(0, self.progress.wal_lsn - reached)
        oldest = min((pipeline.commit_at_us for pipeline in self._pipelines), default=0) / 1e6
        self.progress.lag_seconds = 0.0 if caught_up else max(0.0, time.time() - (oldest or self._started_at))

    def _source_lsn(self) -> LSN | None:
        try:
            with connect(self._config.source) as connection, source_errors():
                return LSN.parse(one(connection, "select pg_current_wal_lsn()::text")[0])
        except PgtideError:
            # Capture notices a source that is away, and says so; lag is shown from what was last known.
            return None

    def _set_phase(self, phase: str) -> None:
        self.progress.phase = phase
        self._watch(self.progress)


def require_runnable(config: Config) -> None:
    """Everything that must hold before anything is started."""
    source = config.source
    for pipeline in config.pipelines:
        make_sink(pipeline.sink, pipeline.name).require_writable()
    with connect(source) as connection, source_errors():
        require_ready(connection, source)
        database = one(connection, "select current_database()")[0]
        require_usable(read_slot(connection, source.slot), source, database)
        require_ready(connection, source, set_up=True)
