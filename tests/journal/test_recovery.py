"""Opening a journal after the worst: nothing synced is lost, nothing torn is kept, and writing goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pgtide.errors import JournalCorrupt, JournalError
from pgtide.journal import JournalDirectory, JournalReader
from pgtide.journal.format import HEAD_SIZE, SEGMENT_HEADER_SIZE
from pgtide.journal.recovery import recover
from tests.journal.blocks import (
    IDENTITY,
    AppendedBlock,
    append,
    commit_of,
    end_of,
    frames_of,
    pieces,
    read_frames,
    segments,
    transaction,
    write_journal,
    writer_at,
)

PIECES = 3
# (blocks, how many transactions are whole after each block)
TAIL: list[tuple[AppendedBlock, int]] = [
    (transaction(1), 1),
    (transaction(2), 2),
    *[(piece, 3 if index == PIECES - 1 else 2) for index, piece in enumerate(pieces(3, PIECES))],
    (transaction(4), 4),
    *[(piece, 4) for piece in pieces(5, PIECES)[:-1]],
]


def frames_upto(number: int) -> list[bytes]:
    """What the first transactions of the tail hold."""
    frames = []
    for each in range(1, number + 1):
        frames += frames_of((each,), frames=2 * PIECES if each == 3 else 2)
    return frames


def unsynced_journal(path: Path) -> Path:
    """A journal whose writer was killed: its blocks are in the file, the head does not know of them."""
    writer = writer_at(path)
    append(writer, *[block for block, _ in TAIL])
    writer.close()
    return segments(path)[-1]


def test_a_file_cut_at_any_byte_keeps_exactly_its_whole_transactions(tmp_path):
    original = tmp_path / "original"
    segment = unsynced_journal(original)
    size = segment.stat().st_size
    whole_at = [0] * (size + 1)
    first = size - sum(len(block) for (_, block), _ in TAIL)
    offset = first
    for (_, block), whole in TAIL:
        offset += len(block)
        whole_at[offset:] = [whole] * (size + 1 - offset)
    for length in range(first, size + 1):
        path = tmp_path / "cut"
        shutil.copytree(original, path)
        with open(segments(path)[-1], "r+b") as file:
            file.truncate(length)
        whole = whole_at[length]
        writer = writer_at(path)
        assert writer.head.commit_lsn == commit_of(whole)
        assert writer.head.restart_lsn == end_of(whole)
        assert read_frames(path) == frames_upto(whole)
        append(writer, transaction(9))
        writer.sync()
        writer.close()
        assert read_frames(path) == [*frames_upto(whole), *frames_of((9,))]
        shutil.rmtree(path)


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"PGTB", b"PGTIDESG"])
def test_whatever_a_crash_left_behind_the_last_block_is_cut(tmp_path, filler):
    path = tmp_path / "journal"
    segment = unsynced_journal(path)
    with open(segment, "ab") as file:
        file.write(filler * 1000)
    writer = writer_at(path)
    append(writer, transaction(5))
    writer.sync()
    writer.close()
    assert read_frames(path) == [*frames_upto(4), *frames_of((5,))]


def test_recovery_says_how_much_it_cut_and_can_be_repeated(tmp_path):
    path = tmp_path / "journal"
    segment = unsynced_journal(path)
    cut = sum(len(block) for (_, block), _ in TAIL[-2:])
    directory = JournalDirectory(path)
    size = segment.stat().st_size
    recovered = recover(directory, IDENTITY.system_identifier)
    assert recovered.cut_bytes == cut
    assert segment.stat().st_size == size - cut
    again = recover(directory, IDENTITY.system_identifier)
    assert (again.head, again.xid_ceiling, again.cut_bytes) == (recovered.head, recovered.xid_ceiling, 0)


def test_a_flipped_bit_before_the_head_is_never_cut_away(tmp_path):
    original = tmp_path / "original"
    write_journal(original, [block for block, _ in TAIL[:-2]])
    size = segments(original)[-1].stat().st_size
    path = tmp_path / "damaged"
    shutil.copytree(original, path)
    segment = segments(path)[-1]
    whole = segment.read_bytes()
    preamble = SEGMENT_HEADER_SIZE + next(JournalReader(JournalDirectory(path)).walk(end_of(0))).header.size
    for position in range(size):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        segment.write_bytes(damaged)
        if SEGMENT_HEADER_SIZE <= position < preamble:
            continue  # everything behind it is unreadable too: see the test of the preamble
        with pytest.raises(JournalCorrupt):
            writer_at(path)
        assert segment.read_bytes() == damaged
    segment.write_bytes(whole)
    writer_at(path).close()
    assert read_frames(path) == frames_upto(4)


def test_a_damaged_preamble_is_never_cut_away_either(tmp_path):
    path = tmp_path / "journal"
    write_journal(path, [transaction(1), transaction(2)])
    segment = segments(path)[-1]
    damaged = bytearray(segment.read_bytes())
    damaged[SEGMENT_HEADER_SIZE + 30] ^= 4
    segment.write_bytes(damaged)
    with pytest.raises(JournalCorrupt):
        writer_at(path)
    assert segment.read_bytes() == damaged


def test_damage_behind_the_head_is_a_torn_tail(tmp_path):
    path = tmp_path / "journal"
    write_journal(path, [transaction(1), transaction(2)])
    writer = writer_at(path)
    append(writer, transaction(3), transaction(4))
    writer.close()
    segment = segments(path)[-1]
    damaged = bytearray(segment.read_bytes())
    damaged[-len(transaction(4)[1]) - 3] ^= 1
    segment.write_bytes(damaged)
    writer = writer_at(path)
    assert writer.head.commit_lsn == commit_of(2)
    writer.close()
    assert read_frames(path) == frames_of((1, 2))


@pytest.mark.parametrize("length", [0, 1, SEGMENT_HEADER_SIZE - 1])
def test_a_segment_that_was_just_begun_is_begun_again(tmp_path, length):
    """A crash while rolling: the new file has its name and not even a header."""
    path = tmp_path / "journal"
    write_journal(path, [transaction(1)])
    (path / "segments" / f"{end_of(1):016X}.seg").write_bytes(b"P" * length)
    writer = writer_at(path, segment_size_bytes=10)
    append(writer, transaction(2))
    writer.sync()
    writer.close()
    assert read_frames(path) == frames_of((1, 2))


def test_a_segment_whose_preamble_is_torn_is_gone_on_with(tmp_path):
    """A crash while rolling: the new file's length is known, its bytes are not all there."""
    original = tmp_path / "original"
    write_journal(original, [transaction(number) for number in (1, 2, 3)])
    writer = writer_at(original, segment_size_bytes=10)
    append(writer, transaction(4))
    writer.close()
    newest = segments(original)[-1]
    size = newest.stat().st_size - len(transaction(4)[1])
    for length in range(SEGMENT_HEADER_SIZE, size + 1):
        path = tmp_path / "cut"
        shutil.copytree(original, path)
        with open(segments(path)[-1], "r+b") as file:
            file.truncate(length)
        writer = writer_at(path)
        assert (writer.head.commit_lsn, writer.head.restart_lsn) == (commit_of(3), end_of(3))
        assert writer.xid_ceiling == 703
        append(writer, transaction(4))
        writer.sync()
        writer.close()
        assert read_frames(path) == frames_of((1, 2, 3, 4))
        shutil.rmtree(path)


