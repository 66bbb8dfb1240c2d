"""The first copy in many chunks, while writers change, move, delete and re-insert rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from tests.fixtures.flow import Flow

pytestmark = pytest.mark.spark

_STATEMENTS = [
    "update items set n = n + 1 where id = %s",
    "update items set body = repeat(md5(random()::text), 100) where id = %s",
    "update items set id = id + 100000 where id = %s",
    "delete from items where id = %s",
    "insert into items values (%s, 0, repeat(md5(random()::text), 100)) on conflict do nothing",
]


@contextmanager
def writers(flow: Flow, count: int) -> Iterator[None]:
    """Each writer walks through the table with its own step, one statement of each kind in turn."""
    stop = threading.Event()

    def write(step: int) -> None:
        with psycopg.connect(flow.config.source.dsn.get_secret_value(), autocommit=True) as connection:
            turn = step
            while not stop.is_set():
                # A key that has moved before may be taken.
                with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    connection.execute(_STATEMENTS[turn % len(_STATEMENTS)], [turn * step % 3000 + 1])
                turn += 1

    threads = [threading.Thread(target=write, args=(7 + 4 * index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_chunks_and_live_changes_merge_exactly(small_chunks: Flow) -> None:
    flow = small_chunks
    flow.sql.execute("create table items (id int primary key, n int, body text)")
    flow.sql.execute("alter table items alter body set storage external")
    flow.sql.execute("insert into items select n, 0, repeat(md5(n::text), 100) from generate_series(1, 3000) n")
    with writers(flow, 3):
        flow.start()
        flow.start_pipeline()
        snapshot = flow.copy_tables()
    (progress,) = snapshot.progress.values()
    assert progress.done
    assert len(progress.chunks) > 10
    flow.settle()
    assert flow.assert_exact() > 1000


def test_a_copy_goes_on_with_the_chunks_that_are_missing(small_chunks: Flow) -> None:
    flow = small_chunks
    flow.sql.execute("create table items (id int primary key, n int, body text)")
    flow.sql.execute("insert into items select n, 0, repeat(md5(n::text), 20) from generate_series(1, 5000) n")
    flow.start()
    flow.start_pipeline()
    stopped = flow.copy_tables_until(chunks=2)
    done = {chunk.path for chunk in next(iter(stopped.progress.values())).chunks.values()}
    assert len(done) == 2
    finished = flow.copy_tables()
    (progress,) = finished.progress.values()
    assert progress.done
    assert done < {chunk.path for chunk in progress.chunks.values()}
    flow.settle()
    assert flow.assert_exact() == 5000


def test_a_table_that_is_rewritten_during_its_copy_is_begun_again(small_chunks: Flow) -> None:
    flow = small_chunks
    flow.sql.execute("create table items (id int primary key, n int, body text)")
    flow.sql.execute("insert into items select n, 0, repeat(md5(n::text), 20) from generate_series(1, 5000) n")
    flow.start()
    flow.start_pipeline()
    before = flow.copy_tables_until(chunks=2)
    flow.sql.execute("delete from items where id % 2 = 0; ")
    flow.sql.execute("vacuum full items")
    after = flow.copy_tables()
    old, new = next(iter(before.progress.values())), next(iter(after.progress.values()))
    assert old.started is not None
    assert new.started is not None
    assert old.started.snapshot != new.started.snapshot
    flow.settle()
    assert flow.assert_exact() == 2500


def test_keys_of_every_type_are_repaired(small_chunks: Flow) -> None:
    """Rows move between pages while they are copied, and their key has no plain text form."""
    flow = small_chunks
    flow.sql.execute("create table days (day date primary key, n int, body text)")
    flow.sql.execute("alter table days alter body set storage external")
    flow.sql.execute(
        "insert into days select date '2020-01-01' + n, 0, repeat(md5(n::text), 100) from generate_series(1, 2000) n"
    )
    flow.start()
    flow.start_pipeline()
    stopped = flow.copy_tables_until(chunks=2)
    assert len(next(iter(stopped.progress.values())).missing) > 2
    flow.sql.execute("update days set n = n + 1")
    flow.sql.execute("vacuum days")
    flow.sql.execute("update days set n = n + 1")
    snapshot = flow.copy_tables()
    assert -1 in next(iter(snapshot.progress.values())).chunks
    flow.settle()
    assert flow.assert_exact() == 2000


def test_a_change_of_the_table_during_its_copy_keeps_newer_rows(small_chunks: Flow) -> None:
    flow = small_chunks
    flow.sql.execute("create table items (id int primary key, n int, body text)")
    flow.sql.execute("insert into items select n, 0, repeat(md5(n::text), 20) from generate_series(1, 3000) n")
    flow.start()
    flow.copy_tables_until(chunks=2)
    flow.sql.execute("alter table items add column extra text")
    flow.sql.execute("update items set n = 1, extra = 'new'")
    flow.copy_tables()
    flow.sql.execute("update items set n = 2 where id % 2 = 0")
    flow.captured()
    flow.start_pipeline()
    flow.settle()
    assert flow.assert_exact() == 3000
