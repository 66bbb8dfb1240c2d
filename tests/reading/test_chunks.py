"""A chunk merged into the stream gives the table's true state, whatever its snapshot could and could not see.

A schedule is a history of transactions, a snapshot taken somewhere in it, and a high watermark somewhere behind. Commit
records enter the WAL before transactions become visible, so the snapshot may miss some that had already committed; what
it misses is closed under conflicts, because whoever waits for a row's lock waits until its holder is visible.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.errors import JournalGap
from pgtide.reading.changes import CREATE, DELETE, READ, TRUNCATE, UPDATE, Changes, concat, empty
from pgtide.reading.compact import compact
from pgtide.reading.read import reduce_chunk
from pgtide.schema import Column, Table
from pgtide.snapshot.visibility import Visibility
from tests.reading.model import (
    KEYS,
    ONE_KEY,
    TWO_KEYS,
    Change,
    Key,
    Source,
    State,
    apply_compacted,
    apply_one_by_one,
    changes_of,
    random_steps,
)
from tests.reading.test_compact import KEYLESS, multiset_changes

FIRST_XID = 2**32 - 4  # ids wrap in the middle of a history
Steps = list[tuple[int, int, int, int]]


def touched(transaction: Sequence[Change]) -> set[Key] | None:
    """The keys that a transaction locks; None for all of them."""
    if any(change.op == TRUNCATE for change in transaction):
        return None
    return {key for change in transaction for key in (change.key, change.old) if key is not None}


def conflict(left: set[Key] | None, right: set[Key] | None) -> bool:
    return left is None or right is None or bool(left & right)


def unseen_closure(transactions: Sequence[Sequence[Change]], missed: set[int]) -> set[int]:
    """Whatever waited for a transaction that the snapshot misses is missed too."""
    locks = [touched(each) for each in transactions]
    closed: set[int] = set()
    for index in range(len(transactions)):
        if index in missed or any(conflict(locks[index], locks[other]) for other in closed):
            closed.add(index)
    return closed


def history(source: Source, drawn: Sequence[Steps]) -> list[list[Change]]:
    """Transactions with their ids (32 bits wide, as the stream has them) and commits."""
    transactions = []
    for number, each in enumerate(drawn):
        made = [change for one in each if (change := source.step(*one)) is not None]
        xid = (FIRST_XID + number) % 2**32
        transactions.append([change._replace(xid=xid, commit=10 * (number + 1)) for change in made])
    return transactions


class Played(NamedTuple):
    """A history, what the chunk's snapshot saw of it, after how many transactions H stands, and the final state."""

    transactions: list[list[Change]]
    visible: State
    snapshot: Visibility
    high: int
    final: State


@dataclass(frozen=True)
class Schedule:
    """The snapshot is taken when `taken` transactions have committed; H stands behind `high` of them.

    `before` says which keys exist at the start, `missed` which transactions the snapshot does not see although they
    have committed, `cuts` between which transactions a batch ends.
    """

    table: Table
    before: int
    steps: Sequence[Steps]
    taken: int
    missed: set[int]
    high: int
    cuts: set[int]

    @classmethod
    def random(cls, random_: random.Random) -> Schedule:
        count = random_.choice([1, 2, 3, 5, 8, 12])
        taken = random_.randrange(count + 1)
        return cls(
            random_.choice([ONE_KEY, TWO_KEYS]),
            random_.randrange(64),
            [random_steps(random_, random_.choice([1, 1, 2, 4])) for _ in range(count)],
            taken,
            {index for index in range(max(0, taken - 4), taken) if random_.random() < 0.5},
            random_.randrange(taken, count + 1),
            {random_.randrange(count + 1) for _ in range(random_.choice([0, 1, 3]))},
        )

    def play(self) -> Played:
        """What happens in the source, and what the snapshot sees of it."""
        source = Source(self.table)
        for index, key in enumerate(KEYS[self.table.oid]):
            if self.before >> index & 1:
                source.rows[key] = source.fresh_row()
        visible: State = dict(source.rows)
        transactions = history(source, self.steps)
        taken = min(self.taken, len(transactions))
        high = max(taken, min(self.high, len(transactions)))
        unseen = unseen_closure(transactions[:taken], self.missed)
        for index, transaction in enumerate(transactions[:taken]):
            if index not in unseen:
                apply_one_by_one(visible, transaction)
        running = tuple(FIRST_XID + index for index in sorted(unseen))
        xmax = FIRST_XID + taken
        snapshot = Visibility(min(running, default=xmax), xmax, running)
        return Played(transactions, visible, snapshot, high, source.rows)

    def check(self) -> None:
        """Play it, and compare the sink with the source."""
        played = self.play()
        transactions, high = played.transactions, played.high
        chunk = changes_of(self.table, [Change(READ, key, row) for key, row in sorted(played.visible.items())])
        window = changes_of(self.table, [change for transaction in transactions[:high] for change in transaction])
        rows = np.flatnonzero(played.snapshot.unseen(window.xid))
        reduced = reduce_chunk(chunk, [window.take(rows)] if len(rows) else [])
        sink: State = {}
        for batch in stream_batches(self.table, transactions, reduced, high, self.cuts):
            apply_compacted(sink, compact(batch))
        assert sink == played.final


