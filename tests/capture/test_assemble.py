"""Frames to blocks: every frame once, in order, at the same position however the frames came in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.capture import assemble
from pgtide.capture.assemble import Assembler
from pgtide.errors import ProtocolError
from pgtide.frames import COUNTED, ENVELOPE_SIZE, TABLE_DESCRIPTION, Frames, Transaction, transactions
from pgtide.journal import Block, BlockFlag, BlockHeader, unpack_block
from pgtide.lsn import LSN, ZERO
from pgtide.pgoutput import Message, Origin, Relation
from pgtide.schema import Column, Table, TableName
from tests.fixtures.stream import (
    INT4,
    TEXT,
    SourceStream,
    delete,
    describing,
    frame,
    insert,
    relation_of,
    truncate,
    update,
)

BLOCK_SIZE = 400


def make_table(oid: int) -> Table:
    columns = (Column("id", INT4, key=True, attnum=1, not_null=True), Column("text", TEXT, attnum=2))
    return Table(oid, TableName("public", f"t{oid}"), columns, ("id",))


TABLES = (make_table(20001), make_table(20002), make_table(20003))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "BLOCK_SIZE_BYTES", BLOCK_SIZE)


class Position(NamedTuple):
    frame: bytes
    commit_lsn: int
    ordinal: int
    xid: int


@dataclass
class Written:
    """What came out of an assembler."""

    headers: list[BlockHeader] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def take(self, produced: Iterator[tuple[BlockHeader, bytes]]) -> None:
        for header, data in produced:
            self.headers.append(header)
            self.blocks.append(unpack_block(data, "here"))

    def positions(self) -> list[Position]:
        """Every frame but descriptions, with the place that a reader gives it."""
        found = []
        for block in self.blocks:
            frames = Frames.of(block.frames, block.lengths)
            header = block.header
            before = Transaction(header.commit_lsn, header.xid, header.committed_at_us, header.ordinal)
            columns = transactions(frames, before)
            for index, tag in enumerate(frames.tags.tolist()):
                if tag != TABLE_DESCRIPTION:
                    data = frames.buffer[frames.starts[index] : frames.ends[index]].tobytes()
                    place = (int(columns.commit_lsn[index]), int(columns.ordinal[index]), int(columns.xid[index]))
                    found.append(Position(data, *place))
        return found


class Sent(NamedTuple):
    """A stream: its frames, and where each belongs."""

    frames: list[bytes]
    positions: list[Position]
    ends: list[tuple[int, int]]  # of each transaction: commit LSN, end LSN


messages = st.one_of(
    st.builds(lambda t, k, n: insert(t, k, "x" * n), st.sampled_from(TABLES), st.integers(0, 99), st.integers(0, 150)),
    st.builds(lambda t, k: update(t, k, ...), st.sampled_from(TABLES), st.integers(0, 99)),
    st.builds(delete, st.sampled_from(TABLES), st.integers(0, 99)),
    st.builds(lambda tables: truncate(*tables), st.lists(st.sampled_from(TABLES), min_size=1, unique_by=id)),
    st.builds(lambda t: relation_of(t), st.sampled_from(TABLES)),
    st.builds(lambda n: Message(True, LSN(1), "pgtide", b"x" * n), st.integers(0, 50)),
    st.just(Origin(LSN(5), "elsewhere")),
)
sizes = st.one_of(st.integers(0, 4), st.integers(0, 4), st.integers(0, 40))


@st.composite
def streams(draw: st.DrawFn) -> Sent:
    source = SourceStream()
    frames: list[bytes] = []
    positions: list[Position] = []
    ends = []
    for _ in range(draw(st.integers(1, 8))):
        content = draw(sizes.flatmap(lambda size: st.lists(messages, min_size=size, max_size=size)))
        sent = source.transaction(*content)
        ordinal = 0
        for each in sent:
            positions.append(Position(each, source.commits[-1], ordinal, source.xid))
            ordinal += bool(COUNTED[each[ENVELOPE_SIZE]])
        frames += sent
        ends.append((source.commits[-1], source.lsn))
    return Sent(frames, positions, ends)


@st.composite
def splits(draw: st.DrawFn, sent: Sent) -> list[list[bytes]]:
    """The stream in batches as the socket may give them."""
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(sent.frames) - 1)), max_size=20)))
    return [sent.frames[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent.frames)], strict=True)]


def assembler(last_commit_lsn: LSN = ZERO, xid_ceiling: int = 700) -> Assembler:
    return Assembler(describing(*TABLES), last_commit_lsn, xid_ceiling)


def assembled(batches: list[list[bytes]]) -> tuple[Assembler, Written]:
    written = Written()
    one = assembler()
    for batch in batches:
        if batch:
            written.take(one.blocks(list(batch)))
    return one, written


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_frame_is_given_once_at_its_position_however_the_stream_is_split(data):
    sent = data.draw(streams())
    one, written = assembled(data.draw(splits(sent)))
    assert written.positions() == sent.positions
    assert not one.inside_transaction


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_blocks_say_what_they_hold(data):
    sent = data.draw(streams())
    _, written = assembled(data.draw(splits(sent)))
    committed = dict(sent.ends)
    for header, block in zip(written.headers, written.blocks, strict=True):
        frames = Frames.of(block.frames, block.lengths)
        tags = "".join(chr(tag) if tag != TABLE_DESCRIPTION else "-" for tag in frames.tags.tolist())
        flags = header.flags
        assert bool(flags & BlockFlag.CONTINUES) == (tags[0] != "B")
        assert bool(flags & BlockFlag.OPEN) == (tags[-1] != "C")
        assert bool(flags & BlockFlag.PIECE) == bool(flags & (BlockFlag.CONTINUES | BlockFlag.OPEN))
        assert not flags & BlockFlag.PIECE or tags.count("B") + tags.count("C") <= 2
        assert bool(flags & BlockFlag.SCHEMA) == ("R" in tags)
        assert bool(flags & BlockFlag.MESSAGE) == ("M" in tags)
        assert tags.count("-") == tags.count("R") == tags.count("R-")
        if header.whole:
            assert committed[header.last_commit_lsn] == header.restart_lsn
        assert header.newest_commit_lsn == (header.last_commit_lsn if header.whole else header.commit_lsn)
    commits = [header.last_commit_lsn for header in written.headers]
    assert commits == sorted(commits)
    assert commits[-1] == sent.ends[-1][0]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_directory_counts_the_frames_of_each_table(data):
    sent = data.draw(streams())
    _, written = assembled(data.draw(splits(sent)))
    total: dict[int, int] = {}
    for block in written.blocks:
        for oid, count in zip(block.keys.tolist(), block.directory["frames"].tolist(), strict=True):
            total[oid] = total.get(oid, 0) + count
    expected: dict[int, int] = {}
    for each in sent.frames:
        payload = each[ENVELOPE_SIZE:]
        oids: list[int] = []
        if payload[:1] in b"IUD":
            oids = [int.from_bytes(payload[1:5], "big")]
        elif payload[:1] == b"T":
            oids = [int.from_bytes(payload[at : at + 4], "big") for at in range(6, len(payload), 4)]
        for oid in oids:
            expected[oid] = expected.get(oid, 0) + 1
    assert total == expected


def test_a_small_transaction_is_held_back_until_its_commit_comes():
    source = SourceStream()
    frames = source.transaction(insert(TABLES[0], 1, "a"), insert(TABLES[0], 2, "b"))
    one, written = assembler(), Written()
    for each in frames[:-1]:
        written.take(one.blocks([each]))
        assert written.blocks == []
        assert one.inside_transaction
    written.take(one.blocks([frames[-1]]))
    assert len(written.blocks) == 1
    assert not one.inside_transaction


def test_a_large_transaction_comes_in_pieces_while_it_arrives():
    source = SourceStream()
    frames = source.transaction(*[insert(TABLES[0], number, "x" * 50) for number in range(60)])
    one, written = assembler(), Written()
    for at in range(0, len(frames), 5):
        written.take(one.blocks(frames[at : at + 5]))
    assert len(written.blocks) > 5
    assert [header.whole for header in written.headers] == [False] * (len(written.headers) - 1) + [True]
    ordinals = [position.ordinal for position in written.positions() if position.frame[ENVELOPE_SIZE] == ord("I")]
    assert ordinals == list(range(60))
    assert {header.commit_lsn for header in written.headers} == set(source.commits)


def test_a_description_that_was_held_back_is_not_asked_for_again():
    asked: list[Relation] = []
    source = SourceStream()

    def describe(relation: Relation) -> Table:
        asked.append(relation)
        return TABLES[0]

    frames = source.transaction(relation_of(TABLES[0]), insert(TABLES[0], 1, "a"), insert(TABLES[0], 2, "a"))
    one, written = Assembler(describe, ZERO, 700), Written()
    for each in frames:
        written.take(one.blocks([each]))
    assert len(asked) == 1
    assert [position.frame for position in written.positions()] == frames


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_transaction_that_the_journal_has_is_refused(again):
    source = SourceStream()
    sent = [source.transaction(insert(TABLES[0], number, "a")) for number in range(3)]
    one, written = assembler(), Written()
    for frames in sent:
        written.take(one.blocks(frames))
    with pytest.raises(ProtocolError, match="already has"):
        written.take(one.blocks(sent[again]))
    with pytest.raises(ProtocolError, match="already has"):
        Written().take(assembler(LSN(source.commits[-1])).blocks(sent[again]))
    assert len(written.blocks) == 3


def test_a_transaction_twice_in_one_batch_is_refused():
    source = SourceStream()
    first, second = (source.transaction(insert(TABLES[0], number, "a")) for number in range(2))
    for batch in ([*first, *first], [*first, *second, *second], [*first, *second, *first]):
        with pytest.raises(ProtocolError, match="already has"):
            Written().take(assembler().blocks(batch))


def test_a_large_transaction_that_the_journal_has_is_refused_at_its_first_piece():
    source = SourceStream()
    frames = source.transaction(*[insert(TABLES[0], number, "x" * 50) for number in range(60)])
    with pytest.raises(ProtocolError, match="already has"):
        Written().take(assembler(LSN(source.commits[0])).blocks(frames[:40]))


@pytest.mark.parametrize("ceiling", [2**32 - 3, 5 * 2**32 - 3, 2**32 * 1000 + 2**32 - 3])
def test_transaction_ids_are_followed_over_their_wrap(ceiling):
    source = SourceStream()
    one, written = assembler(xid_ceiling=ceiling), Written()
    expected: list[int] = []
    for step in (0, 2, 1, 5, -40, 6, 3):  # not in the order of their ids: they began earlier than they committed
        written.take(one.blocks(source.transaction(xid=ceiling + step)))
        expected.append(max([ceiling + step, ceiling, *expected]))
    assert [header.xid_ceiling for header in written.headers] == expected


def test_messages_outside_of_transactions_have_no_position_and_are_not_kept():
    """Anybody may write them, as heartbeats for one. They come between transactions, at once."""
    source = SourceStream()
    loose = frame(Message(False, LSN(1), "heartbeat", b"x" * 10))
    one, written = assembler(), Written()
    written.take(one.blocks([loose]))
    assert not one.inside_transaction
    first = source.transaction(insert(TABLES[0], 1, "a"))
    written.take(one.blocks([loose, *first, loose]))
    assert not one.inside_transaction
    second = source.transaction(insert(TABLES[0], 2, "a"), Message(True, LSN(2), "kept", b""))
    written.take(one.blocks([loose, loose, *second[:2]]))
    written.take(one.blocks([*second[2:], loose]))
    assert [position.frame for position in written.positions()] == [*first, *second]
    assert [header.commit_lsn for header in written.headers] == source.commits
    assert [header.xid_ceiling for header in written.headers] == [701, 702]
    assert not one.inside_transaction


def test_the_preamble_describes_tables_as_they_were_before_the_block():
    """A segment may begin with any block: its preamble must not be ahead of the block's frames."""
    old = TABLES[0]
    new = Table(old.oid, old.name, (*old.columns, Column("more", INT4, attnum=3)), old.key)
    one = Assembler(describing(old, new), ZERO, 700)
    source = SourceStream()
    batches = [
        source.transaction(relation_of(old), insert(old, 1, "a")),
        [*source.transaction(insert(old, 2, "a")), *source.transaction(relation_of(new), insert(new, 3, "a", 1))],
        source.transaction(insert(new, 4, "a", 1)),
    ]
    seen: list[list[Table]] = []
    for batch in batches:
        for _ in one.blocks(batch):
            seen.append([Table.from_json(each[ENVELOPE_SIZE + 1 :]) for each in one.preamble()])
    seen.append([Table.from_json(each[ENVELOPE_SIZE + 1 :]) for each in one.preamble()])
    assert seen == [[], [old], [new], [new]]
