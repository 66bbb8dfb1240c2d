"""Verification from end to end: a real source, a Delta lake written by hand, and a pipeline that is only a position.

What a pipeline would have done, the tests do themselves, at the moment that each of them is about.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from pgtide.errors import ConfigError, PreflightError, SinkError, SourceError, VerifyError
from pgtide.lsn import LSN
from pgtide.postgres.control import current_lsn
from pgtide.verify import TableResult, VerifyResult, verify
from pgtide.verify import run as verify_run
from pgtide.verify import spool as verify_spool
from pgtide.verify.digests import DIGEST_BYTES, RECORD_BYTES
from pgtide.verify.sink import SinkReader
from pgtide.verify.source import KnownKeys, SourceReader, describe_rows
from tests.fixtures.waiting import wait_until
from tests.verify.lake import PIPELINE, Lake, copied, lake_at


@pytest.fixture
def lake(database: str, tmp_path: Path) -> Iterator[Lake]:
    """A source with two tables, one with a key and one without, both copied, and a pipeline that has passed them."""
    with psycopg.connect(database, autocommit=True) as connection:
        lake = lake_at(connection, database, tmp_path)
        lake.execute(
            "create table orders (id bigint primary key, customer text, total numeric(12,2), at timestamptz)",
            "insert into orders select n, 'customer ' || n, n * 1.5, now() from generate_series(1, 1000) n",
            "create table log (line text, level int)",
            "alter table log replica identity full",
            "insert into log select 'line ' || n % 100, n % 3 from generate_series(1, 300) n",
        )
        lake.copy("orders")
        lake.copy("log")
        lake.pass_everything()
        yield lake


def verified(lake: Lake, **more: Any) -> VerifyResult:
    return verify(lake.config, lake.pipeline, **{"timeout_seconds": 10, **more})


def only(lake: Lake, table: str, **more: Any) -> TableResult:
    (found,) = verified(lake, tables=[table], **more).tables
    return found


def counts(found: TableResult) -> tuple[int, int, int]:
    return found.missing, found.extra, found.different


def key_digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def without(rows: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([rows.slice(0, row), rows.slice(row + 1)])


def with_customer(rows: pa.Table, row: int, value: str | None) -> pa.Table:
    names = rows["customer"].to_pylist()
    names[row] = value
    return rows.set_column(rows.schema.get_field_index("customer"), "customer", pa.array(names))


def test_equal_tables_are_verified(lake: Lake) -> None:
    result = verified(lake)
    assert result.summary == "verified: 2 tables, 1,300 rows, 0 differences"
    assert result.equal
    assert [(table.status, table.rounds, table.rows, table.sink_rows) for table in result.tables] == [
        ("equal", 0, 300, 300),
        ("equal", 0, 1000, 1000),
    ]


def test_one_altered_value_is_found_and_shown_by_its_keys_digest(lake: Lake) -> None:
    rows = lake.read("orders")
    changed = rows["id"][7].as_py()
    lake.write("orders", with_customer(rows, 7, "somebody else"))
    found = only(lake, "orders")
    assert counts(found) == (0, 0, 1)
    assert found.status == "different"
    assert found.examples == (key_digest(str(changed)),)
    assert "somebody" not in str(found.to_json())


def test_a_null_is_not_an_empty_text(lake: Lake) -> None:
    lake.execute("update orders set customer = '' where id = 5")
    lake.copy("orders")
    rows = lake.read("orders")
    lake.write("orders", with_customer(rows, rows["id"].to_pylist().index(5), None))
    assert counts(only(lake, "orders")) == (0, 0, 1)


def test_a_missing_row_is_found(lake: Lake) -> None:
    lake.write("orders", without(lake.read("orders"), 500))
    assert counts(only(lake, "orders")) == (1, 0, 0)


def test_an_extra_row_is_found(lake: Lake) -> None:
    lake.execute("delete from orders where id = 77")
    found = only(lake, "orders")
    assert counts(found) == (0, 1, 0)
    assert found.examples == (key_digest("77"),)


def test_an_extra_row_is_found_in_any_file_of_the_table(lake: Lake) -> None:
    rows = lake.read("orders")
    lake.write("orders", rows.slice(0, 300))
    lake.append("orders", rows.slice(300, 300))
    lake.append("orders", rows.slice(600))
    lake.execute("delete from orders where id in (select id from orders order by ctid offset 450 limit 2)")
    assert counts(only(lake, "orders")) == (0, 2, 0)


def test_a_row_that_is_twice_in_the_sink_is_found(lake: Lake) -> None:
    lake.append("orders", lake.read("orders").slice(3, 1))
    assert counts(only(lake, "orders")) == (0, 1, 0)


def test_a_doubled_row_of_a_table_without_a_key_is_found(lake: Lake) -> None:
    lake.append("log", lake.read("log").slice(3, 1))
    assert counts(only(lake, "log")) == (0, 1, 0)


def test_an_altered_row_of_a_table_without_a_key_is_one_missing_and_one_extra(lake: Lake) -> None:
    rows = lake.read("log")
    other = pa.table({"line": ["never written"], "level": pa.array([1], pa.int32())})
    lake.write("log", pa.concat_tables([without(rows, 0), other.select(rows.column_names)]))
    assert counts(only(lake, "log")) == (1, 1, 0)


def test_a_table_that_the_lake_does_not_have_is_missing_row_by_row(lake: Lake) -> None:
    lake.execute("create table fresh (id int primary key)", "insert into fresh select generate_series(1, 20)")
    assert counts(only(lake, "fresh")) == (20, 0, 0)


def test_an_empty_table_that_the_lake_does_not_have_is_equal(lake: Lake) -> None:
    lake.execute("create table fresh (id int primary key)")
    assert only(lake, "fresh").status == "equal"


def test_tables_without_any_column_are_compared_by_their_number_of_rows(lake: Lake) -> None:
    lake.execute("create table bare ()", "alter table bare replica identity full", "insert into bare default values")
    assert counts(only(lake, "bare")) == (1, 0, 0)


@pytest.mark.parametrize("few", [0, 100_000])
def test_what_a_merge_has_written_is_compared_like_the_rest(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(verify_run, "_FEW_SUSPECTS", few)
    lake.execute(
        "create table things (id text primary key, data bytea, labels text[], parts bytea[], spot point)",
        "insert into things select n, n::text::bytea, array[n, null], array[n::text::bytea, null], point(n, n)"
        " from generate_series(1, 100) n",
    )
    lake.copy("things")
    lake.execute("update things set data = 'new', labels = '{a,b}' where id::int between 10 and 20")
    lake.merge("things", copied(lake.connection, lake.table("things")), "id")
    assert only(lake, "things").status == "equal"
    lake.execute("update things set parts = '{}' where id = '15'", "delete from things where id = '16'")
    assert counts(only(lake, "things")) == (0, 1, 1)


@pytest.mark.parametrize("few", [0, 100_000])
def test_all_ways_of_looking_again_find_the_same(lake: Lake, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Few suspects are looked up by key, many by reading the table again."""
    monkeypatch.setattr(verify_run, "_FEW_SUSPECTS", few)
    lake.execute("delete from orders where id <= 2", "update orders set total = 0 where id between 3 and 5")
    lake.execute("insert into orders select n, 'new', 1, now() from generate_series(2001, 2007) n")
    lake.execute("delete from log where line = 'line 7' and level = 1")
    result = verified(lake)
    log, orders = result.tables
    assert counts(orders) == (7, 2, 3)
    assert log.missing == 0
    assert log.extra == 1