def stream_batches(
    table: Table, transactions: Sequence[Sequence[Change]], reduced: Changes, high: int, cuts: set[int]
) -> list[Changes]:
    """Stream and chunk in position order, cut into batches between some of the transactions."""
    batches: list[list[Changes]] = [[]]
    for index in range(len(transactions) + 1):
        if index == high:
            batches[-1].append(reduced)
        if index in cuts:
            batches.append([])
        if index < len(transactions) and transactions[index]:
            batches[-1].append(changes_of(table, transactions[index]))
    return [concat(parts, table) for parts in batches if any(map(len, parts))]


numbers = st.integers(0, 9)
drawn_steps = st.lists(
    st.lists(st.tuples(numbers, numbers, numbers, st.integers(0, 3)), min_size=1, max_size=3), min_size=1, max_size=8
)


schedules = st.builds(
    Schedule,
    st.sampled_from([ONE_KEY, TWO_KEYS]),
    st.integers(0, 63),
    drawn_steps,
    st.integers(0, 8),
    st.sets(st.integers(0, 7)),
    st.integers(0, 8),
    st.sets(st.integers(0, 8), max_size=3),
)


@settings(max_examples=200, deadline=None)
@given(schedules)
def test_stream_and_chunk_together_give_the_true_state(schedule):
    schedule.check()


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_random_schedules_give_the_true_state(seed):
    random_ = random.Random(seed)
    for _ in range(700):
        Schedule.random(random_).check()


def reduced_rows(chunk: list[Change], window: list[Change]) -> dict[Key, tuple[object, ...]]:
    """What is emitted at H: by key, with `...` for what is not told."""
    table = ONE_KEY
    result = reduce_chunk(changes_of(table, chunk), [changes_of(table, window)] if window else [])
    assert set(result.op.tolist()) <= {READ}
    rows = {}
    for index, key in enumerate(result.columns["k"].to_pylist()):
        rows[(key,)] = tuple(
            ... if name in result.unchanged and result.unchanged[name][index] else result.columns[name][index].as_py()
            for name in ("n", "a", "b")
        )
    return rows


CHUNK = [Change(READ, (1,), (1, "a1", "b1")), Change(READ, (2,), (2, "a2", "b2"))]
WHOLE = {change.key: change.row for change in CHUNK}


def test_rows_that_nothing_touched_are_emitted_whole():
    assert reduced_rows(CHUNK, []) == WHOLE
    assert reduced_rows(CHUNK, [Change(CREATE, (3,), (3, "a", "b"))]) == WHOLE


def test_a_row_that_was_replaced_is_not_emitted():
    assert reduced_rows(CHUNK, [Change(UPDATE, (1,), (9, "x", "y"))]) == {(2,): WHOLE[(2,)]}


def test_of_a_row_that_was_updated_only_what_was_left_out_is_emitted():
    assert reduced_rows(CHUNK, [Change(UPDATE, (1,), (9, ..., "y"))]) == {(1,): (..., "a1", ...), (2,): WHOLE[(2,)]}


def test_a_row_that_moved_is_emitted_under_its_new_key():
    window = [Change(UPDATE, (5,), (9, ..., ...), (1,)), Change(UPDATE, (6,), (9, ..., "y"), (5,))]
    assert reduced_rows(CHUNK, window) == {(6,): (..., "a1", ...), (2,): WHOLE[(2,)]}


