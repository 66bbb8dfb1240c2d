"""From frames through blocks and segments to rows: plans find everything between two positions, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pgtide.capture import assemble
from pgtide.capture.assemble import Assembler
from pgtide.errors import JournalCorrupt, JournalGap
from pgtide.frames import message_prefix, table_description
from pgtide.journal import BlockKind, Identity, JournalDirectory, JournalWriter
from pgtide.journal.files import WholeFile
from pgtide.lsn import LSN
from pgtide.pgoutput import AnyMessage, Message
from pgtide.reading.changes import CREATE, DELETE, TRUNCATE
from pgtide.reading.compact import compact
from pgtide.reading.plan import JournalView
from pgtide.reading.read import read_changes
from pgtide.schema import Column, Table
from pgtide.snapshot.events import Barrier, ChunkCopied, Event, dump_event
from tests.columns.building import copy_tuple
from tests.fixtures.stream import (
    INT4,
    TEXT,
    SourceStream,
    delete,
    describing,
    insert,
    relation_of,
    truncate,
    update,
)
from tests.reading.captured import Told, told_by
from tests.reading.model import ONE_KEY, TWO_KEYS, Change, Key, Row, State, apply_compacted
from tests.reading.test_chunks import FIRST_XID, Schedule

IDENTITY = Identity(1, "shop", "the_slot")
PREFIX = message_prefix(IDENTITY.slot)
BLOCK_SIZE = 300
SEGMENT_SIZE = 2500


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "BLOCK_SIZE_BYTES", BLOCK_SIZE)


class Recorder:
    """Puts a stream into a journal, as capture does."""

    def __init__(self, path: Path, *tables: Table, xid: int = 700) -> None:
        self.source = SourceStream(xid=xid)
        self._assembler = Assembler(describing(*tables), LSN(0), xid)
        self.journal = JournalWriter(
            JournalDirectory(path), IDENTITY, segment_size_bytes=SEGMENT_SIZE, preamble=self._assembler.preamble
        )
        self.journal.advance(LSN(self.source.lsn))
        self.view = JournalView(JournalDirectory(path))

    def write(self, frames: Sequence[bytes]) -> LSN:
        """One batch off the wire; gives the last commit."""
        for header, block in self._assembler.blocks(frames):
            self.journal.append(header, block)
        return self.journal.sync().commit_lsn

    def transaction(self, *messages: AnyMessage, xid: int | None = None) -> LSN:
        return self.write(self.source.transaction(*messages, xid=xid))

    def event(self, event: Event, prefix: str = PREFIX) -> LSN:
        return self.write(self.source.event(json.dumps(dump_event(event)).encode(), prefix))

    def chunk(self, table: Table, rows: Iterable[tuple[Key, Row]], visible: str, number: int = 0) -> ChunkCopied:
        """A chunk's file, and the event that is its watermark."""
        relative = f"chunks/{table.oid}-{number}.chunk"
        with WholeFile(self.journal.directory.path / relative, IDENTITY.system_identifier) as file:
            file.append(BlockKind.SCHEMA, [table_description(table.to_json())])
            tuples = [copy_tuple(copy_cells(table, *row)) for row in rows]
            if tuples:
                file.append(BlockKind.ROWS, tuples)
            file.commit()
            return ChunkCopied("s", str(table.name), table.oid, number, relative, len(tuples), file.size, visible)


def copy_cells(table: Table, key: Key, row: Row) -> list[bytes | None]:
    return [_cell(column, value) for column, value in zip(table.columns, in_columns(table, key, row), strict=True)]


def _cell(column: Column, value: Any) -> bytes | None:
    if value is None:
        return None
    data: bytes = value.to_bytes(4, "big", signed=True) if column.type_oid == INT4 else value.encode()
    return data


def in_columns(table: Table, key: Key, row: Row) -> list[Any]:
    """Key and row in the order of the table's columns."""
    keys, rest = dict(zip(table.key, key, strict=True)), iter(row)
    return [keys[column.name] if column.name in keys else next(rest) for column in table.columns]


