"""A table without a key is a multiset: equal rows are counted, not merged."""

from __future__ import annotations

import pytest

from tests.fixtures.flow import Flow

pytestmark = pytest.mark.spark


def test_equal_rows_come_and_go_one_by_one(flow: Flow) -> None:
    flow.sql.execute("create table log (line text, n int); alter table log replica identity full")
    flow.sql.execute("insert into log select 'same', n % 3 from generate_series(1, 30) n")
    flow.run()
    assert flow.assert_exact() == 30
    flow.sql.execute("delete from log where ctid in (select ctid from log where n = 1 limit 4)")
    flow.sql.execute("update log set n = 7 where ctid in (select ctid from log where n = 2 limit 1)")
    flow.sql.execute("insert into log values ('same', 0), (null, null), (null, null)")
    flow.settle()
    assert flow.assert_exact() == 29
    flow.sql.execute("truncate log")
    flow.sql.execute("insert into log values ('after', 1), ('after', 1)")
    flow.settle()
    assert [row["line"] for row in flow.rows("log")] == ["after", "after"]
    assert flow.assert_exact() == 2