def test_rows_are_looked_up_by_keys_of_any_type(lake: Lake) -> None:
    """Printed keys are found through the index, others by their digests; spilled tables in partitions."""
    lake.execute(
        "create type kind as enum ('a, b', 'c')",
        'create table printed (k kind, n numeric(6,2), c char(4), u uuid, "odd %s ""name" bigint, v int,'
        ' primary key (k, n, c, u, "odd %s ""name"))',
        "insert into printed select 'a, b', n / 4.0, 'x', md5(n::text)::uuid, n, n from generate_series(1, 50) n",
        "create table timed (at timestamptz primary key, v int)",
        "insert into timed select timestamptz '2024-01-01' + n * interval '1 hour', n from generate_series(1, 50) n",
        "create table ratios (r float8 primary key, v int)",
        "insert into ratios select n / 3.0, n from generate_series(1, 50) n",
    )
    for name in ("printed", "timed", "ratios"):
        lake.copy(name)
    lake.execute(
        "update printed set v = 0 where v = 7",
        "delete from printed where v = 9",
        "insert into printed values ('c', 1, 'y', gen_random_uuid(), 5, 5)",
        "update timed set v = 0 where v = 7",
        "delete from timed where v = 9",
        "delete from ratios where v = 3",
    )
    assert counts(only(lake, "printed")) == (1, 1, 1)
    assert counts(only(lake, "timed")) == (0, 1, 1)
    assert counts(only(lake, "ratios")) == (0, 1, 0)


