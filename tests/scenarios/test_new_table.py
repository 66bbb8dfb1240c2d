"""A table that joins later: copied and followed, and a transaction that was running at that moment loses nothing."""

from __future__ import annotations

import threading

import psycopg
import pytest

from pgtide.errors import SourceError
from pgtide.postgres import control
from pgtide.postgres.connection import connect
from pgtide.postgres.control import initialise, published_tables
from pgtide.schema import TableName
from tests.fixtures.flow import Flow

pytestmark = pytest.mark.spark


def test_a_table_that_joins_while_a_transaction_changes_it_is_copied_whole(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key)")
    flow.run()
    flow.sql.execute("create table b (id int primary key)")
    with psycopg.connect(flow.config.source.dsn.get_secret_value()) as writer:
        writer.execute("insert into b select generate_series(1, 10)")
        committing = threading.Timer(1.0, writer.commit)
        committing.start()
        with connect(flow.config.source) as connection:
            done = initialise(connection, flow.config.source)
        committing.join()
    assert done == [f"added to publication {flow.config.source.publication}: public.b"]
    flow.copy_tables()
    flow.sql.execute("insert into b values (11)")
    flow.settle()
    assert flow.assert_exact() == 11


def test_a_table_does_not_join_before_older_transactions_have_ended(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_OLDER_TRANSACTIONS_SECONDS", 0.5)
    flow.sql.execute("create table a (id int primary key)")
    with connect(flow.config.source) as connection:
        initialise(connection, flow.config.source)
    flow.sql.execute("create table b (id int primary key)")
    with psycopg.connect(flow.config.source.dsn.get_secret_value()) as writer:
        writer.execute("insert into b values (1)")
        with connect(flow.config.source) as connection, pytest.raises(SourceError, match="still running"):
            initialise(connection, flow.config.source)
    with connect(flow.config.source) as connection:
        assert published_tables(connection, flow.config.source.publication) == {TableName("public", "a")}
