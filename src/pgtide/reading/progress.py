"""How far the first copies of tables are, as the journal tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pgtide.journal import JournalDirectory
from pgtide.journal.layout import read_json, write_json
from pgtide.lsn import LSN, ZERO
from pgtide.reading.plan import JournalView
from pgtide.snapshot.events import ChunkCopied, SnapshotDone, SnapshotStarted


@dataclass
class TableProgress:
    """How far a table's copy is. `first_chunk_lsn`: whoever has applied it has some of the table."""

    table: str
    oid: int
    started: SnapshotStarted | None = None
    chunks: dict[int, ChunkCopied] = field(default_factory=dict)
    done: bool = False
    first_chunk_lsn: LSN = ZERO

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks.values())

    @property
    def estimated_rows(self) -> int:
        return self.started.estimated_rows if self.started else 0

    @property
    def missing(self) -> list[int]:
        planned = len(self.started.chunks) if self.started else 0
        return [chunk for chunk in range(planned) if chunk not in self.chunks]


def read_progress(directory: JournalDirectory, view: JournalView | None = None) -> dict[int, TableProgress]:
    """Every table's progress, from the journal and from what was kept of segments that retention has removed."""
    progress = {each.oid: each for each in _kept(directory)}
    view = view or JournalView(directory)
    start = view.reader.start_lsn()
    for placed in view.events(start, view.end()) if start else ():
        event = placed.event
        if isinstance(event, SnapshotStarted):
            progress[event.oid] = TableProgress(event.table, event.oid, event)
        elif isinstance(event, ChunkCopied) and _current(progress, event):
            table = progress[event.oid]
            table.chunks[event.chunk] = event
            table.first_chunk_lsn = table.first_chunk_lsn or placed.commit_lsn
        elif isinstance(event, SnapshotDone) and _current(progress, event):
            progress[event.oid].done = True
    return progress


def _current(progress: dict[int, TableProgress], event: ChunkCopied | SnapshotDone) -> bool:
    """An event of a copy that was begun again does not count."""
    known = progress.get(event.oid)
    return known is not None and known.started is not None and known.started.snapshot == event.snapshot


def _kept(directory: JournalDirectory) -> Iterable[TableProgress]:
    document = read_json(directory.path / "snapshots.json") or {}
    for oid, name in document.get("done", {}).items():
        yield TableProgress(name, int(oid), done=True)


def keep_progress(directory: JournalDirectory, progress: Iterable[TableProgress]) -> None:
    """Remember which tables are done, for when retention has removed the segments that say so."""
    # A copy: other tables are being begun meanwhile.
    done = {str(each.oid): each.table for each in list(progress) if each.done}
    write_json(directory.path / "snapshots.json", {"done": done})
