"""Retention gives space back, and never what somebody still needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgtide.journal import Consumers, JournalDirectory, JournalReader, JournalWriter
from pgtide.journal.files import WholeFile
from pgtide.lsn import LSN
from pgtide.reading.retention import apply_retention
from tests.journal.blocks import IDENTITY, append, transaction

DAY = 86400.0


@pytest.fixture
def directory(tmp_path: Path) -> JournalDirectory:
    """Ten transactions, a segment each, all of them two days old."""
    directory = JournalDirectory(tmp_path)
    writer = JournalWriter(directory, IDENTITY, segment_size_bytes=400)
    for number in range(1, 11):
        append(writer, transaction(number, size=300))
    writer.sync()
    writer.close()
    for path in directory.segments.iterdir():
        os.utime(path, (path.stat().st_atime - 2 * DAY, path.stat().st_mtime - 2 * DAY))
    return directory


def test_without_consumers_nothing_goes(directory: JournalDirectory) -> None:
    assert apply_retention(directory, DAY) == []


def test_old_segments_that_every_consumer_has_applied_go(directory: JournalDirectory) -> None:
    before = directory.segment_lsns()
    Consumers(directory).save("fast", LSN(before[-1]))
    Consumers(directory).save("slow", LSN(before[4]))
    assert apply_retention(directory, DAY) == before[:4]
    assert directory.segment_lsns() == before[4:]
    reader = JournalReader(directory)
    assert reader.segment_start(LSN(before[4])) == before[4]


def test_young_segments_stay_even_if_everybody_has_applied_them(directory: JournalDirectory) -> None:
    before = directory.segment_lsns()
    Consumers(directory).save("fast", LSN(before[-1]))
    assert apply_retention(directory, 3 * DAY) == []


def test_the_newest_segment_never_goes(directory: JournalDirectory) -> None:
    before = directory.segment_lsns()
    Consumers(directory).save("fast", LSN(before[-1] + 10_000))
    assert apply_retention(directory, 0) == before[:-1]


def test_chunk_files_that_no_event_refers_to_yet_stay(directory: JournalDirectory) -> None:
    """A chunk is on disk before its watermark is in the journal."""
    path = directory.chunks / "snapshot" / "1-0-abc.chunk"
    with WholeFile(path, 1) as file:
        file.commit()
    Consumers(directory).save("fast", directory.segment_lsns()[-1])
    assert apply_retention(directory, DAY)
    assert path.exists()
