"""Files that are written once and whole, consumers, and which segments may go."""

from __future__ import annotations

import os
import time

import pytest

from pgtide.errors import JournalCorrupt, JournalGap
from pgtide.journal import BlockKind, Consumers, JournalDirectory
from pgtide.journal.files import WholeFile, read_blocks
from pgtide.journal.retention import removable_segments
from pgtide.lsn import LSN
from tests.journal.blocks import IDENTITY, commit_of, segments, transaction, write_journal


def write_whole(path, *, commit=True):
    with WholeFile(path, IDENTITY.system_identifier) as file:
        file.append(BlockKind.SCHEMA, [b"the table"])
        file.append(BlockKind.ROWS, [b"one", memoryview(b"two")])
        file.append(BlockKind.ROWS, [b"three"])
        if commit:
            file.commit()
        return file.size


def test_a_whole_file_is_read_back(tmp_path):
    path = tmp_path / "chunks" / "a.chunk"
    size = write_whole(path)
    blocks = list(read_blocks(str(path)))
    assert [(block.header.kind, block.frames.tobytes(), block.lengths.tolist()) for block in blocks] == [
        (BlockKind.SCHEMA, b"the table", [9]),
        (BlockKind.ROWS, b"onetwo", [3, 3]),
        (BlockKind.ROWS, b"three", [5]),
    ]
    assert path.stat().st_size == size
    assert os.listdir(path.parent) == ["a.chunk"]


def test_a_file_has_no_name_before_it_is_whole(tmp_path):
    path = tmp_path / "chunks" / "a.chunk"
    write_whole(path, commit=False)
    assert os.listdir(path.parent) == []
    with pytest.raises(JournalGap):
        list(read_blocks(str(path)))


def test_writing_again_replaces_the_file_at_once(tmp_path):
    path = tmp_path / "a.chunk"
    write_whole(path)
    write_whole(path)
    assert len(list(read_blocks(str(path)))) == 3


def test_damage_in_a_whole_file_is_noticed(tmp_path):
    path = tmp_path / "a.chunk"
    write_whole(path)
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(JournalCorrupt):
            list(read_blocks(str(path)))


def test_consumers_are_remembered(tmp_path):
    consumers = Consumers(JournalDirectory(tmp_path))
    assert consumers.all() == []
    assert consumers.load("lake") is None
    assert consumers.slowest_lsn() is None
    consumers.save("lake", LSN(500), commit_at_us=7, changes=3)
    consumers.save("other", LSN(400))
    consumers.save("lake", LSN(600), commit_at_us=8, changes=4)
    found = consumers.load("lake")
    assert found is not None
    assert (found.applied_lsn, found.commit_at_us, found.changes) == (600, 8, 4)
    assert [each.name for each in consumers.all()] == ["lake", "other"]
    assert consumers.slowest_lsn() == 400


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "x" * 64, "é"])
def test_a_consumer_name_is_a_file_name(tmp_path, name):
    with pytest.raises(ValueError, match="consumer name"):
        Consumers(JournalDirectory(tmp_path)).save(name, LSN(1))


@pytest.mark.parametrize("content", ["", "{}", '{"applied_lsn": 5}', '{"applied_lsn": "x"}'])
def test_a_damaged_consumer_is_named(tmp_path, content):
    consumers = Consumers(JournalDirectory(tmp_path))
    consumers.save("lake", LSN(1))
    (tmp_path / "consumers" / "lake.json").write_text(content)
    with pytest.raises(JournalCorrupt):
        consumers.load("lake")


def test_a_segment_may_go_when_it_is_old_and_applied_by_all(tmp_path):
    path = tmp_path / "journal"
    write_journal(path, [transaction(number) for number in range(1, 12)], segment_size_bytes=500)
    directory, consumers = JournalDirectory(path), Consumers(JournalDirectory(path))
    lsns = directory.segment_lsns()
    assert removable_segments(directory, 0) == []
    consumers.save("fast", commit_of(100))
    assert removable_segments(directory, 3600) == []
    for each in segments(path):
        os.utime(each, (time.time() - 7200,) * 2)
    assert removable_segments(directory, 3600) == lsns[:-1]
    consumers.save("slow", lsns[2])
    assert removable_segments(directory, 3600) == lsns[:2]
    consumers.save("slower", LSN(lsns[1] - 1))
    assert removable_segments(directory, 3600) == []
