"""A disk without room: what was synced stays readable, and writing goes on as soon as there is room again."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pgtide.errors import JournalError, JournalFull
from pgtide.journal import JournalDirectory, JournalReader, JournalWriter
from tests.fixtures.disks import DISK_PAGES, PAGE_BYTES
from tests.journal.blocks import append, commit_of, frames_of, pieces, read_frames, segments, transaction, writer_at


def write_upto(writer: JournalWriter, last: int, *, sync_each: int = 1) -> None:
    """What capture does: go on behind the newest transaction that the journal has."""
    writer.go_back()
    for number in range(writer.head.commit_lsn // 100 + 1, last + 1):
        append(writer, *(pieces(number, 3, size=400) if number % 4 == 0 else [transaction(number, size=200)]))
        if number % sync_each == 0:
            writer.sync()
    writer.sync()


def expected(last: int) -> list[bytes]:
    frames = []
    for number in range(1, last + 1):
        frames += frames_of((number,), frames=6, size=400) if number % 4 == 0 else frames_of((number,), size=200)
    return frames


def test_a_full_disk_is_named_and_the_journal_stays_readable(small_disk):
    path = small_disk / "journal"
    writer = writer_at(path)
    with pytest.raises(JournalFull) as caught:
        write_upto(writer, 1000)
    assert "No space left" in (caught.value.detail or "")
    assert caught.value.hint
    synced = JournalReader(JournalDirectory(path)).head().commit_lsn // 100
    assert synced > 10
    assert read_frames(path) == expected(synced)
    with pytest.raises(JournalFull):
        write_upto(writer, 1000)
    writer.close()
    assert read_frames(path)[: len(expected(synced))] == expected(synced)


@pytest.mark.parametrize("free_pages", range(DISK_PAGES - 6))
@pytest.mark.parametrize("sync_each", [1, 7])
def test_writing_goes_on_when_there_is_room_again(small_disk, free_pages, sync_each):
    """Segments are rolled every few transactions, so the disk is full at every step of rolling too."""
    path = small_disk / "journal"
    writer = writer_at(path, segment_size_bytes=PAGE_BYTES)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((DISK_PAGES - 4 - free_pages) * PAGE_BYTES))
    with pytest.raises(JournalFull):
        write_upto(writer, 1000, sync_each=sync_each)
    with pytest.raises(JournalFull):
        write_upto(writer, 1000, sync_each=sync_each)
    synced = JournalReader(writer.directory).head().commit_lsn // 100
    assert read_frames(path) == expected(synced)
    ballast.unlink()
    room_for = writer.head.commit_lsn // 100 + 5
    write_upto(writer, room_for)
    assert read_frames(path) == expected(room_for)
    writer.close()
    again = writer_at(path)
    assert again.head.commit_lsn == commit_of(room_for)
    write_upto(again, room_for + 2)
    again.close()
    assert read_frames(path) == expected(room_for + 2)


@pytest.mark.parametrize("free_pages", range(6))
def test_a_journal_killed_on_a_full_disk_is_opened_again(small_disk, free_pages):
    path = small_disk / "journal"
    writer = writer_at(path, segment_size_bytes=PAGE_BYTES)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((DISK_PAGES - 4 - free_pages) * PAGE_BYTES))
    with pytest.raises(JournalFull):
        write_upto(writer, 1000)
    writer.close()
    ballast.unlink()
    again = writer_at(path)
    room_for = again.head.commit_lsn // 100 + 5
    write_upto(again, room_for)
    again.close()
    assert read_frames(path) == expected(room_for)


def test_a_new_journal_on_a_full_disk_is_a_named_error(small_disk):
    (small_disk / "ballast").write_bytes(bytes(DISK_PAGES * PAGE_BYTES))
    with pytest.raises(JournalFull):
        writer_at(small_disk / "journal")
    (small_disk / "ballast").unlink()
    writer = writer_at(small_disk / "journal")
    write_upto(writer, 3)
    writer.close()
    assert read_frames(small_disk / "journal") == expected(3)


def _write_against_a_limit(path: Path, limit: int) -> None:
    """Runs in a process of its own: no file may grow past the limit, as under `ulimit -f`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = writer_at(path)
    write_upto(writer, 2)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        write_upto(writer, 1000)
    except JournalError as error:
        print(error.detail)
    else:
        raise AssertionError("no limit was met")
    size = segments(path)[-1].stat().st_size
    assert read_frames(path) == expected(writer.head.commit_lsn // 100)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    write_upto(writer, 40)
    assert read_frames(path) == expected(40)
    assert size <= limit


@pytest.mark.parametrize("limit", [3000, 3001, 3500, 5003])
def test_a_file_that_may_not_grow_is_cut_back_to_its_last_block(tmp_path, limit):
    code = (
        "from pathlib import Path; from tests.journal.test_disk_full import _write_against_a_limit;"
        f"_write_against_a_limit(Path({str(tmp_path / 'journal')!r}), {limit})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert read_frames(tmp_path / "journal") == expected(40)
