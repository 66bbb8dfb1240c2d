"""Reading: never past the head, never around damage, also while another process writes."""

from __future__ import annotations

import multiprocessing
import shutil
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from pgtide.errors import JournalCorrupt, JournalError, JournalGap
from pgtide.journal import BlockFlag, BlockKind, JournalDirectory, JournalReader
from pgtide.journal.format import HEAD_SIZE, Head
from pgtide.lsn import LSN
from tests.fixtures.waiting import wait_until
from tests.journal.blocks import (
    OID,
    PREAMBLE,
    append,
    commit_of,
    end_of,
    frame,
    frames_of,
    pieces,
    read_frames,
    segments,
    transaction,
    write_journal,
    writer_at,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def read_table(path: Path) -> list[bytes]:
    """What a reader of one table does: it looks at headers and directories, and reads only what concerns it."""
    reader = JournalReader(JournalDirectory(path))
    found: list[bytes] = []
    for ref in reader.walk(reader.start_lsn()):
        wanted = ref.header.kind == BlockKind.STREAM and OID in ref.directory and ref.header.commit_lsn > 0
        if wanted or ref.header.flags & BlockFlag.SCHEMA:
            found.append(ref.read().frames.tobytes())
    return found


def test_no_flipped_bit_of_a_synced_block_changes_what_is_read(path):
    """Also where a reader looks at a header or directory only, to see whether a block concerns it."""
    write_journal(path, [transaction(1), *pieces(2, 2), transaction(3)])
    segment = segments(path)[0]
    whole = segment.read_bytes()
    expected = read_table(path)
    unnoticed = []
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        segment.write_bytes(damaged)
        try:
            same = read_table(path) == expected
        except JournalCorrupt:
            continue
        if not same:
            unnoticed.append(position)
    assert unnoticed == []


def test_a_flipped_bit_of_a_closed_segment_is_noticed_too(path):
    write_journal(path, [transaction(number) for number in range(1, 6)], segment_size_bytes=500)
    closed = segments(path)[1]
    whole = closed.read_bytes()
    expected = read_table(path)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x80 >> position % 8
        closed.write_bytes(damaged)
        try:
            assert read_table(path) == expected, f"byte {position}"
        except JournalCorrupt:
            continue


@pytest.mark.parametrize("which", [0, 1, 2, -1])
def test_a_removed_segment_is_noticed(path, which):
    write_journal(path, [transaction(number) for number in range(1, 12)], segment_size_bytes=500)
    assert len(segments(path)) >= 4
    reader = JournalReader(JournalDirectory(path))
    after = reader.start_lsn()
    segments(path)[which].unlink()
    with pytest.raises(JournalError):
        list(reader.blocks(after, commit_of(100)))


def test_segments_removed_from_the_beginning_are_a_gap_only_for_those_who_need_them(path):
    write_journal(path, [transaction(number) for number in range(1, 12)], segment_size_bytes=500)
    first, second = segments(path)[:2]
    first.unlink()
    start = LSN(int(second.stem, 16))
    reader = JournalReader(JournalDirectory(path))
    assert reader.start_lsn() == start
    with pytest.raises(JournalGap) as caught:
        list(reader.blocks(LSN(start - 1), commit_of(100)))
    assert str(start) in (caught.value.detail or "")
    assert list(reader.blocks(start, commit_of(100)))


def test_a_closed_segment_that_was_cut_is_noticed(path):
    write_journal(path, [transaction(number) for number in range(1, 12)], segment_size_bytes=500)
    closed = segments(path)[1]
    whole = closed.read_bytes()
    for length in range(len(whole)):
        closed.write_bytes(whole[:length])
        with pytest.raises(JournalError):
            read_table(path)


class TornTwice(JournalDirectory):
    """A journal whose head is in the middle of being written the first two times that somebody looks."""

    looks = 0

    @property
    def head(self) -> Path:
        self.looks += 1
        return self.path / {1: "torn", 2: "short"}.get(self.looks, "head")


def test_a_torn_head_is_read_again(path):
    write_journal(path, [transaction(1)])
    old = (path / "head").read_bytes()
    new = Head(end_of(0), 2**40, commit_of(7), end_of(7), 9).pack()
    (path / "torn").write_bytes(new[:30] + old[30:])
    (path / "short").write_bytes(new[:30])
    directory = TornTwice(path)
    assert JournalReader(directory).head() == Head.unpack(old)
    assert directory.looks == 3


def test_a_head_that_stays_unreadable_is_named(path):
    write_journal(path, [transaction(1)])
    (path / "head").write_bytes(b"\1" * HEAD_SIZE)
    with pytest.raises(JournalCorrupt, match="head"):
        JournalReader(JournalDirectory(path)).head()


def test_an_index_of_old_segments_is_let_go(path):
    write_journal(path, [transaction(number) for number in range(1, 12)], segment_size_bytes=500)
    reader = JournalReader(JournalDirectory(path))
    everything = [ref.offset for ref in reader.walk(reader.start_lsn())]
    reader.forget_before(commit_of(8))
    assert [ref.offset for ref in reader.walk(reader.start_lsn())] == everything
    assert [ref.header.commit_lsn for ref in reader.blocks(commit_of(8), commit_of(10))] == [900, 1000]


def test_a_block_tells_its_tables_without_being_read(path):
    write_journal(path, [transaction(1, frames=3)])
    (ref,) = JournalReader(JournalDirectory(path)).blocks(end_of(0), commit_of(1))
    assert ref.directory == {OID: 3}
    assert (ref.header.frame_count, ref.header.commit_lsn) == (3, commit_of(1))


def test_a_large_directory_is_read_whole(path):
    from dataclasses import replace

    from pgtide.journal import pack_block

    directory = {OID + index: 1 for index in range(500)}
    header, _ = transaction(1)
    block = pack_block(header, directory, [1] * 500, b"x" * 500)
    write_journal(path, [(replace(header), block)])
    (ref,) = JournalReader(JournalDirectory(path)).blocks(end_of(0), commit_of(1))
    assert ref.directory == directory


LAST = 400


def _write_steadily(path: Path, stop: Event) -> None:
    """A writer in a process of its own: transactions of all sizes, synced now and then, segments rolled often."""
    writer = writer_at(path, segment_size_bytes=4000)
    for number in range(1, LAST + 1):
        blocks = pieces(number, 4, size=60) if number % 5 == 0 else [transaction(number)]
        for block in blocks:
            append(writer, block)
            if number % 3 == 0:
                writer.sync()
    writer.sync()
    stop.wait(30)
    writer.close()


def expected_frames(upto: int) -> list[bytes]:
    return [
        frame(number, ordinal, 60 if number % 5 == 0 else 8)
        for number in range(1, upto + 1)
        for ordinal in range(8 if number % 5 == 0 else 2)
    ]


def test_a_reader_follows_a_writer_in_another_process(path):
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    writer = context.Process(target=_write_steadily, args=(path, stop))
    writer.start()
    try:
        reader = JournalReader(JournalDirectory(path))
        seen: list[bytes] = []
        ends = [LSN(0)]
        wait_until(lambda: reader.head().restart_lsn, describe="the writer has begun")
        ends[0] = reader.start_lsn()

        def follow() -> bool:
            end = reader.head().commit_lsn
            if end > ends[-1]:
                for ref in reader.blocks(ends[-1], end):
                    block = ref.read()
                    data, position = block.frames.tobytes(), 0
                    for length in block.lengths.tolist():
                        seen.append(data[position : position + length])
                        position += length
                ends.append(end)
                assert seen == expected_frames(end // 100)
            return end == commit_of(LAST)

        wait_until(follow, timeout_seconds=60)
        assert len(ends) > 3
        assert len(segments(path)) > 5
    finally:
        stop.set()
        writer.join(10)
        writer.kill()
    assert read_frames(path) == expected_frames(LAST)


def test_every_segment_begins_with_the_preamble(path):
    write_journal(path, [transaction(number) for number in range(1, 12)], segment_size_bytes=500)
    reader = JournalReader(JournalDirectory(path))
    firsts: dict[str, bytes] = {}
    for ref in reader.walk(reader.start_lsn()):
        firsts.setdefault(ref.path, ref.read().frames.tobytes())
    assert set(firsts.values()) == {b"".join(PREAMBLE)}
    assert len(firsts) == len(segments(path))


def test_a_copy_of_a_journal_reads_the_same(path, tmp_path):
    write_journal(path, [transaction(number) for number in range(1, 12)], segment_size_bytes=500)
    shutil.copytree(path, tmp_path / "copy")
    assert read_frames(tmp_path / "copy") == frames_of(range(1, 12))
