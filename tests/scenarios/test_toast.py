"""Values that lie unchanged in TOAST are not sent, and never lost."""

from __future__ import annotations

import pytest

from tests.fixtures.flow import Flow

pytestmark = pytest.mark.spark

# Long and not compressible: stored out of line.
LONG = "(select string_agg(md5(random()::text), '') from generate_series(1, 200))"


def create(flow: Flow, identity: str = "default") -> None:
    flow.sql.execute("create table docs (id int primary key, title text, body text, extra text)")
    flow.sql.execute(f"alter table docs replica identity {identity}")
    flow.sql.execute(f"insert into docs select n, 'title', {LONG}, {LONG} from generate_series(1, 50) n")


@pytest.mark.parametrize("identity", ["default", "full"])
def test_an_update_of_another_column_keeps_the_long_values(flow: Flow, identity: str) -> None:
    create(flow, identity)
    flow.run()
    flow.sql.execute("update docs set title = 'new'")
    flow.settle()
    assert all(row["title"] == "new" and len(row["body"]) == 6400 for row in flow.rows("docs"))
    assert flow.assert_exact() == 50


def test_a_key_change_takes_the_long_values_along(flow: Flow) -> None:
    create(flow)
    flow.run()
    flow.sql.execute("update docs set id = id + 1000 where id <= 10")
    flow.sql.execute("update docs set id = id + 1000, title = 'again' where id between 1001 and 1005")
    flow.settle()
    assert flow.assert_exact() == 50


def test_two_keys_swapped_in_one_transaction_swap_their_long_values(flow: Flow) -> None:
    create(flow)
    flow.run()
    with flow.sql.transaction():
        flow.sql.execute("update docs set id = -1 where id = 1")
        flow.sql.execute("update docs set id = 1 where id = 2")
        flow.sql.execute("update docs set id = 2 where id = -1")
    flow.settle()
    assert flow.assert_exact() == 50


def test_changes_before_the_copy_arrives_are_completed_by_it(flow: Flow) -> None:
    create(flow)
    flow.start()
    flow.start_pipeline()
    flow.sql.execute("update docs set title = 'before the copy'")
    flow.sql.execute("update docs set id = id + 500 where id = 3")
    flow.sql.execute("delete from docs where id = 4")
    flow.settle()
    assert {row["body"] for row in flow.rows("docs")} == {None}
    flow.copy_tables()
    flow.settle()
    assert flow.assert_exact() == 49
