"""Folding a batch and applying the result is the same as applying its changes one by one. Always."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.reading.changes import CREATE, DELETE, READ, TRUNCATE, UPDATE, Changes, empty
from pgtide.reading.compact import ROW_HASH, compact
from pgtide.schema import Column, Table, TableName
from tests.fixtures.stream import INT4
from tests.reading.model import (
    KEYS,
    ONE_KEY,
    TWO_KEYS,
    Change,
    Source,
    State,
    apply_compacted,
    apply_one_by_one,
    batches,
    changes_of,
    random_steps,
    steps,
)

tables = st.sampled_from([ONE_KEY, TWO_KEYS])


def check(table: Table, before: int, unknown: int, drawn: list[tuple[int, int, int, int]], cuts: list[int]) -> None:
    """`before` says which rows exist at the start, `unknown` which of them the sink has not been given yet."""
    source = Source(table)
    for index, key in enumerate(KEYS[table.oid]):
        if before >> index & 1:
            source.rows[key] = source.fresh_row()
    sink: State = {key: row for index, (key, row) in enumerate(sorted(source.rows.items())) if not unknown >> index & 1}
    complete = len(sink) == len(source.rows)
    changes = [change for each in drawn if (change := source.step(*each)) is not None]
    expected = dict(sink)
    apply_one_by_one(expected, changes)
    assert not complete or expected == source.rows
    for batch in batches(changes, cuts):
        apply_compacted(sink, compact(changes_of(table, batch)))
    assert sink == expected


@settings(max_examples=300, deadline=None)
@given(tables, st.integers(0, 63), st.sampled_from([0, 0, 5, 63]), steps, st.lists(st.integers(0, 25), max_size=4))
def test_a_folded_batch_does_what_its_changes_do(table, before, unknown, drawn, cuts):
    check(table, before, unknown, drawn, cuts)


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_random_batches_do_what_their_changes_do(seed):
    random_ = random.Random(seed)
    for _ in range(1500):
        count = random_.choice([1, 2, 3, 5, 8, 13, 30, 60])
        check(
            random_.choice([ONE_KEY, TWO_KEYS]),
            random_.randrange(64),
            random_.choice([0, 0, random_.randrange(64)]),
            random_steps(random_, count),
            [random_.randrange(count + 1) for _ in range(random_.choice([0, 0, 1, 5]))],
        )


def row(number: int) -> tuple[int, str, str]:
    return (number, f"a{number}", f"b{number}")


def outcome(changes: list[Change], table: Table = ONE_KEY) -> tuple[set[int], set[int]]:
    """Keys that are upserted and keys that are deleted."""
    compacted = compact(changes_of(table, changes))
    return set(compacted.upserts.columns["k"].to_pylist()), set(compacted.deleted["k"].to_pylist())


def test_ten_events_of_three_keys_leave_one_delete_and_two_upserts():
    """Update K1, Delete K1, Create K1, Update K2 three times, Insert K3, Delete K2, Insert K2, Delete K1."""
    changes = [
        Change(UPDATE, (1,), row(1)),
        Change(DELETE, (1,)),
        Change(CREATE, (1,), row(2)),
        Change(UPDATE, (2,), row(3)),
        Change(UPDATE, (2,), row(4)),
        Change(UPDATE, (2,), row(5)),
        Change(CREATE, (3,), row(6)),
        Change(DELETE, (2,)),
        Change(CREATE, (2,), row(7)),
        Change(DELETE, (1,)),
    ]
    compacted = compact(changes_of(ONE_KEY, changes))
    assert outcome(changes) == ({2, 3}, {1})
    rows = dict(
        zip(compacted.upserts.columns["k"].to_pylist(), compacted.upserts.columns["n"].to_pylist(), strict=True)
    )
    assert rows == {2: 7, 3: 6}
    assert (compacted.changes, compacted.upsert_count, compacted.delete_count) == (10, 2, 1)


def test_two_keys_swapped_through_a_third_keep_their_long_values():
    changes = [
        Change(UPDATE, (0,), (1, ..., ...), (1,)),
        Change(UPDATE, (1,), (2, ..., "new"), (2,)),
        Change(UPDATE, (2,), (3, ..., ...), (0,)),
    ]
    state: State = {(1,): row(11), (2,): row(12)}
    apply_compacted(state, compact(changes_of(ONE_KEY, changes)))
    assert state == {(2,): (3, "a11", "b11"), (1,): (2, "a12", "new")}


def test_a_key_that_moves_in_a_circle_is_where_it_was():
    changes = [Change(UPDATE, ((key + 1) % 4,), (key, ..., ...), (key,)) for key in range(4)]
    state: State = {(0,): row(10)}
    apply_compacted(state, compact(changes_of(ONE_KEY, changes)))
    assert state == {(0,): (3, "a10", "b10")}


def test_a_moved_row_says_where_it_came_from_only_if_something_is_left_there():
    compacted = compact(changes_of(ONE_KEY, [Change(UPDATE, (2,), row(1), (1,))]))
    assert not compacted.upserts.moved.any()
    assert compacted.deleted["k"].to_pylist() == [1]
    compacted = compact(changes_of(ONE_KEY, [Change(UPDATE, (2,), (1, ..., "b"), (1,))]))
    assert compacted.upserts.moved_from["k"].to_pylist() == [1]
    assert compacted.upserts.unchanged.keys() == {"a"}


def test_only_what_follows_the_last_truncate_counts():
    changes = [
        Change(CREATE, (1,), row(1)),
        Change(TRUNCATE),
        Change(CREATE, (2,), row(2)),
        Change(TRUNCATE),
        Change(CREATE, (3,), row(3)),
    ]
    compacted = compact(changes_of(ONE_KEY, changes))
    assert compacted.truncated
    assert outcome(changes) == ({3}, set())
    assert compacted.changes == 5


def test_a_truncate_alone_empties_the_table():
    compacted = compact(changes_of(ONE_KEY, [Change(CREATE, (1,), row(1)), Change(TRUNCATE)]))
    assert (compacted.truncated, compacted.upsert_count, compacted.delete_count) == (True, 0, 0)
    assert not compacted.empty


def test_an_empty_batch_is_empty():
    assert compact(empty(ONE_KEY)).empty
    assert compact(empty(KEYLESS)).empty


def test_rows_of_a_snapshot_are_upserts_like_any_other():
    changes = [
        Change(UPDATE, (1,), (1, ..., ...)),
        Change(READ, (1,), (..., "a", "b")),
        Change(READ, (2,), row(2)),
        Change(DELETE, (2,)),
    ]
    state: State = {}
    apply_compacted(state, compact(changes_of(ONE_KEY, changes)))
    assert state == {(1,): (1, "a", "b")}


def test_a_table_that_is_all_key_can_be_folded():
    columns = (Column("k", INT4, key=True), Column("l", INT4, key=True))
    table = Table(5, TableName("public", "pair"), columns, ("k", "l"))
    moved = Change(UPDATE, (1, 2), (), (1, 1))
    sequence = [Change(CREATE, (1, 1)), moved, Change(DELETE, (3, 3)), Change(CREATE, (4, 4))]
    compacted = compact(changes_of(table, sequence))
    upserts = set(zip(*(compacted.upserts.columns[name].to_pylist() for name in ("k", "l")), strict=True))
    assert upserts == {(1, 2), (4, 4)}
    deleted = set(zip(*(compacted.deleted[name].to_pylist() for name in ("k", "l")), strict=True))
    assert deleted == {(1, 1), (3, 3)}


# Tables without a key


KEYLESS = Table(
    20003,
    TableName("public", "m"),
    (Column("n", INT4, key=True), Column("m", INT4, key=True)),
    replica_identity="f",
)


def multiset_changes(drawn: list[tuple[int, int]]) -> Changes:
    """Whole rows (told by one number) in and out; an operation of 2 is a truncate."""
    op = [(CREATE, DELETE, TRUNCATE)[what] for what, _ in drawn]
    values = [None if what == 2 else number for what, number in drawn]
    hashes = [None if value is None else str(value).encode() for value in values]
    base = changes_of(ONE_KEY, [Change(each) for each in op])
    columns = {"n": pa.array(values, pa.int32()), "m": pa.array(values, pa.int32())}
    return Changes(
        table=KEYLESS,
        op=np.array(op, dtype=np.uint8),
        columns=columns,
        commit_lsn=base.commit_lsn,
        ordinal=base.ordinal,
        xid=base.xid,
        committed_at_us=base.committed_at_us,
        row_hash=pa.array(hashes, pa.binary()),
    )


def check_multiset(drawn: list[tuple[int, int]], cuts: list[int]) -> None:
    rows: Counter[int] = Counter(dict.fromkeys(range(3), 2))
    sink = Counter(rows)
    valid = []
    for what, number in drawn:
        if what == 1 and not rows[number]:
            continue
        if what == 2:
            rows.clear()
        else:
            rows[number] += 1 if what == 0 else -1
        valid.append((what, number))
    start = 0
    for cut in sorted({min(cut, len(valid)) for cut in cuts} | {len(valid)}):
        if cut == start:
            continue
        compacted = compact(multiset_changes(valid[start:cut]))
        start = cut
        if compacted.truncated:
            sink.clear()
        inserted = Counter(compacted.upserts.columns["n"].to_pylist())
        removed = Counter(int(each) for each in compacted.deleted[ROW_HASH].to_pylist())
        assert not inserted & removed
        assert compacted.upserts.columns[ROW_HASH].to_pylist() == [
            str(number).encode() for number in compacted.upserts.columns["m"].to_pylist()
        ]
        sink.update(inserted)
        sink.subtract(removed)
    assert +sink == +rows
    assert -sink == Counter()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 1, 2]), st.integers(0, 4)), max_size=20),
    st.lists(st.integers(0, 20), max_size=3),
)
def test_a_folded_batch_of_a_multiset_leaves_each_row_as_often_as_its_changes_do(drawn, cuts):
    check_multiset(drawn, cuts)


def test_hundreds_of_random_batches_of_a_multiset():
    random_ = random.Random(1)
    for _ in range(700):
        count = random_.choice([1, 3, 10, 40])
        drawn = [(random_.choice([0, 0, 0, 0, 1, 1, 1, 1, 2]), random_.randrange(5)) for _ in range(count)]
        check_multiset(drawn, [random_.randrange(count + 1) for _ in range(random_.randrange(3))])
