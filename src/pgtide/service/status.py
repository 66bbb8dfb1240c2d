"""The state of everything, from the source, the journal and the consumers' files: no running process is asked.

Both of the source's LSNs come from one query, so lag is never negative.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from pgtide.config import Config
from pgtide.errors import PgtideError
from pgtide.journal import Consumers, Head, JournalDirectory, JournalReader
from pgtide.lsn import LSN
from pgtide.postgres.catalog import one
from pgtide.postgres.connection import connect, source_errors
from pgtide.postgres.control import read_slot
from pgtide.reading.progress import TableProgress, read_progress


@dataclass(frozen=True)
class SourceStatus:
    reachable: bool
    problem: str | None = None
    wal_lsn: LSN | None = None
    slot: str = ""
    slot_state: str = "missing"
    wal_status: str | None = None
    confirmed_flush_lsn: LSN | None = None
    held_bytes: int = 0
    safe_wal_size: int | None = None


@dataclass(frozen=True)
class JournalStatus:
    url: str
    exists: bool
    start_lsn: LSN | None = None
    end_lsn: LSN | None = None
    segments: int = 0
    size_bytes: int = 0
    synced_at: float | None = None


@dataclass(frozen=True)
class PipelineStatus:
    name: str
    applied_lsn: LSN | None
    lag_bytes: int | None
    lag_seconds: float | None
    changes: int = 0
    updated_at: float | None = None


@dataclass(frozen=True)
class TableStatus:
    table: str
    state: str
    rows: int
    estimated_rows: int
    chunks: int
    chunks_planned: int


@dataclass(frozen=True)
class Status:
    """All of it. `to_json` is the contract of `pgtide status --json`."""

    source: SourceStatus
    journal: JournalStatus
    pipelines: list[PipelineStatus] = field(default_factory=list)
    snapshot: list[TableStatus] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = _plain(asdict(self))
        return document


def read_status(config: Config) -> Status:
    """Look at everything once. A source that cannot be reached is a finding, not an error."""
    directory = JournalDirectory(config.journal.path)
    reader = JournalReader(directory)
    head = reader.head()
    source = read_source(config)
    progress = read_progress(directory) if directory.identity() is not None else {}
    return Status(
        source=source,
        journal=_journal(config, directory, reader, head),
        pipelines=[_pipeline(name.name, directory, head, source) for name in config.pipelines],
        snapshot=[_table(each) for each in sorted(progress.values(), key=lambda each: each.table)],
    )


def read_source(config: Config) -> SourceStatus:
    name = config.source.slot
    try:
        with connect(config.source) as connection, source_errors():
            wal = LSN.parse(one(connection, "select pg_current_wal_lsn()::text")[0])
            slot = read_slot(connection, name)
    except PgtideError as error:
        problem = f"{error.message} ({error.detail})" if error.detail else error.message
        return SourceStatus(False, problem=problem, slot=name, slot_state="unknown")
    if slot is None:
        return SourceStatus(True, wal_lsn=wal, slot=name)
    return SourceStatus(
        reachable=True,
        wal_lsn=wal,
        slot=name,
        slot_state="active" if slot.active_pid else "inactive",
        wal_status=slot.wal_status,
        confirmed_flush_lsn=slot.confirmed_flush_lsn,
        held_bytes=slot.held_bytes,
        safe_wal_size=slot.safe_wal_size,
    )


def _journal(config: Config, directory: JournalDirectory, reader: JournalReader, head: Head) -> JournalStatus:
    lsns = directory.segment_lsns()
    if not lsns:
        return JournalStatus(config.journal.url, exists=False)
    files = [*directory.segments.iterdir(), *(path for path in directory.chunks.rglob("*") if path.is_file())]
    return JournalStatus(
        url=config.journal.url,
        exists=True,
        start_lsn=lsns[0],
        end_lsn=head.restart_lsn,
        segments=len(lsns),
        size_bytes=sum(path.stat().st_size for path in files),
        synced_at=head.written_at_us / 1e6,
    )


def _pipeline(name: str, directory: JournalDirectory, head: Head, source: SourceStatus) -> PipelineStatus:
    consumer = Consumers(directory).load(name)
    if consumer is None:
        return PipelineStatus(name, None, None, None)
    caught_up = consumer.applied_lsn >= head.commit_lsn
    reached = head.restart_lsn if caught_up else consumer.applied_lsn
    lag = None if source.wal_lsn is None else max(0, source.wal_lsn - reached)
    behind = not caught_up or lag is None or lag > _IDLE_BYTES
    seconds = max(0.0, time.time() - consumer.commit_at_us / 1e6) if behind and consumer.commit_at_us else 0.0
    return PipelineStatus(name, consumer.applied_lsn, lag, seconds, consumer.changes, consumer.updated_at)


# WAL that holds nothing for us is noted every few seconds; less than this is not lag.
_IDLE_BYTES = 16 * 1024 * 1024


def _table(progress: TableProgress) -> TableStatus:
    planned = len(progress.started.chunks) if progress.started else 0
    state = "done" if progress.done else "copying" if progress.started else "waiting"
    return TableStatus(progress.table, state, progress.rows, progress.estimated_rows, len(progress.chunks), planned)


def _plain(value: Any) -> Any:
    """LSNs as text, everything else as JSON has it."""
    if isinstance(value, LSN):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
