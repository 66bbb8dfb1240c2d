"""The journal's bytes: what is packed comes back, and no flipped bit goes unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.errors import JournalCorrupt
from pgtide.journal.format import (
    BLOCK_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    BlockFlag,
    BlockHeader,
    BlockKind,
    Head,
    SegmentHeader,
    pack_block,
    unpack_block,
    unpack_directory,
)
from pgtide.lsn import LSN
from tests.journal.blocks import transaction

lsns = st.integers(0, 2**64 - 1).map(LSN)
times = st.integers(-(2**63), 2**63 - 1)
flags = st.sets(st.sampled_from(list(BlockFlag))).map(lambda each: sum(each, BlockFlag.NONE))
headers = st.builds(
    BlockHeader,
    kind=st.sampled_from(list(BlockKind)),
    flags=flags,
    commit_lsn=lsns,
    ordinal=st.integers(0, 2**64 - 1),
    xid=st.integers(0, 2**32 - 1),
    committed_at_us=times,
    last_commit_lsn=lsns,
    restart_lsn=lsns,
    xid_ceiling=st.integers(0, 2**63 - 1),
    written_at_us=times,
)
directories = st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), max_size=5)


@given(headers, directories, st.lists(st.binary(max_size=20), max_size=5))
def test_a_block_comes_back(header, directory, frames):
    data = pack_block(header, directory, [len(frame) for frame in frames], b"".join(frames))
    block = unpack_block(data, "here")
    assert block.header.size == len(data)
    for name in ("kind", "flags", "commit_lsn", "ordinal", "xid", "committed_at_us", "restart_lsn", "xid_ceiling"):
        assert getattr(block.header, name) == getattr(header, name)
    assert block.header.frame_count == len(frames)
    assert block.lengths.tolist() == [len(frame) for frame in frames]
    assert block.frames.tobytes() == b"".join(frames)
    assert dict(zip(block.keys.tolist(), block.directory["frames"].tolist(), strict=True)) == directory
    assert unpack_directory(block.header, block.directory.tobytes(), "here") == directory


def test_every_flipped_bit_of_a_block_is_noticed():
    _, data = transaction(1)
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(JournalCorrupt):
            unpack_block(bytes(damaged), "here")


def test_a_block_that_is_cut_anywhere_is_noticed():
    _, data = transaction(1)
    for length in range(len(data)):
        with pytest.raises(JournalCorrupt):
            unpack_block(data[:length], "here")
    with pytest.raises(JournalCorrupt):
        unpack_block(data + b"\0", "here")


@given(st.integers(0, 2**64 - 1), lsns, times)
def test_a_segment_header_comes_back(system_identifier, start_lsn, created_at_us):
    header = SegmentHeader(system_identifier, start_lsn, created_at_us)
    assert len(header.pack()) == SEGMENT_HEADER_SIZE
    assert SegmentHeader.unpack(header.pack(), "here") == header


def test_every_flipped_bit_of_a_segment_header_is_noticed():
    data = SegmentHeader(1, LSN(2), 3).pack()
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(JournalCorrupt):
            SegmentHeader.unpack(bytes(damaged), "here")
    for length in range(len(data)):
        with pytest.raises(JournalCorrupt):
            SegmentHeader.unpack(data[:length], "here")


@given(lsns, st.integers(0, 2**63), lsns, lsns, times)
def test_a_head_comes_back(segment_lsn, offset, commit_lsn, restart_lsn, written_at_us):
    head = Head(segment_lsn, offset, commit_lsn, restart_lsn, written_at_us)
    assert Head.unpack(head.pack()) == head


def test_a_torn_head_is_none():
    data = Head(LSN(1), 2, LSN(3), LSN(4), 5).pack()
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        assert Head.unpack(bytes(damaged)) is None
    for length in range(len(data)):
        assert Head.unpack(data[:length]) is None


def test_another_format_version_is_named_as_such():
    _, data = transaction(1)
    with pytest.raises(JournalCorrupt) as caught:
        BlockHeader.unpack(data[:4] + b"\x09" + data[5:BLOCK_HEADER_SIZE], "here")
    assert "format version 9" in (caught.value.detail or "")
    assert "pgtide journal verify" in (caught.value.hint or "")
