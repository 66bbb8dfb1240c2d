"""Appending: what is synced is there for readers, whole transactions at a time, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgtide.errors import JournalError, JournalInUse, SourceMismatch
from pgtide.journal import BlockKind, Identity, JournalDirectory, JournalReader, JournalWriter
from pgtide.journal.format import SEGMENT_HEADER_SIZE
from pgtide.lsn import LSN
from tests.journal.blocks import (
    IDENTITY,
    PREAMBLE,
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_what_is_synced_is_read_back_in_order(path):
    write_journal(path, [transaction(number) for number in (1, 2, 3)])
    assert read_frames(path) == frames_of((1, 2, 3))
    assert read_frames(path, after=1) == frames_of((2, 3))
    assert read_frames(path, after=1, upto=2) == frames_of((2,))
    assert read_frames(path, after=3) == []


def test_an_empty_journal_has_nothing_and_says_so(path):
    reader = JournalReader(JournalDirectory(path))
    assert reader.head().offset == 0
    writer = JournalWriter(JournalDirectory(path), IDENTITY)
    assert writer.empty
    assert list(reader.walk(LSN(0))) == []
    assert read_frames(path) == []
    writer.close()


def test_nothing_is_seen_before_it_is_synced(path):
    writer = writer_at(path)
    append(writer, transaction(1))
    assert read_frames(path) == []
    assert writer.sync().commit_lsn == commit_of(1)
    append(writer, transaction(2))
    assert read_frames(path) == frames_of((1,))
    assert JournalReader(writer.directory).head().commit_lsn == commit_of(1)
    writer.sync()
    assert read_frames(path) == frames_of((1, 2))
    writer.close()


def test_an_open_transaction_is_not_seen_even_when_synced(path):
    writer = writer_at(path)
    append(writer, transaction(1))
    *first, last = pieces(2, 4)
    append(writer, *first)
    head = writer.sync()
    assert (head.commit_lsn, head.restart_lsn) == (commit_of(1), end_of(1))
    assert read_frames(path) == frames_of((1,))
    append(writer, last)
    assert writer.sync().commit_lsn == commit_of(2)
    assert read_frames(path) == [*frames_of((1,)), *frames_of((2,), frames=8)]
    writer.close()


def test_an_open_transaction_can_be_cut_and_sent_again(path):
    writer = writer_at(path)
    append(writer, transaction(1), *pieces(2, 3)[:2])
    writer.sync()
    writer.go_back()
    writer.go_back()
    append(writer, *pieces(2, 3), transaction(3))
    writer.sync()
    assert read_frames(path) == [*frames_of((1,)), *frames_of((2,), frames=6), *frames_of((3,))]
    writer.close()


def test_a_segment_is_closed_only_between_transactions(path):
    blocks = [transaction(1), *pieces(2, 5, size=100), transaction(3), *pieces(4, 2, size=300), transaction(5)]
    write_journal(path, blocks, segment_size_bytes=600)
    reader = JournalReader(JournalDirectory(path))
    names = [int(each.stem, 16) for each in segments(path)]
    assert len(names) >= 3
    for number, lsn in enumerate(names):
        walked = [ref for ref in reader.walk(LSN(lsn)) if ref.path == str(segments(path)[number])]
        assert walked[0].header.kind == BlockKind.SCHEMA
        assert walked[0].offset == SEGMENT_HEADER_SIZE
        preamble = walked[0].read()
        assert preamble.frames.tobytes() == b"".join(PREAMBLE)
        assert preamble.lengths.tolist() == [len(each) for each in PREAMBLE]
        assert not walked[1].header.flags & walked[1].header.flags.CONTINUES
        assert walked[-1].header.whole
    assert read_frames(path) == [
        *frames_of((1,)),
        *frames_of((2,), frames=10, size=100),
        *frames_of((3,)),
        *frames_of((4,), frames=4, size=300),
        *frames_of((5,)),
    ]


def test_a_segment_is_named_by_the_end_of_the_one_before(path):
    write_journal(path, [transaction(number) for number in range(1, 9)], segment_size_bytes=500)
    reader = JournalReader(JournalDirectory(path))
    by_segment: dict[str, LSN] = {}
    for ref in reader.walk(LSN(0)):
        by_segment[ref.path] = ref.header.restart_lsn
    ends = list(by_segment.values())
    starts = [int(each.stem, 16) for each in segments(path)]
    assert starts[1:] == ends[:-1]


def test_every_position_is_found_across_segments(path):
    write_journal(path, [transaction(number) for number in range(1, 30)], segment_size_bytes=700)
    assert len(segments(path)) > 5
    for after in range(1, 30):
        for upto in (after, after + 1, after + 7, 40):
            expected = frames_of(range(after + 1, min(upto, 29) + 1))
            assert read_frames(path, after=after, upto=upto) == expected


def test_an_idle_source_is_noted_and_never_moves_back(path):
    writer = writer_at(path)
    assert writer.advance(LSN(1000)).restart_lsn == 1000
    assert not writer.empty
    assert writer.advance(LSN(900)).restart_lsn == 1000
    assert writer.advance(LSN(2000)).restart_lsn == 2000
    writer.close()
    again = writer_at(path)
    assert (again.head.restart_lsn, again.head.commit_lsn) == (2000, 0)
    assert read_frames(path) == []
    again.close()


def test_advancing_drops_an_open_transaction(path):
    writer = writer_at(path)
    append(writer, transaction(1), *pieces(2, 3)[:2])
    writer.advance(LSN(180))
    append(writer, *pieces(2, 3))
    writer.sync()
    assert read_frames(path) == [*frames_of((1,)), *frames_of((2,), frames=6)]
    writer.close()


def test_a_reopened_journal_goes_on_where_it_was(path):
    expected = []
    for number in range(1, 12):
        writer = writer_at(path, segment_size_bytes=600)
        assert writer.head.commit_lsn == commit_of(number - 1)
        assert writer.head.restart_lsn == end_of(number - 1)
        assert writer.xid_ceiling == (700 + number - 1 if number > 1 else 0)
        append(writer, transaction(number))
        writer.sync()
        writer.close()
        expected += frames_of((number,))
        assert read_frames(path) == expected


def test_the_highest_transaction_id_never_falls(path):
    header, block = transaction(50)
    write_journal(path, [(header, block)])
    writer = writer_at(path)
    writer.advance(LSN(100_000))
    writer.close()
    again = writer_at(path)
    assert again.xid_ceiling == 750
    again.close()


def test_a_second_writer_is_refused_and_told_who_has_it(path):
    writer = writer_at(path)
    with pytest.raises(JournalInUse) as caught:
        writer_at(path)
    assert str(os.getpid()) in (caught.value.detail or "")
    append(writer, transaction(1))
    writer.sync()
    writer.close()
    writer_at(path).close()
    assert read_frames(path) == frames_of((1,))


@pytest.mark.parametrize(
    "other",
    [
        Identity(IDENTITY.system_identifier + 1, "shop", "pgtide_shop"),
        Identity(IDENTITY.system_identifier, "other", "pgtide_shop"),
        Identity(IDENTITY.system_identifier, "shop", "another"),
    ],
)
def test_a_journal_of_another_source_is_refused_and_left_alone(path, other):
    write_journal(path, [transaction(1)])
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    with pytest.raises(SourceMismatch) as caught:
        JournalWriter(JournalDirectory(path), other)
    assert "shop" in (caught.value.detail or "")
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


def test_segments_of_another_system_are_refused(path, tmp_path):
    write_journal(path, [transaction(1)])
    foreign = Identity(1, "shop", "pgtide_shop")
    writer = JournalWriter(JournalDirectory(tmp_path / "other"), foreign)
    writer.advance(LSN(10**6))
    writer.close()
    stray = segments(tmp_path / "other")[0]
    stray.rename(path / "segments" / stray.name)
    with pytest.raises(SourceMismatch):
        writer_at(path)


def test_files_are_for_their_owner_alone(path):
    write_journal(path, [transaction(1)])
    for each in path.rglob("*"):
        assert each.stat().st_mode & 0o077 == 0, each


def test_a_journal_that_cannot_be_made_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError) as caught:
        writer_at(tmp_path / "file" / "journal")
    assert caught.value.hint


def test_a_journal_of_a_newer_format_is_refused(path):
    write_journal(path, [transaction(1)])
    document = (path / "journal.json").read_text().replace('"format_version": 1', '"format_version": 2')
    (path / "journal.json").write_text(document)
    with pytest.raises(JournalError, match="format"):
        writer_at(path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format_version": 1}', '{"format_version": 1, "x": 2}'])
def test_an_unreadable_identity_is_named(path, content):
    write_journal(path, [transaction(1)])
    (path / "journal.json").write_text(content)
    with pytest.raises(JournalError):
        writer_at(path)


def test_what_was_appended_but_never_synced_can_be_taken_back(path):
    writer = writer_at(path, segment_size_bytes=400)
    append(writer, transaction(1))
    writer.sync()
    append(writer, transaction(2, size=600), transaction(3, size=600), *pieces(4, 3)[:1])
    assert writer.head.commit_lsn == commit_of(3)
    writer.go_back()
    assert writer.head.commit_lsn == commit_of(1)
    append(writer, transaction(2), transaction(3))
    writer.sync()
    assert read_frames(path) == [*frames_of((1,)), *frames_of((2,)), *frames_of((3,))]
    writer.close()


def test_a_segment_that_has_only_its_descriptions_is_not_full(path):
    write_journal(path, [transaction(number) for number in range(1, 6)], segment_size_bytes=10)
    assert read_frames(path) == [frame for number in range(1, 6) for frame in frames_of((number,))]
