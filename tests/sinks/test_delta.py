"""The Delta sink alone: what a batch says is what the table has, once, whatever the names and types."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pgtide.config import DeltaSink as DeltaConfig
from pgtide.errors import SinkError
from pgtide.lsn import LSN, ZERO
from pgtide.reading.changes import CREATE, DELETE, TRUNCATE, UPDATE
from pgtide.reading.compact import ROW_HASH, Compacted, compact
from pgtide.schema import Column, Table, TableName
from pgtide.sinks.delta import DeltaSink
from tests.capture.running import capturing, make_config, set_up, wait_for_marker
from tests.fixtures.stream import INT4, TEXT
from tests.reading.captured import captured_changes, plain_values
from tests.reading.model import (
    KEYS,
    ONE_KEY,
    TWO_KEYS,
    Change,
    Source,
    State,
    apply_compacted,
    changes_of,
    random_steps,
)
from tests.reading.test_compact import KEYLESS, multiset_changes


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def sink_at(lake: Path, pipeline: str = "lake") -> DeltaSink:
    return DeltaSink(DeltaConfig.model_validate({"type": "delta", "path": str(lake)}), pipeline)


def batch(*changes: Change, table: Table = ONE_KEY) -> Compacted:
    return compact(changes_of(table, changes))


def open_table(sink: DeltaSink, table: Table = ONE_KEY) -> DeltaTable:
    return DeltaTable(str(sink.path(table.name)))


def read(sink: DeltaSink, table: Table = ONE_KEY) -> State:
    """The Delta table's rows, as the model has them."""
    rows = open_table(sink, table).to_pyarrow_table().to_pylist()
    names = [column.name for column in table.columns if column.name not in table.key]
    found = {tuple(row[name] for name in table.key): tuple(row[name] for name in names) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def version(sink: DeltaSink, table: Table = ONE_KEY) -> int:
    return open_table(sink, table).version()


def test_a_table_is_made_by_its_first_batch(lake):
    sink = sink_at(lake)
    assert sink.applied_lsn(ONE_KEY.name) == ZERO
    sink.apply(batch(Change(CREATE, (1,), (1, "a", None)), Change(CREATE, (2,), (2, "b", "c"))), LSN(100))
    assert read(sink) == {(1,): (1, "a", None), (2,): (2, "b", "c")}
    assert sink.applied_lsn(ONE_KEY.name) == 100
    assert sink.path(ONE_KEY.name) == lake / "public" / "t"
    assert sink_at(lake).applied_lsn(ONE_KEY.name) == 100


@pytest.mark.parametrize(
    "changes",
    [
        [Change(UPDATE, (1,), (9, ..., "new"))],
        [Change(UPDATE, (1,), (9, ..., ...)), Change(CREATE, (3,), (3, "c", "d")), Change(DELETE, (2,))],
        [Change(UPDATE, (5,), (9, ..., ...), (1,))],
        [Change(UPDATE, (5,), (9, ..., "new"), (1,)), Change(UPDATE, (1,), (8, ..., ...), (2,))],
        [Change(DELETE, (1,)), Change(CREATE, (1,), (7, None, None))],
        [Change(DELETE, (1,)), Change(DELETE, (2,))],
        [Change(DELETE, (77,))],
        [Change(UPDATE, (77,), (1, ..., "only this is known"))],
        [Change(UPDATE, (78,), (1, ..., "only this is known"), (77,))],
        [Change(TRUNCATE)],
        [Change(TRUNCATE), Change(CREATE, (1,), (5, "x", "y")), Change(UPDATE, (1,), (6, ..., "z"))],
    ],
)
def test_a_batch_does_what_it_says(lake, changes):
    sink = sink_at(lake)
    state: State = {(1,): (1, "a1", "b1"), (2,): (2, None, "b2"), (4,): (4, "a4", "b4")}
    sink.apply(batch(*[Change(CREATE, key, row) for key, row in state.items()]), LSN(100))
    before = version(sink)
    sink.apply(batch(*changes), LSN(200))
    apply_compacted(state, batch(*changes))
    assert read(sink) == state
    assert version(sink) == before + 1
    assert sink.applied_lsn(ONE_KEY.name) == 200


@pytest.mark.parametrize("changes", [[Change(DELETE, (1,))], [Change(TRUNCATE)], [Change(UPDATE, (1,), (1, ..., ...))]])
def test_the_first_batch_may_be_anything(lake, changes):
    sink = sink_at(lake)
    sink.apply(batch(*changes), LSN(100))
    state: State = {}
    apply_compacted(state, batch(*changes))
    assert read(sink) == state
    assert sink.applied_lsn(ONE_KEY.name) == 100


@pytest.mark.parametrize("table", [ONE_KEY, TWO_KEYS], ids=["one key", "two keys"])
def test_random_batches_leave_what_a_dictionary_has(lake, table):
    random_ = random.Random(5)
    for number in range(6):
        sink = sink_at(lake / str(number))
        source = Source(table, {key: (0, "a", "b") for key in KEYS[table.oid] if random_.random() < 0.5})
        state: State = {}
        if source.rows:
            initial = batch(*[Change(CREATE, key, row) for key, row in source.rows.items()], table=table)
            sink.apply(initial, LSN(1))
            apply_compacted(state, initial)
        for upto in range(2, 7):
            steps = random_steps(random_, random_.choice([1, 3, 10]))
            changes = [change for each in steps if (change := source.step(*each)) is not None]
            if changes:
                compacted = batch(*changes, table=table)
                sink.apply(compacted, LSN(upto))
                apply_compacted(state, compacted)
                assert read(sink, table) == state
            if random_.random() < 0.3:
                sink = sink_at(lake / str(number))
        assert state == source.rows


def test_a_batch_that_comes_again_changes_nothing(lake):
    sink = sink_at(lake)
    batches = [
        batch(Change(CREATE, (1,), (1, "a", "b")), Change(CREATE, (2,), (1, "a", "b"))),
        batch(Change(UPDATE, (3,), (1, ..., "b"), (1,))),
        batch(Change(DELETE, (2,))),
        batch(Change(TRUNCATE), Change(CREATE, (4,), (1, "a", "b"))),
    ]
    for number, each in enumerate(batches, 1):
        sink.apply(each, LSN(number * 100))
        state, at = read(sink), version(sink)
        for again in (sink, sink_at(lake)):
            for earlier in range(1, number + 1):
                again.apply(batches[earlier - 1], LSN(earlier * 100))
            assert (read(again), version(again)) == (state, at)
            assert again.applied_lsn(ONE_KEY.name) == number * 100


def test_an_altered_table_comes_in_steps_and_each_is_applied_once(lake):
    sink = sink_at(lake)
    wider = replace(ONE_KEY, columns=(*ONE_KEY.columns, Column("more", INT4)))
    first = batch(Change(CREATE, (1,), (1, "a", "b")))
    second = batch(Change(CREATE, (2,), (1, "a", "b", 7)), Change(DELETE, (1,)), table=wider)
    sink.apply(first, LSN(100), step=0, last=False)
    assert sink.applied_lsn(ONE_KEY.name) == ZERO
    at = version(sink)
    sink.apply(first, LSN(100), step=0, last=False)
    assert version(sink) == at
    sink.apply(second, LSN(100), step=1, last=True)
    assert sink.applied_lsn(ONE_KEY.name) == 100
    assert read(sink, wider) == {(2,): (1, "a", "b", 7)}
    at = version(sink)
    sink_at(lake).apply(first, LSN(100), step=0, last=False)
    sink_at(lake).apply(second, LSN(100), step=1, last=True)
    assert version(sink) == at


def test_two_pipelines_into_two_lakes_know_nothing_of_each_other(lake):
    one, other = sink_at(lake / "one", "one"), sink_at(lake / "other", "other")
    one.apply(batch(Change(CREATE, (1,), (1, "a", "b"))), LSN(100))
    assert other.applied_lsn(ONE_KEY.name) == ZERO
    assert one.applied_lsn(ONE_KEY.name) == 100


def test_tables_can_be_applied_at_the_same_time(lake):
    sink = sink_at(lake)
    tables = [replace(ONE_KEY, oid=number, name=TableName("public", f"t{number}")) for number in range(8)]
    errors: list[BaseException] = []

    def apply(table: Table) -> None:
        try:
            for upto in range(1, 4):
                sink.apply(batch(Change(CREATE, (upto,), (upto, "a", "b")), table=table), LSN(upto))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=apply, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for table in tables:
        assert read(sink, table) == {(upto,): (upto, "a", "b") for upto in range(1, 4)}


FAR_KEYS = {
    "a timestamp past the year 9999": (1114, [2**60, 2**61, -(2**61)]),
    "a timestamp with a zone": (1184, [2**60, 2**61, -(2**61)]),
    "a date before the year 1": (1082, [-(2**30), 2**30, 5]),
    "infinite dates": (1082, [2**31 - 1, -(2**31), 5]),
    "infinite timestamps": (1114, [2**63 - 1, -(2**63), 5]),
    "a bytea": (17, [b"", b"\xff", b"\0"]),
    "a bigint": (20, [-(2**63), 2**63 - 1, 0]),
}


@pytest.mark.parametrize(("type_oid", "keys"), FAR_KEYS.values(), ids=FAR_KEYS)
def test_a_row_that_moves_keeps_its_long_values_whatever_its_key_is(lake, type_oid, keys):
    table = replace(ONE_KEY, columns=(Column("k", type_oid, key=True), *ONE_KEY.columns[1:]))
    sink = sink_at(lake)
    first, second, third = ((key,) for key in keys)
    sink.apply(batch(Change(CREATE, first, (1, "a", "b")), Change(CREATE, second, (2, "c", "d")), table=table), LSN(1))
    sink.apply(batch(Change(UPDATE, third, (3, ..., "new"), first), Change(DELETE, second), table=table), LSN(2))
    stored = open_table(sink, table).to_pyarrow_table().combine_chunks()
    rows = list(zip(*(plain_values(stored.column(name)) for name in ("k", "n", "a", "b")), strict=True))
    assert rows == [(keys[2], 3, "a", "new")]


KEY_TYPES: dict[str, tuple[int, int, list[Any]]] = {
    "double precision": (701, -1, [float("nan"), 0.1, float("-inf")]),
    "boolean": (16, -1, [True, False]),
    "numeric(12,2)": (1700, (12 << 16 | 2) + 4, [Decimal("1.00"), Decimal("-0.05"), Decimal("9999999999.99")]),
    "numeric": (1700, -1, ["1.0", "1.00", "NaN"]),
    "text": (25, -1, ["", "A", "a", 'it\'s "quoted"', "\\", "x" * 3000]),
    "bytea": (17, -1, [b"", b"\0", b"\xff"]),
    "int[]": (1007, -1, [[], [1], [1, 2]]),
    "text[]": (1009, -1, [["a", None], ["a"], [""]]),
    "uuid": (2950, -1, ["00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
}


@pytest.mark.parametrize(("type_oid", "modifier", "keys"), KEY_TYPES.values(), ids=KEY_TYPES)
def test_rows_are_found_again_by_a_key_of_any_type(lake, type_oid, modifier, keys):
    columns = (Column("k", type_oid, modifier, key=True), Column("n", INT4), Column("a", TEXT), Column("b", TEXT))
    table = replace(ONE_KEY, columns=columns)
    sink = sink_at(lake)
    sink.apply(batch(*[Change(CREATE, (key,), (0, "a", "b")) for key in keys], table=table), LSN(1))
    updates = [Change(UPDATE, (key,), (index, ..., "b")) for index, key in enumerate(keys)]
    sink.apply(batch(*updates, table=table), LSN(2))
    stored = open_table(sink, table).to_pyarrow_table().sort_by("n")
    assert stored.column("n").to_pylist() == list(range(len(keys)))
    assert set(stored.column("a").to_pylist()) == {"a"}
    assert repr(stored.column("k").to_pylist()) == repr(keys)
    sink.apply(batch(*[Change(DELETE, (key,)) for key in keys[1:]], table=table), LSN(3))
    left = open_table(sink, table).to_pyarrow_table()
    assert repr(left.column("k").to_pylist()) == repr(keys[:1])


# Tables without a key


def multiset(sink: DeltaSink) -> Counter[int | None]:
    return Counter(open_table(sink, KEYLESS).to_pyarrow_table().column("n").to_pylist())


def test_equal_rows_are_kept_as_often_as_they_are_there(lake):
    sink = sink_at(lake)
    steps: list[list[tuple[int, int]]] = [
        [(0, 1), (0, 1), (0, 1), (0, 2)],
        [(1, 1)],
        [(1, 1), (0, 3), (0, 3)],
        [(1, 2), (0, 2), (0, 2)],
        [(1, 3), (1, 2), (1, 2)],
        [(1, 1), (0, 1)],
        [(2, 0), (0, 5), (0, 5)],
        [(1, 5), (1, 5)],
    ]
    rows: Counter[int | None] = Counter()
    for number, step in enumerate(steps, 1):
        sink.apply(compact(multiset_changes(step)), LSN(number))
        for what, value in step:
            if what == 2:
                rows.clear()
            else:
                rows[value] += 1 if what == 0 else -1
        assert multiset(sink) == +rows
        assert sink.applied_lsn(KEYLESS.name) == number
        at = version(sink, KEYLESS)
        sink.apply(compact(multiset_changes(step)), LSN(number))
        assert (multiset(sink), version(sink, KEYLESS)) == (+rows, at)


def test_a_multiset_has_the_digest_of_each_row_as_a_column(lake):
    sink = sink_at(lake)
    sink.apply(compact(multiset_changes([(0, 1)])), LSN(1))
    assert open_table(sink, KEYLESS).to_pyarrow_table().column_names == ["n", "m", ROW_HASH]


def test_many_random_batches_of_a_multiset(lake):
    random_ = random.Random(8)
    sink = sink_at(lake)
    rows: Counter[int | None] = Counter()
    for upto in range(1, 25):
        step = []
        for _ in range(random_.choice([1, 3, 8])):
            value = random_.randrange(4)
            if random_.random() < 0.5 and rows[value]:
                step.append((1, value))
                rows[value] -= 1
            else:
                step.append((0, value))
                rows[value] += 1
        sink.apply(compact(multiset_changes(step)), LSN(upto))
        assert multiset(sink) == +rows


# What happens to a table that was altered


def test_a_column_that_was_added_is_null_in_the_rows_that_were_there(lake):
    sink = sink_at(lake)
    wider = replace(ONE_KEY, columns=(*ONE_KEY.columns, Column("more", INT4)))
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b")), Change(CREATE, (2,), (1, "a", "b"))), LSN(100))
    sink.apply(
        batch(Change(UPDATE, (1,), (2, ..., "b", 9)), Change(CREATE, (3,), (3, "a", "b", 8)), table=wider), LSN(200)
    )
    assert read(sink, wider) == {(1,): (2, "a", "b", 9), (2,): (1, "a", "b", None), (3,): (3, "a", "b", 8)}


def test_a_column_that_was_added_before_the_others_is_followed_too(lake):
    sink = sink_at(lake)
    wider = replace(ONE_KEY, columns=(Column("more", INT4), *ONE_KEY.columns))
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b"))), LSN(100))
    sink.apply(batch(Change(CREATE, (2,), (8, 2, "a", "b")), table=wider), LSN(200))
    assert read(sink, wider) == {(1,): (None, 1, "a", "b"), (2,): (8, 2, "a", "b")}


def with_columns(*columns: Column) -> Table:
    return replace(ONE_KEY, columns=columns)


KEY, NUMBER, A, B = ONE_KEY.columns
REFUSED = {
    "a rename": with_columns(KEY, NUMBER, A, Column("renamed", TEXT)),
    "another type": with_columns(KEY, NUMBER, A, Column("b", INT4)),
    "a default": with_columns(KEY, NUMBER, A, B, Column("more", INT4, has_default=True)),
    "not null": with_columns(KEY, NUMBER, A, B, Column("more", INT4, not_null=True)),
    "a key of another type": with_columns(Column("k", 20, key=True), NUMBER, A, B),
    "one dropped and one added": with_columns(KEY, NUMBER, A, Column("c", TEXT), Column("d", TEXT)),
}


@pytest.mark.parametrize("altered", REFUSED.values(), ids=REFUSED)
def test_what_a_copy_cannot_follow_is_refused_and_leaves_it_as_it_was(lake, altered):
    sink = sink_at(lake)
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b"))), LSN(100))
    at = version(sink)
    fresh = tuple(None for column in altered.columns if not column.key)
    with pytest.raises(SinkError) as caught:
        sink.apply(batch(Change(CREATE, (2,), fresh, None), table=altered), LSN(200))
    assert "altered" in caught.value.message
    assert "columns concerned" in (caught.value.detail or "")
    assert caught.value.hint
    assert version(sink) == at
    assert sink.applied_lsn(ONE_KEY.name) == 100


def test_a_key_that_was_dropped_or_changed_is_refused(lake):
    """Rows would no longer be found, or found twice."""
    sink = sink_at(lake)
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b"))), LSN(100))
    keyless = replace(ONE_KEY, key=(), replica_identity="f")
    no_key = replace(compact(multiset_changes([(0, 1)])), table=keyless)
    columns: dict[str, Any] = {"k": [1], "n": [1], "a": ["x"], "b": ["y"], ROW_HASH: [b"h"]}
    upserts = replace(no_key.upserts, columns={name: pa.array(values) for name, values in columns.items()})
    with pytest.raises(SinkError, match="altered"):
        sink.apply(replace(no_key, upserts=upserts), LSN(200))
    assert read(sink) == {(1,): (1, "a", "b")}
    sink.apply(compact(multiset_changes([(0, 1), (0, 1)])), LSN(100))
    keyed = replace(KEYLESS, key=("n",), replica_identity="d")
    with pytest.raises(SinkError, match="altered"):
        sink.apply(compact(replace(multiset_changes([(0, 1)]), table=keyed, row_hash=None)), LSN(200))
    assert multiset(sink) == {1: 2}


def test_a_dropped_column_keeps_its_values_for_the_rows_that_had_them(lake):
    sink = sink_at(lake)
    narrower = with_columns(KEY, NUMBER, A)
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b")), Change(CREATE, (2,), (1, "a", "b"))), LSN(100))
    sink.apply(batch(Change(UPDATE, (1,), (2, "x")), Change(CREATE, (3,), (3, "y")), table=narrower), LSN(200))
    assert read(sink) == {(1,): (2, "x", "b"), (2,): (1, "a", "b"), (3,): (3, "y", None)}


# Names


ODD_NAMES = [
    "MixedCase",
    "with space",
    'quo"te',
    "apo'strophe",
    "back\\slash",
    "dot.ted",
    "select",
    "order",
    "source",
    "target",
    "gone",
    "match",
    "v0",
    "u1",
    "_op",
    "per%cent",
    "sla/sh",
    "ünïcödé",
    "漢字",
    "a,b;c{d}(e)=f",
    "tab\there",
    "new\nline",
    "?#&+",
    "`backtick`",
    "[brackets]",
    "$dollar",
    "@at",
    "x" * 63,
    " leading",
    "trailing ",
    "1digit",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_columns_may_have_any_name(lake, name):
    table = Table(
        1,
        TableName("public", "t"),
        (Column(name, INT4, key=True), Column(f"{name} 2", TEXT), Column("plain", TEXT)),
        (name,),
    )
    works_or_is_refused(lake, table)


@pytest.mark.parametrize("name", [*ODD_NAMES, ".", "..", ".hidden", "_delta_log", "CON", "a" * 40 + "ü" * 20])
def test_tables_and_schemas_may_have_any_name(lake, name):
    for table_name in (TableName("public", name), TableName(name, "t")):
        works_or_is_refused(lake, replace(NAMED, name=table_name))
    assert len(list(lake.glob("*/*/_delta_log"))) == 2


NAMED = Table(
    1, TableName("public", "t"), (Column("k", INT4, key=True), Column("a", TEXT), Column("plain", TEXT)), ("k",)
)


def works_or_is_refused(lake: Path, table: Table) -> None:
    """Every kind of batch works, or the first one is refused with a clear error."""
    sink = sink_at(lake)
    state: State = {}
    batches = [
        [Change(CREATE, (1,), ("a", "b")), Change(CREATE, (2,), ("c", "d"))],
        [Change(UPDATE, (1,), (..., "e")), Change(DELETE, (2,)), Change(CREATE, (3,), ("f", "g"))],
        [Change(UPDATE, (9,), (..., "h"), (1,))],
        [Change(TRUNCATE), Change(CREATE, (4,), ("i", "j"))],
    ]
    for upto, changes in enumerate(batches, 1):
        compacted = batch(*changes, table=table)
        sink.apply(compacted, LSN(upto))
        apply_compacted(state, compacted)
        assert read(sink, table) == state
        assert sink_at(lake).applied_lsn(table.name) == upto


def test_names_that_differ_only_in_case_are_different_tables(lake):
    sink = sink_at(lake)
    for number, name in enumerate(("orders", "Orders", "ORDERS")):
        table = replace(ONE_KEY, name=TableName("public", name))
        sink.apply(batch(Change(CREATE, (number,), (1, "a", "b")), table=table), LSN(1))
        assert read(sink, table) == {(number,): (1, "a", "b")}


def test_columns_that_differ_only_in_case_are_refused(lake):
    table = with_columns(KEY, Column("a", TEXT), Column("A", TEXT))
    sink = sink_at(lake)
    with pytest.raises(SinkError) as caught:
        sink.apply(batch(Change(CREATE, (1,), ("small", "large")), table=table), LSN(1))
    assert "'a' and 'A'" in (caught.value.detail or "")
    assert caught.value.hint
    assert not sink.path(table.name).exists()


# Trouble


def test_a_lake_that_cannot_be_written_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    sink = sink_at(tmp_path / "file")
    with pytest.raises(SinkError) as caught:
        sink.apply(batch(Change(CREATE, (1,), (1, "secret value", "b"))), LSN(1))
    assert caught.value.hint
    assert "secret value" not in str(caught.value)


def test_a_full_disk_is_a_named_error_and_the_batch_works_later(small_disk):
    sink = sink_at(small_disk / "lake")
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b"))), LSN(1))
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    rows = [Change(CREATE, (key,), (1, str(random.Random(key).random()) * 20, "b")) for key in range(2, 500)]
    with pytest.raises(SinkError) as caught:
        sink.apply(batch(*rows), LSN(2))
    assert "0." not in (caught.value.detail or "")
    ballast.unlink()
    sink.apply(batch(*rows), LSN(2))
    assert len(read(sink)) == 499
    assert sink.applied_lsn(ONE_KEY.name) == 2


def test_another_writer_in_between_does_not_break_the_table(lake):
    """pgtide should be the only writer; if it is not, the batch is applied once all the same, or refused."""
    sink = sink_at(lake)
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b"))), LSN(1))
    stranger = pa.table({"k": pa.array([50], pa.int32()), "n": pa.array([1], pa.int32()), "a": ["x"], "b": ["y"]})
    write_deltalake(str(sink.path(ONE_KEY.name)), stranger, mode="append")
    try:
        sink.apply(batch(Change(UPDATE, (1,), (2, ..., "c"))), LSN(2))
    except SinkError:
        sink_at(lake).apply(batch(Change(UPDATE, (1,), (2, ..., "c"))), LSN(2))
    assert read(sink) == {(1,): (2, "a", "c"), (50,): (1, "x", "y")}
    sink_at(lake).apply(batch(Change(DELETE, (1,))), LSN(3))
    assert read(sink) == {(50,): (1, "x", "y")}


def test_maintenance_changes_nothing_that_readers_see(lake, monkeypatch):
    monkeypatch.setattr("pgtide.sinks.delta._MAINTENANCE_SECONDS", 0.0)
    monkeypatch.setattr("pgtide.sinks.delta._FILES_BEFORE_COMPACTION", 3)
    sink = sink_at(lake)
    for upto in range(1, 9):
        sink.apply(batch(Change(CREATE, (upto,), (upto, "a", "b")), Change(DELETE, (upto - 3,))), LSN(upto))
        before = read(sink)
        sink.maintain()
        assert read(sink) == before
        assert sink.applied_lsn(ONE_KEY.name) == upto
        assert sink_at(lake).applied_lsn(ONE_KEY.name) == upto
    assert read(sink) == {(key,): (key, "a", "b") for key in (6, 7, 8)}


# Types, as Postgres sends them


TYPES = {
    "bool": ("true", "false"),
    "int2": ("1", "-2"),
    "int4": ("1", "-2"),
    "int8": ("1", "-9223372036854775808"),
    "float4": ("1.5", "'NaN'"),
    "float8": ("0.1", "'-Infinity'"),
    "numeric": ("1.230", "'NaN'"),
    "numeric(38,10)": ("1.23", "-9999999999999999999999999999.9999999999"),
    "numeric(50,5)": ("1.23", "12345678901234567890123456789012345678901234.56789"),
    "text": ("'x'", "''"),
    "varchar(5)": ("'x'", "''"),
    "char(5)": ("'x'", "''"),
    '"char"': ("'x'", "'y'"),
    "name": ("'x'", "'y'"),
    "bytea": (r"'\x00ff'", "''"),
    "date": ("'2020-02-29'", "'0044-03-15 BC'"),
    "time": ("'12:34:56.789012'", "'24:00'"),
    "timetz": ("'12:34:56+02'", "'00:00Z'"),
    "timestamp": ("'2020-02-29 12:34:56.789012'", "'infinity'"),
    "timestamptz": ("'2020-02-29 12:34:56.789012+02'", "'-infinity'"),
    "interval": ("'1 year 2 days 3 seconds'", "'-1 month'"),
    "uuid": ("'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "json": ("'{\"a\": 1}'", "'null'"),
    "jsonb": ("'{\"a\": 1}'", "'[]'"),
    "inet": ("'10.0.0.1/8'", "'::1'"),
    "cidr": ("'10.0.0.0/8'", "'::/0'"),
    "macaddr": ("'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"),
    "bit(3)": ("'101'", "'111'"),
    "varbit": ("'101'", "''"),
    "tsvector": ("'a:1 b:2'", "''"),
    "point": ("'(1,2)'", "'(0,0)'"),
    "money": ("1", "-2"),
    "oid": ("1", "4294967295"),
    "pg_lsn": ("'0/1'", "'FF/0'"),
    "int4range": ("'[1,2)'", "'empty'"),
    "int4multirange": ("'{[1,2),[5,6)}'", "'{}'"),
    "bool[]": ("'{t,f,null}'", "'{}'"),
    "int4[]": ("'{1,null,3}'", "'{}'"),
    "text[]": ("'{a,null,\"\"}'", "'{}'"),
    "numeric(5,2)[]": ("'{1.5,null}'", "'{}'"),
    "timestamptz[]": ("'{2020-01-01 00:00Z,null}'", "'{}'"),
    "uuid[]": ("'{00000000-0000-0000-0000-000000000001}'", "'{}'"),
    "mood": ("'sad'", "'glad'"),
    "mood[]": ("'{sad,glad}'", "'{}'"),
    "positive": ("1", "2"),
    "pair": ("'(1,x)'", "'(,)'"),
}


@pytest.fixture
def typed(database: str, tmp_path: Path) -> Iterator[tuple[list[Any], dict[str, str]]]:
    """Changes of a table with a column of each type: two inserts with nulls between, then updates."""
    columns = {f"c{index}": name for index, name in enumerate(TYPES)}
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create type mood as enum ('sad', 'glad')")
        connection.execute("create domain positive as int check (value > 0)")
        connection.execute("create type pair as (a int, b text)")
        declared = ", ".join(f"{name} {type_name}" for name, type_name in columns.items())
        connection.execute(f"create table t (id int primary key, {declared})")
        config = make_config(database, tmp_path / "journal")
        set_up(config, oracle=False)
        ones, others = (", ".join(pair[which] for pair in TYPES.values()) for which in (0, 1))
        nulls = ", ".join("null" for _ in TYPES)
        with capturing(config):
            for values in (f"(1, {ones})", f"(2, {nulls})", f"(3, {others})"):
                connection.execute(f"insert into t values {values}")
            wait_for_marker(config, database)
            (first,) = captured_changes(config, "t")
            changed = ", ".join(f"{name} = {pair[1]}" for name, pair in zip(columns, TYPES.values(), strict=True))
            connection.execute(f"update t set {changed} where id = 1")
            connection.execute(f"insert into t values (4, {ones})")
            connection.execute("delete from t where id = 3")
            wait_for_marker(config, database)
        (both,) = captured_changes(config, "t")
        yield [first, both], columns


def test_every_type_is_stored_as_it_was_decoded(typed, lake):
    (first, both), _ = typed
    sink = sink_at(lake)
    table = both.table
    sink.apply(compact(first), LSN(1))
    sink.apply(compact(both), LSN(2))
    sink.apply(compact(both), LSN(3))
    stored = open_table(sink, table).to_pyarrow_table().combine_chunks()
    assert Counter(stored.column("id").to_pylist()) == {1: 1, 2: 1, 4: 1}
    rows = {key: index for index, key in enumerate(stored.column("id").to_pylist())}
    decoded = {name: plain_values(column) for name, column in both.columns.items()}
    for name, values in decoded.items():
        found = plain_values(stored.column(name))
        # Rows of the sequence: inserts of 1, 2 and 3, the update of 1, the insert of 4.
        assert repr([found[rows[1]], found[rows[2]], found[rows[4]]]) == repr([values[3], values[1], values[4]]), name