def test_a_new_segment_full_of_zeros_is_begun_again(tmp_path):
    """A power cut while rolling: some file systems give a file its length before its bytes."""
    path = tmp_path / "journal"
    write_journal(path, [transaction(1)])
    (path / "segments" / f"{end_of(1):016X}.seg").write_bytes(bytes(4096))
    writer = writer_at(path, segment_size_bytes=10)
    append(writer, transaction(2))
    writer.sync()
    writer.close()
    assert read_frames(path) == frames_of((1, 2))


def test_a_removed_newest_segment_is_noticed_on_open(tmp_path):
    path = tmp_path / "journal"
    write_journal(path, [transaction(number) for number in range(1, 9)], segment_size_bytes=500)
    assert len(segments(path)) > 2
    segments(path)[-1].unlink()
    with pytest.raises(JournalCorrupt, match="ends before what was synced"):
        writer_at(path)


def test_all_segments_removed_is_noticed_on_open(tmp_path):
    path = tmp_path / "journal"
    write_journal(path, [transaction(1)])
    segments(path)[0].unlink()
    with pytest.raises(JournalCorrupt):
        writer_at(path)


def test_a_newest_segment_cut_before_the_head_is_noticed_on_open(tmp_path):
    original = tmp_path / "original"
    write_journal(original, [transaction(1), transaction(2), transaction(3)])
    size = segments(original)[0].stat().st_size
    for length in range(0, size, 7):
        path = tmp_path / "cut"
        shutil.copytree(original, path)
        with open(segments(path)[0], "r+b") as file:
            file.truncate(length)
        with pytest.raises(JournalError):
            writer_at(path)
        with pytest.raises(JournalError):
            writer_at(path)
        shutil.rmtree(path)


@pytest.mark.parametrize("head", [None, b"", b"torn", bytes(HEAD_SIZE)], ids=["missing", "empty", "torn", "zeros"])
def test_a_lost_head_is_found_again_from_the_segments(tmp_path, head):
    path = tmp_path / "journal"
    write_journal(path, [transaction(1), transaction(2)])
    if head is None:
        (path / "head").unlink()
    else:
        (path / "head").write_bytes(head)
    writer = writer_at(path)
    assert writer.head.commit_lsn == commit_of(2)
    writer.close()
    assert read_frames(path) == frames_of((1, 2))


def test_a_kill_between_any_two_steps_of_rolling_loses_nothing(tmp_path):
    """Segments are rolled all the time; the head may be one sync behind all of them."""
    path = tmp_path / "journal"
    write_journal(path, [transaction(1)], segment_size_bytes=300)
    head = (path / "head").read_bytes()
    writer = writer_at(path, segment_size_bytes=300)
    append(writer, transaction(2), *pieces(3, 2), transaction(4))
    writer.close()
    (path / "head").write_bytes(head)
    assert read_frames(path) == frames_of((1,))
    writer_at(path).close()
    assert read_frames(path) == [*frames_of((1, 2)), *frames_of((3,), frames=4), *frames_of((4,))]