def message_of(table: Table, change: Change) -> AnyMessage:
    if change.op == TRUNCATE:
        return truncate(table)
    in_order = [column.name for column in table.columns if column.key]
    if change.op == DELETE:
        return delete(table, *(dict(zip(table.key, change.key, strict=True))[name] for name in in_order))
    values = in_columns(table, change.key, change.row)
    if change.op == CREATE:
        return insert(table, *values)
    old = [] if change.old is None else [dict(zip(table.key, change.old, strict=True))[name] for name in in_order]
    return update(table, *values, old_key=old)


def read_between(view: JournalView, oid: int, after: LSN, upto: LSN) -> list[Told]:
    plan = view.plan(after, upto)
    return [told for run in read_changes(plan.tables[oid]) for told in told_by(run)] if oid in plan.tables else []


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_finds_the_changes_between_any_two_positions(tmp_path, small_blocks, seed):
    random_ = random.Random(seed)
    recorder = Recorder(tmp_path, ONE_KEY, TWO_KEYS)
    start = LSN(recorder.source.lsn)
    expected: list[tuple[LSN, Told]] = []
    announced: set[int] = set()
    for number in range(60):
        messages: list[AnyMessage] = []
        told = []
        for index in range(random_.choice([0, 1, 1, 2, 30])):
            table = random_.choice([ONE_KEY, TWO_KEYS])
            if table.oid not in announced or random_.random() < 0.05:
                announced.add(table.oid)
                messages.append(relation_of(table))
            values = in_columns(table, (number, "x")[: len(table.key)], (index, "a" * random_.randrange(40), None))
            messages.append(insert(table, *values))
            if table is ONE_KEY:
                told.append(Told("c", tuple(values)))
        commit = recorder.transaction(*messages)
        expected += [(commit, each) for each in told]
    assert len(recorder.journal.directory.segment_lsns()) > 3
    commits = [start, *(LSN(each) for each in recorder.source.commits)]
    for _ in range(40):
        after, upto = sorted(random_.sample(commits, 2))
        wanted = [told for commit, told in expected if after < commit <= upto]
        assert read_between(JournalView(recorder.journal.directory), ONE_KEY.oid, after, upto) == wanted
        assert read_between(recorder.view, ONE_KEY.oid, after, upto) == wanted


def test_limits_cut_the_journal_into_batches_that_miss_nothing(tmp_path, small_blocks):
    recorder = Recorder(tmp_path, ONE_KEY)
    start = LSN(recorder.source.lsn)
    recorder.transaction(relation_of(ONE_KEY))
    for number in range(40):
        recorder.transaction(*[insert(ONE_KEY, number * 100 + i, i, "x", "y") for i in range(number % 13)])
    everything = read_between(recorder.view, ONE_KEY.oid, start, recorder.view.end())
    for max_bytes in (1, 500, 2000, 10**9):
        found, after = [], start
        rounds = 0
        while after < recorder.view.end():
            upto = recorder.view.limit(after, max_bytes)
            assert after < upto <= recorder.view.end()
            found += read_between(recorder.view, ONE_KEY.oid, after, upto)
            after = upto
            rounds += 1
        assert found == everything
        assert rounds == 1 if max_bytes == 10**9 else rounds > 3
    assert recorder.view.limit(recorder.view.end(), 1) == recorder.view.end()