def test_a_row_that_is_gone_is_not_emitted():
    assert reduced_rows(CHUNK, [Change(DELETE, (1,))]) == {(2,): WHOLE[(2,)]}
    assert reduced_rows(CHUNK, [Change(UPDATE, (5,), (9, ..., ...), (1,)), Change(DELETE, (5,))]) == {(2,): WHOLE[(2,)]}


def test_a_new_row_under_an_old_key_owes_nothing_to_the_chunk():
    window = [Change(DELETE, (1,)), Change(CREATE, (1,), (9, "x", "y")), Change(UPDATE, (1,), (10, ..., ...))]
    assert reduced_rows(CHUNK, window) == {(2,): WHOLE[(2,)]}


def test_a_truncate_drops_the_chunk():
    window = [Change(TRUNCATE), Change(CREATE, (2,), (9, "x", "y")), Change(UPDATE, (2,), (9, ..., "y"))]
    assert reduced_rows(CHUNK, window) == {}


def test_a_table_that_was_altered_in_the_window_cannot_be_merged():
    altered = replace(ONE_KEY, columns=(*ONE_KEY.columns, Column("more", 23)))
    window = changes_of(altered, [Change(UPDATE, (1,), (9, "x", "y", 1))])
    with pytest.raises(JournalGap, match="altered"):
        reduce_chunk(changes_of(ONE_KEY, CHUNK), [window])


# Tables without a key


def check_multiset(
    initial: list[int], drawn: list[list[tuple[int, int]]], taken: int, missed: set[int], high: int
) -> None:
    """Rows of a multiset have no identity: any subset of what committed may be missed, but for truncates."""
    visible, truth = Counter(initial), Counter(initial)
    transactions: list[list[tuple[int, int]]] = []
    unseen: set[int] = set()
    for index, each in enumerate(drawn):
        made = []
        for what, number in each:
            if what == 1 and not truth[number]:
                continue
            step(truth, what, number)
            made.append((what, number))
        transactions.append(made)
        locks = {None if what == 2 else number for what, number in made if what}
        waits = any(
            None in locks or conflicts & locks or None in conflicts
            for conflicts in ({None if w == 2 else n for w, n in transactions[other]} for other in unseen)
        )
        if index < taken and (index in missed or waits):
            unseen.add(index)
        elif index < taken:
            for what, number in made:
                step(visible, what, number)
    assert not -visible
    chunk = multiset_changes([(0, number) for number in visible.elements()])
    chunk = replace(chunk, op=np.full(len(chunk), READ, dtype=np.uint8))
    parts = [multiset_changes(each) for each in transactions]
    window = [part for index, part in enumerate(parts[:high]) if len(part) and (index in unseen or index >= taken)]
    reduced = reduce_chunk(chunk, window)
    sink: Counter[int] = Counter()
    for batch in [*parts[:high], reduced, *parts[high:]]:
        if not len(batch):
            continue
        compacted = compact(batch)
        if compacted.truncated:
            sink.clear()
        sink.update(compacted.upserts.columns["n"].to_pylist())
        sink.subtract(int(each) for each in compacted.deleted["_pgtide_row_hash"].to_pylist())
    assert +sink == +truth


def step(rows: Counter[int], what: int, number: int) -> None:
    if what == 2:
        rows.clear()
    else:
        rows[number] += 1 if what == 0 else -1


def test_hundreds_of_random_schedules_of_a_multiset_give_the_true_state():
    random_ = random.Random(3)
    for _ in range(800):
        count = random_.choice([1, 2, 4, 8])
        drawn = [
            [(random_.choice([0, 0, 0, 1, 1, 1, 2]), random_.randrange(4)) for _ in range(random_.choice([1, 2, 4]))]
            for _ in range(count)
        ]
        taken = random_.randrange(count + 1)
        missed = {index for index in range(taken) if random_.random() < 0.3}
        initial = [random_.randrange(4) for _ in range(random_.randrange(6))]
        check_multiset(initial, drawn, taken, missed, random_.randrange(taken, count + 1))


def test_an_empty_chunk_of_a_multiset_still_replaces_what_was_told_before():
    reduced = reduce_chunk(empty(KEYLESS), [])
    assert reduced.op.tolist() == [TRUNCATE]
    assert reduced.columns["n"].to_pylist() == [None]
