"""A table as a dictionary: the reference that folding, compaction and the reduction of chunks are compared with.

Steps are drawn as small numbers and interpreted against the rows that exist, so that every sequence is one that
Postgres could have sent: an insert of a free key, an update that leaves long values out, a move to a free key.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from pgtide.columns import arrow_schema
from pgtide.reading.changes import CREATE, DELETE, TRUNCATE, UPDATE, Changes
from pgtide.reading.compact import Compacted
from pgtide.schema import Column, Table, TableName
from tests.fixtures.stream import INT4, TEXT

Key = tuple[Any, ...]
Row = tuple[Any, ...]  # the columns that are not in the key
State = dict[Key, Row]

ONE_KEY = Table(
    20001,
    TableName("public", "t"),
    (Column("k", INT4, key=True), Column("n", INT4), Column("a", TEXT), Column("b", TEXT)),
    ("k",),
)
# The key's columns neither first nor in the table's order.
TWO_KEYS = Table(
    20002,
    TableName("public", "u"),
    (Column("n", INT4), Column("q", TEXT, key=True), Column("a", TEXT), Column("p", INT4, key=True), Column("b", TEXT)),
    ("p", "q"),
)
KEYS: dict[int, list[Key]] = {
    ONE_KEY.oid: [(number,) for number in range(6)],
    TWO_KEYS.oid: [(number, text) for number in range(2) for text in ("", "x", "y")],
}


class Change(NamedTuple):
    """One change. `row` has `...` where a value lies unchanged in TOAST; `old` is the key before, if it changed."""

    op: int
    key: Key = ()
    row: Row = ()
    old: Key | None = None
    xid: int = 0
    commit: int = 0


@dataclass
class Source:
    """The rows of the source, and what is said of each step that changes them."""

    table: Table
    rows: State = field(default_factory=dict)
    value: int = 0

    @property
    def keys(self) -> list[Key]:
        return KEYS[self.table.oid]

    def fresh_row(self) -> Row:
        self.value += 1
        return (self.value, f"a{self.value}", f"b{self.value}")

    def step(self, what: int, which: int, where: int, left_out: int) -> Change | None:
        """Do one of ten things to the rows; None if it is not possible now."""
        present, free = sorted(self.rows), [key for key in self.keys if key not in self.rows]
        if what == 9:
            self.rows.clear()
            return Change(TRUNCATE)
        if what <= 2:
            return self._insert(free, which)
        if not present:
            return None
        key = present[which % len(present)]
        if what <= 5:
            return self._update(key, left_out)
        if what <= 7:
            return self._move(key, free, where, left_out)
        del self.rows[key]
        return Change(DELETE, key)

    def _insert(self, free: list[Key], which: int) -> Change | None:
        if not free:
            return None
        key = free[which % len(free)]
        self.rows[key] = self.fresh_row()
        return Change(CREATE, key, self.rows[key])

    def _update(self, key: Key, left_out: int) -> Change:
        told = self._told(left_out)
        self.rows[key] = merged(told, self.rows[key])
        return Change(UPDATE, key, told)

    def _move(self, key: Key, free: list[Key], where: int, left_out: int) -> Change | None:
        if not free:
            return None
        target = free[where % len(free)]
        told = self._told(left_out)
        self.rows[target] = merged(told, self.rows.pop(key))
        return Change(UPDATE, target, told, key)

    def _told(self, left_out: int) -> Row:
        """A new row without some of its long values."""
        number, a, b = self.fresh_row()
        return (number, ... if left_out & 1 else a, ... if left_out & 2 else b)


def merged(told: Row, before: Row | None) -> Row:
    return tuple((before[i] if before else None) if each is ... else each for i, each in enumerate(told))


def apply_one_by_one(state: State, changes: Iterable[Change]) -> None:
    """What a sink would do that applies each change as it comes; it may not have had a row before."""
    for change in changes:
        if change.op == TRUNCATE:
            state.clear()
        elif change.op == DELETE:
            state.pop(change.key, None)
        else:
            before = state.pop(change.key if change.old is None else change.old, None)
            state[change.key] = merged(change.row, before)


def apply_compacted(state: State, compacted: Compacted) -> None:
    """The smallest sink there is: what a batch says, all at once."""
    if compacted.truncated:
        state.clear()
    table, upserts = compacted.table, compacted.upserts
    keys = _keys(upserts.columns, table)
    from_keys = _keys(upserts.moved_from, table) if upserts.moved.any() else keys
    deleted = _keys(compacted.deleted, table)
    assert len({*keys, *deleted}) == len(keys) + len(deleted), "a key comes twice"
    assert None not in [part for key in [*keys, *deleted] for part in key]
    names = [column.name for column in table.columns if column.name not in table.key]
    columns = [upserts.columns[name].to_pylist() for name in names]
    rows = {}
    for index, key in enumerate(keys):
        before = state.get(from_keys[index] if upserts.moved[index] else key)
        told = tuple(
            ... if name in upserts.unchanged and upserts.unchanged[name][index] else column[index]
            for name, column in zip(names, columns, strict=True)
        )
        rows[key] = merged(told, before)
    for key in deleted:
        state.pop(key, None)
    state.update(rows)


def _keys(columns: Mapping[str, Any], table: Table) -> list[Key]:
    """Keys in the order of the table's key."""
    if not columns:
        return []
    return list(zip(*(columns[name].to_pylist() for name in table.key), strict=True))