def test_a_table_altered_just_before_a_segment_begins_is_read_under_the_version_it_had(tmp_path):
    """The new version's description must not be ahead of the rows of the old one."""
    old = ONE_KEY
    new = Table(old.oid, old.name, (*old.columns[:2], Column("other", INT4), *old.columns[2:]), old.key)
    recorder = Recorder(tmp_path, old, new)
    source, start = recorder.source, LSN(recorder.source.lsn)
    recorder.transaction(relation_of(old), insert(old, 1, 1, "a" * SEGMENT_SIZE, "b"))
    under_old = source.transaction(insert(old, 2, 2, "a", "b"))
    recorder.write([*under_old, *source.transaction(relation_of(new), insert(new, 3, 3, 9, "a", "b"))])
    assert len(recorder.journal.directory.segment_lsns()) == 2
    rows = [told.row for told in read_between(recorder.view, old.oid, start, recorder.view.end())]
    assert rows == [(1, 1, "a" * SEGMENT_SIZE, "b"), (2, 2, "a", "b"), (3, 3, 9, "a", "b")]
    second = [told.row for told in read_between(recorder.view, old.oid, LSN(source.commits[0]), recorder.view.end())]
    assert second == rows[1:]


def test_a_table_is_known_in_a_segment_that_does_not_announce_it(tmp_path):
    recorder = Recorder(tmp_path, ONE_KEY)
    recorder.transaction(relation_of(ONE_KEY), insert(ONE_KEY, 0, 0, "a", "b"))
    for number in range(1, 40):
        recorder.transaction(insert(ONE_KEY, number, 0, "a" * 200, "b"))
    lsns = recorder.journal.directory.segment_lsns()
    assert len(lsns) > 3
    for lsn in lsns[:-1]:
        recorder.journal.directory.segment(lsn).unlink()
    view = JournalView(recorder.journal.directory)
    assert read_between(view, ONE_KEY.oid, lsns[-1], view.end())


def test_a_table_that_nobody_described_is_an_error(tmp_path):
    recorder = Recorder(tmp_path, ONE_KEY)
    recorder.transaction(insert(ONE_KEY, 1, 1, "a", "b"))
    with pytest.raises(JournalCorrupt, match="does not describe"):
        read_between(recorder.view, ONE_KEY.oid, recorder.view.reader.start_lsn(), recorder.view.end())


def test_a_position_that_retention_has_removed_is_a_gap(tmp_path):
    recorder = Recorder(tmp_path, ONE_KEY)
    start = LSN(recorder.source.lsn)
    recorder.transaction(relation_of(ONE_KEY))
    for number in range(40):
        recorder.transaction(insert(ONE_KEY, number, 0, "a" * 200, "b"))
    lsns = recorder.journal.directory.segment_lsns()
    recorder.journal.directory.segment(lsns[0]).unlink()
    with pytest.raises(JournalGap):
        JournalView(recorder.journal.directory).plan(start, recorder.view.end())


def test_events_stand_at_the_commit_of_their_transaction_and_those_of_others_are_passed_over(tmp_path):
    recorder = Recorder(tmp_path, ONE_KEY)
    start = LSN(recorder.source.lsn)
    first = recorder.event(Barrier("one"))
    recorder.event(Barrier("not ours"), "pgtide:another_slot")
    recorder.write(recorder.source.event(b"not even JSON", "somebody"))
    recorder.write(recorder.source.event(b'{"kind": "from a newer version"}', PREFIX))
    last = recorder.event(Barrier("two"))
    placed = list(recorder.view.events(start, recorder.view.end()))
    assert [(each.event, each.commit_lsn) for each in placed] == [(Barrier("one"), first), (Barrier("two"), last)]
    assert [each.xid for each in placed] == [701, 705]
    assert [each.commit_lsn for each in recorder.view.events(first, recorder.view.end())] == [last]
    assert recorder.view.plan(first, last).events == placed[1:]


def test_an_event_in_the_middle_of_a_large_transaction_is_found(tmp_path, small_blocks):
    recorder = Recorder(tmp_path, ONE_KEY)
    start = LSN(recorder.source.lsn)
    rows = [insert(ONE_KEY, number, 0, "a" * 50, "b") for number in range(30)]
    content = json.dumps(dump_event(Barrier("inside"))).encode()
    commit = recorder.transaction(relation_of(ONE_KEY), *rows, Message(True, LSN(1), PREFIX, content), *rows)
    (placed,) = recorder.view.events(start, recorder.view.end())
    assert (placed.event, placed.commit_lsn, placed.xid) == (Barrier("inside"), commit, 701)


