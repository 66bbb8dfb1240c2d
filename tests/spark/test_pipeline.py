"""Pipelines: what is applied is applied once, whatever happens in between."""

from __future__ import annotations

import shutil

import pytest

from pgtide.errors import SinkError
from pgtide.journal import Consumers, JournalDirectory
from pgtide.postgres.connection import connect
from pgtide.postgres.control import initialise
from pgtide.spark.pipeline import _named
from tests.fixtures.flow import Flow
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.spark


def test_a_pipeline_that_is_stopped_and_started_goes_on_where_it_was(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key, v int)")
    flow.run()
    flow.sql.execute("insert into a select n, n from generate_series(1, 100) n")
    flow.settle()
    version = flow.lake("a").version()
    assert flow.pipeline is not None
    flow.pipeline.stop()
    flow.sql.execute("update a set v = 0 where id <= 10")
    flow.start_pipeline()
    flow.settle()
    assert flow.lake("a").version() == version + 1
    assert flow.assert_exact() == 100


def test_a_lost_checkpoint_repeats_nothing_because_the_lake_knows_its_position(flow: Flow) -> None:
    flow.sql.execute("create table log (line text); alter table log replica identity full")
    flow.sql.execute("create table docs (id int primary key, n int, body text)")
    flow.sql.execute("alter table docs alter body set storage external")
    flow.sql.execute("insert into docs select n, n, repeat('x', 5000) from generate_series(1, 3) n")
    flow.run()
    assert flow.pipeline is not None
    before = flow.pipeline.applied_lsn
    flow.sql.execute("insert into log values ('x'), ('x')")
    flow.sql.execute("update docs set id = id + 10")
    flow.settle()
    flow.pipeline.stop()
    # The query forgets all, the consumer's record is older than the lake, and the next batch overlaps what it has.
    shutil.rmtree(flow.config.journal.path / "pipelines")
    Consumers(JournalDirectory(flow.config.journal.path)).save("lake", before)
    flow.sql.execute("insert into log values ('x')")
    flow.sql.execute("update docs set n = 0")
    flow.captured()
    flow.start_pipeline()
    flow.settle()
    assert flow.assert_exact() == 6


def test_a_lake_without_its_tables_is_refused(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key)")
    flow.run()
    assert flow.pipeline is not None
    flow.pipeline.stop()
    shutil.rmtree(flow.path / "lake")
    with pytest.raises(SinkError, match=r"table public\.a is missing from the sink"):
        flow.start_pipeline()


def test_a_lake_of_another_journal_is_refused(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key)")
    flow.run()
    assert flow.pipeline is not None
    flow.pipeline.stop()
    shutil.rmtree(flow.config.journal.path / "consumers")
    with pytest.raises(SinkError, match="has a copy that this journal does not know"):
        flow.start_pipeline()


def test_a_new_nullable_column_is_followed(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key, v int)")
    flow.sql.execute("insert into a values (1, 1)")
    flow.run()
    flow.sql.execute("update a set v = 2")
    flow.sql.execute("alter table a add column w text")
    flow.sql.execute("insert into a values (2, 2, 'w')")
    flow.settle()
    assert flow.assert_exact() == 2


def failure_of(flow: Flow) -> SinkError:
    """Wait until the pipeline has failed."""

    def failure() -> SinkError | None:
        try:
            assert flow.pipeline is not None
            flow.pipeline.poll()
        except SinkError as error:
            return error
        return None

    error = wait_until(failure)
    assert error is not None
    return error


def test_a_renamed_table_is_refused_and_not_begun_again(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key)")
    flow.sql.execute("insert into a values (1)")
    flow.run()
    flow.sql.execute("alter table a rename to b")
    flow.sql.execute("insert into b values (2)")
    assert failure_of(flow).message == "table public.a was renamed to public.b"
    assert not (flow.path / "lake" / "public" / "b").exists()


def test_a_table_that_was_dropped_and_created_again_is_refused(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key)")
    flow.sql.execute("insert into a values (1)")
    flow.run()
    flow.sql.execute("drop table a; create table a (id int primary key)")
    with connect(flow.config.source) as connection:
        initialise(connection, flow.config.source)
    flow.sql.execute("insert into a values (2)")
    assert "is not the one that its copy was made from" in failure_of(flow).message
    assert [row["id"] for row in flow.rows("a")] == [1]


@pytest.mark.parametrize(
    "alteration",
    ["rename column v to w", "alter column v type bigint", "add column w int not null default 7"],
)
def test_an_alteration_that_cannot_be_followed_stops_with_its_name(flow: Flow, alteration: str) -> None:
    flow.sql.execute("create table a (id int primary key, v int)")
    flow.sql.execute("insert into a values (1, 1)")
    flow.run()
    flow.sql.execute(f"alter table a {alteration}")
    flow.sql.execute("insert into a(id) values (2)")

    error = failure_of(flow)
    assert "public.a was altered" in error.message
    assert error.hint is not None
    assert len(flow.rows("a")) == 1


def test_a_failure_that_is_not_ours_tells_its_kind_and_no_value() -> None:
    text = "[STREAM_FAILED] Query failed\nTraceback (most recent call last):\nValueError: cannot use 'cell value'\n"
    error = _named(text, "lake")
    assert error.detail == "ValueError"
    assert "cell value" not in str(error)


def test_a_failure_of_ours_keeps_its_message() -> None:
    assert (
        _named("x\npgtide.errors.JournalGap: the rows are missing\n", "lake").detail
        == "JournalGap: the rows are missing"
    )
