"""TRUNCATE empties the copy, in order with the changes around it."""

from __future__ import annotations

import pytest

from tests.fixtures.flow import Flow

pytestmark = pytest.mark.spark


def test_truncate_of_several_tables_is_followed_in_order(flow: Flow) -> None:
    for name in ("a", "b"):
        flow.sql.execute(f"create table {name} (id int primary key, v int)")
        flow.sql.execute(f"insert into {name} select n, n from generate_series(1, 20) n")
    flow.run()
    with flow.sql.transaction():
        flow.sql.execute("insert into a values (100, 1)")
        flow.sql.execute("truncate a, b")
        flow.sql.execute("insert into a values (5, 5)")
    flow.settle()
    assert [row["id"] for row in flow.rows("a")] == [5]
    assert flow.rows("b") == []
    assert flow.assert_exact() == 1


def test_a_rolled_back_transaction_leaves_nothing(flow: Flow) -> None:
    flow.sql.execute("create table a (id int primary key, v int)")
    flow.run()
    with flow.sql.transaction(force_rollback=True):
        flow.sql.execute("insert into a values (1, 1)")
    with flow.sql.transaction():
        flow.sql.execute("insert into a values (2, 2)")
        with flow.sql.transaction(force_rollback=True):
            flow.sql.execute("insert into a values (3, 3)")
    flow.settle()
    assert [row["id"] for row in flow.rows("a")] == [2]