def play_through_journal(schedule: Schedule, path: Path, random_: random.Random) -> None:
    """A schedule, with everything written to a journal and read back in batches."""
    table, played = schedule.table, schedule.play()
    recorder = Recorder(path, table, xid=FIRST_XID - 1)
    start = LSN(recorder.source.lsn)
    recorder.transaction(relation_of(table), xid=FIRST_XID - 1)
    for index, transaction in enumerate([*played.transactions, []]):
        if index == played.high:
            chunk = recorder.chunk(table, sorted(played.visible.items()), str(played.snapshot))
            recorder.event(chunk)
        messages = [message_of(table, change) for change in transaction]
        if random_.random() < 0.2:
            messages.insert(0, relation_of(table))
        recorder.transaction(*messages, xid=FIRST_XID + index)
        recorder.transaction(xid=FIRST_XID + index - 1000)
    recorder.journal.close()
    view = JournalView(recorder.journal.directory)
    cuts = {LSN(recorder.source.commits[cut]) for cut in schedule.cuts if cut < len(recorder.source.commits)}
    sink: State = {}
    after = start
    for upto in sorted(cuts | {view.end()}):
        plan = view.plan(after, upto)
        if table.oid in plan.tables:
            for run in read_changes(plan.tables[table.oid]):
                apply_compacted(sink, compact(run))
        after = upto
    assert sink == played.final


def test_random_schedules_played_through_a_journal_give_the_true_state(tmp_path, small_blocks):
    random_ = random.Random(12)
    for number in range(120):
        play_through_journal(Schedule.random(random_), tmp_path / str(number), random_)


def test_a_chunk_whose_file_is_gone_is_a_gap(tmp_path):
    recorder = Recorder(tmp_path, ONE_KEY)
    start = LSN(recorder.source.lsn)
    recorder.transaction(relation_of(ONE_KEY))
    chunk = recorder.chunk(ONE_KEY, [((1,), (1, "a", "b"))], "701:701:")
    recorder.event(chunk)
    assert [told.row for told in read_between(recorder.view, ONE_KEY.oid, start, recorder.view.end())] == [
        (1, 1, "a", "b")
    ]
    (tmp_path / chunk.path).unlink()
    with pytest.raises(JournalGap, match="snapshot"):
        read_between(recorder.view, ONE_KEY.oid, start, recorder.view.end())


def test_a_chunk_that_lost_its_last_block_is_noticed(tmp_path):
    recorder = Recorder(tmp_path, ONE_KEY)
    start = LSN(recorder.source.lsn)
    recorder.transaction(relation_of(ONE_KEY))
    chunk = recorder.chunk(ONE_KEY, [((1,), (1, "a", "b"))], "701:701:")
    recorder.event(chunk)
    path = tmp_path / chunk.path
    tuples = copy_tuple(copy_cells(ONE_KEY, (1,), (1, "a", "b")))
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"PGTB")])
    assert len(tuples) < len(whole) - path.stat().st_size
    with pytest.raises(JournalCorrupt):
        read_between(recorder.view, ONE_KEY.oid, start, recorder.view.end())


def test_an_empty_table_that_was_copied_is_known(tmp_path):
    recorder = Recorder(tmp_path, ONE_KEY)
    start = LSN(recorder.source.lsn)
    recorder.event(recorder.chunk(ONE_KEY, [], "701:701:"))
    plan = recorder.view.plan(start, recorder.view.end())
    assert plan.known == {ONE_KEY.oid: ONE_KEY}
    (run,) = read_changes(plan.tables[ONE_KEY.oid])
    assert compact(run).empty
    assert run.table == ONE_KEY
    assert [column.type_oid for column in run.table.columns] == [INT4, INT4, TEXT, TEXT]