def test_keys_that_nobody_has_any_more_are_looked_up_without_harm(lake: Lake) -> None:
    form = describe_rows(lake.connection, lake.table("orders"))
    source, sink = SourceReader(lake.connection, form), SinkReader(lake.path("orders"), form)
    unknown = np.zeros((1, DIGEST_BYTES), np.uint8)
    known = KnownKeys.of({**source.resolve(unknown), **sink.resolve(unknown)})
    with source.read_keys(known) as ours, sink.read_keys(known) as theirs, source.read_digests(unknown) as again:
        assert (ours.rows, theirs.rows, again.rows) == (0, 0, 0)


def test_a_table_too_large_for_memory_is_compared_in_partitions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_spool, "RUN_BYTES", 100 * RECORD_BYTES)
    monkeypatch.setattr(verify_run, "_FEW_SUSPECTS", 0)
    assert only(lake, "orders").status == "equal"
    lake.execute("delete from orders where id <= 150", "update orders set total = 0 where id > 900")
    found = only(lake, "orders")
    assert counts(found) == (0, 150, 100)
    assert len(found.examples) == 5


@contextmanager
def pipeline_thread(action: Callable[[], None]) -> Iterator[None]:
    """Something that happens beside the verification; what goes wrong in it fails the test."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)
        assert not thread.is_alive()
        assert not failures, failures


def test_what_the_pipeline_mends_while_it_is_waited_for_is_no_difference(lake: Lake) -> None:
    rows = lake.read("orders")
    lake.write("orders", without(rows, 500))
    lake.consumers.save(PIPELINE, LSN(1))
    before = current_lsn(lake.connection)

    def catch_up() -> None:
        with psycopg.connect(lake.config.source.dsn.get_secret_value(), autocommit=True) as connection:
            wait_until(lambda: current_lsn(connection) > before, describe="verify has written its barrier")
        lake.append("orders", rows.slice(500, 1))
        lake.pass_everything()

    with pipeline_thread(catch_up):
        assert only(lake, "orders").status == "equal"


def test_what_the_pipeline_mends_between_two_rounds_is_no_difference(lake: Lake) -> None:
    rows = lake.read("orders")
    lake.write("orders", without(rows, 500))
    lines = []

    def mend(line: str) -> None:
        lines.append(line)
        if "round 3" in line:
            lake.append("orders", rows.slice(500, 1))

    found = only(lake, "orders", progress=mend)
    assert (found.status, found.rounds) == ("equal", 3)
    assert lines[0] == "public.orders: reading source and sink"
    assert lines[1:] == [
        f"public.orders: looking again at what differed or has changed (1 rows), round {number}" for number in (1, 2, 3)
    ]


def test_a_row_that_never_rests_is_undecided_and_no_difference(lake: Lake) -> None:
    """A pipeline that applies nothing and says it does; each time that it says so the row has changed again."""
    done = threading.Event()
    lake.execute("update orders set total = 0 where id = 5")

    def write_and_pass() -> None:
        with psycopg.connect(lake.config.source.dsn.get_secret_value(), autocommit=True) as connection:
            while not done.is_set():
                reached = current_lsn(connection)
                connection.execute("update orders set total = total + 1 where id = 5")
                lake.consumers.save(PIPELINE, reached)

    with pipeline_thread(write_and_pass):
        try:
            found = only(lake, "orders")
        finally:
            done.set()
    assert counts(found) == (0, 0, 0)
    assert (found.undecided, found.status, found.rounds) == (1, "undecided", 10)


@pytest.mark.parametrize("lost", [0, 1])
def test_under_writes_that_the_sink_follows_only_what_it_lost_is_a_difference(lake: Lake, lost: int) -> None:
    """A pipeline that copies the whole table again and again while it is being written to, and loses a row or none."""
    done = threading.Event()
    dsn = lake.config.source.dsn.get_secret_value()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not done.wait(0.01):
                connection.execute("update orders set total = total + 1 where id = 2 + (random() * 998)::int")

    def follow() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            follower = Lake(connection, lake.config)
            while not done.is_set():
                reached = current_lsn(connection)
                rows = copied(connection, follower.table("orders")).sort_by("id")
                follower.write("orders", rows.slice(lost))
                lake.consumers.save(PIPELINE, reached)

    lake.consumers.save(PIPELINE, LSN(1))
    with pipeline_thread(write), pipeline_thread(follow):
        try:
            found = only(lake, "orders")
        finally:
            done.set()
    assert counts(found) == (lost, 0, 0)
    assert found.undecided == 0
    assert found.examples == (key_digest("1"),)[:lost]


def test_an_idle_pipeline_is_an_error_that_says_what_to_do(lake: Lake) -> None:
    lake.consumers.save(PIPELINE, LSN(1))
    with pytest.raises(VerifyError, match="has not moved") as caught:
        verified(lake, timeout_seconds=0.3)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("is `pgtide run` running?")
    assert "0/1" in (caught.value.detail or "")


def test_a_pipeline_that_has_never_run_is_an_error_too(lake: Lake) -> None:
    (lake.config.journal.path / "consumers" / f"{PIPELINE}.json").unlink()
    with pytest.raises(VerifyError, match="has not moved") as caught:
        verified(lake, timeout_seconds=0.3)
    assert "nothing yet" in (caught.value.detail or "")


def test_a_pipeline_is_waited_for_as_long_as_it_moves(lake: Lake) -> None:
    start = current_lsn(lake.connection)
    lake.consumers.save(PIPELINE, LSN(1))

    def crawl() -> None:
        # Slower altogether than the timeout, but never as slow in one step.
        for step in range(20):
            threading.Event().wait(0.1)
            lake.consumers.save(PIPELINE, LSN(2 + step))
        lake.consumers.save(PIPELINE, LSN(start + 2**30))

    with pipeline_thread(crawl):
        assert only(lake, "orders", timeout_seconds=1).status == "equal"


def test_tables_are_chosen_by_source_pipeline_and_caller(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        lake = lake_at(connection, database, tmp_path, tables=["public.*", "!public.secret"])
        lake.execute("create table a (id int primary key)", "create table ab (id int primary key)")
        lake.execute("create table secret (id int primary key)")
        lake.pass_everything()
        assert [str(each.table) for each in verified(lake).tables] == ["public.a", "public.ab"]
        assert [str(each.table) for each in verified(lake, tables=["public.a*"]).tables] == ["public.a", "public.ab"]
        assert [str(each.table) for each in verified(lake, tables=["ab"]).tables] == ["public.ab"]
        with pytest.raises(ConfigError, match=r"no table 'public\.secret'"):
            verified(lake, tables=["public.secret"])


def test_a_pipeline_without_tables_is_an_error(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        lake = lake_at(connection, database, tmp_path, tables=["shop.*"])
        with pytest.raises(PreflightError, match="selects no table"):
            verified(lake)
        lake.execute("create table a (id int primary key)")
        with pytest.raises(ConfigError, match="selects no table"):
            verified(lake)


def test_an_unreadable_lake_is_an_error_without_a_value(lake: Lake) -> None:
    for path in lake.path("orders").glob("*.parquet"):
        path.write_bytes(b"not a parquet file: customer 7")
    with pytest.raises(SinkError, match="cannot read Delta table") as caught:
        only(lake, "orders")
    assert "customer" not in str(caught.value)


def test_files_that_are_gone_for_good_are_an_error(lake: Lake) -> None:
    for path in lake.path("orders").glob("*.parquet"):
        path.unlink()
    with pytest.raises(SinkError, match="cannot read Delta table"):
        only(lake, "orders")


def test_a_broken_log_is_an_error(lake: Lake) -> None:
    for path in (lake.path("orders") / "_delta_log").glob("*.json"):
        path.write_text("nonsense")
    with pytest.raises(SinkError, match="cannot read Delta table"):
        only(lake, "orders")


def test_a_column_that_was_added_without_values_is_equal_before_the_sink_has_it(lake: Lake) -> None:
    lake.execute("alter table orders add note text")
    assert only(lake, "orders").status == "equal"
    lake.execute("update orders set note = 'x' where id = 1")
    assert counts(only(lake, "orders")) == (0, 0, 1)


def test_a_column_that_the_source_dropped_is_not_compared(lake: Lake) -> None:
    lake.execute("alter table orders drop customer")
    assert only(lake, "orders").status == "equal"


def test_a_table_that_is_altered_meanwhile_is_named(lake: Lake) -> None:
    lake.write("orders", without(lake.read("orders"), 1))

    def alter(line: str) -> None:
        if "round 1" in line:
            lake.execute("alter table orders drop customer")

    with pytest.raises(VerifyError, match=r"public\.orders was altered or dropped"):
        only(lake, "orders", progress=alter)


def test_rows_that_row_security_hides_are_an_error_and_not_extra(lake: Lake) -> None:
    lake.execute("create role reader login", "grant select on orders to reader")
    try:
        lake.execute("alter table orders enable row level security")
        lake.execute("create policy part on orders using (id < 10)")
        dsn = lake.config.source.dsn.get_secret_value().replace("postgres@", "reader@")
        source = lake.config.source.model_copy(update={"dsn": type(lake.config.source.dsn)(dsn)})
        config = lake.config.model_copy(update={"source": source})
        with pytest.raises(SourceError, match="lacks a privilege") as caught:
            verify(config, lake.pipeline, tables=["orders"], timeout_seconds=5)
        assert "row-level security" in (caught.value.detail or "")
    finally:
        lake.execute("drop owned by reader", "drop role reader")