def changes_of(table: Table, changes: Sequence[Change]) -> Changes:
    """The changes as columns, as reading would give them."""
    names = [column.name for column in table.columns if column.name not in table.key]
    schema = arrow_schema(table)
    values: dict[str, list[Any]] = {name: [] for name in schema.names}
    for change in changes:
        key = change.key or (None,) * len(table.key)
        row = change.row or (None,) * len(names)
        for name, value in (*zip(table.key, key, strict=True), *zip(names, row, strict=True)):
            values[name].append(value)
    unchanged = {name: np.array([value is ... for value in values[name]], dtype=bool) for name in names}
    moved = np.array([change.old is not None for change in changes], dtype=bool)
    old = [change.old or (None,) * len(table.key) for change in changes]
    return Changes(
        table=table,
        op=np.array([change.op for change in changes], dtype=np.uint8),
        columns={
            name: pa.array([None if value is ... else value for value in values[name]], schema.field(name).type)
            for name in schema.names
        },
        commit_lsn=np.array([change.commit for change in changes], dtype=np.uint64),
        ordinal=np.arange(len(changes)),
        xid=np.array([change.xid for change in changes], dtype=np.int64),
        committed_at_us=np.zeros(len(changes), dtype=np.int64),
        unchanged={name: mask for name, mask in unchanged.items() if mask.any()},
        key_changed=moved if moved.any() else None,
        old_key={
            name: pa.array([key[index] for key in old], schema.field(name).type) for index, name in enumerate(table.key)
        }
        if moved.any()
        else {},
    )


numbers = st.integers(0, 9)
steps = st.lists(st.tuples(numbers, numbers, numbers, st.integers(0, 3)), max_size=25)


def random_steps(random_: random.Random, count: int) -> list[tuple[int, int, int, int]]:
    # Truncates would make most sequences short: they are rarer here than the rest.
    kinds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 3, 6, 7, 8, 9] if random_.random() < 0.3 else [0, 3, 4, 5, 6, 7, 8]
    return [
        (random_.choice(kinds), random_.randrange(10), random_.randrange(10), random_.randrange(4))
        for _ in range(count)
    ]


def batches(changes: Sequence[Change], cuts: Iterable[int]) -> Iterator[Sequence[Change]]:
    """The sequence in pieces."""
    start = 0
    for cut in sorted({min(cut, len(changes)) for cut in cuts} | {len(changes)}):
        if cut > start:
            yield changes[start:cut]
        start = cut
