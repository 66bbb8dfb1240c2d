"""Giving space back: segments that nobody needs, and the chunk files that only they refer to."""

from __future__ import annotations

from pathlib import Path

from pgtide.journal import JournalDirectory
from pgtide.journal.layout import sync_directory
from pgtide.journal.retention import removable_segments
from pgtide.lsn import LSN
from pgtide.reading.plan import JournalView
from pgtide.snapshot.events import ChunkCopied


def apply_retention(directory: JournalDirectory, retention_seconds: float) -> list[LSN]:
    """Remove what may go; give the start LSNs of the segments that went."""
    removed = removable_segments(directory, retention_seconds)
    if not removed:
        return []
    before = _chunk_paths(directory)
    for lsn in removed:
        directory.segment(lsn).unlink()
    sync_directory(directory.segments)
    for path in before - _chunk_paths(directory):
        path.unlink(missing_ok=True)
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    return removed


def _chunk_paths(directory: JournalDirectory) -> set[Path]:
    """Chunk files that the journal's events refer to."""
    view = JournalView(directory)
    placed = view.events(view.reader.start_lsn(), view.end())
    return {directory.path / each.event.path for each in placed if isinstance(each.event, ChunkCopied)}
