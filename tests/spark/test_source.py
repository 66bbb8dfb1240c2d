"""The `pgtide` data source, as a Spark user meets it."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.errors import PySparkException

from tests.fixtures.flow import Flow

pytestmark = pytest.mark.spark


def captured(flow: Flow) -> None:
    flow.sql.execute("create table orders (id int primary key, total numeric(10, 2), tags text[])")
    flow.start()
    flow.sql.execute("insert into orders values (1, 10.50, '{a,b}'), (2, 7, null)")
    flow.sql.execute("update orders set total = 11 where id = 1")
    flow.sql.execute("update orders set id = 20 where id = 2")
    flow.sql.execute("delete from orders where id = 1")
    flow.captured()


def test_read_gives_typed_columns_and_metadata_in_position_order(flow: Flow) -> None:
    captured(flow)
    frame = flow.session.read.format("pgtide").option("journal", flow.journal).option("table", "public.orders").load()
    assert frame.schema["total"].dataType.simpleString() == "decimal(10,2)"
    assert frame.schema["tags"].dataType.simpleString() == "array<string>"
    rows = frame.orderBy("_commit_lsn", "_ordinal").collect()
    assert [(row["_op"], row["id"]) for row in rows] == [("c", 1), ("c", 2), ("u", 1), ("u", 20), ("d", 1)]
    assert rows[0]["total"] == Decimal("10.50")
    assert rows[0]["tags"] == ["a", "b"]
    assert rows[3]["_old_key"]["id"] == 2
    assert [row["_ordinal"] for row in rows] == [0, 1, 0, 0, 0]


def test_a_stream_gives_each_change_once_over_restarts(flow: Flow) -> None:
    captured(flow)
    target = str(flow.path / "parquet")

    def run_available() -> None:
        stream = (
            flow.session.readStream.format("pgtide")
            .option("journal", flow.journal)
            .option("table", "public.orders")
            .option("maxBytesPerTrigger", "1024")
            .load()
        )
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(flow.path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(target)
        query.awaitTermination(60)

    run_available()
    flow.sql.execute("insert into orders values (3, 1, '{}')")
    flow.captured()
    run_available()
    run_available()
    rows = flow.session.read.parquet(target).orderBy("_commit_lsn", "_ordinal").collect()
    assert [(row["_op"], row["id"]) for row in rows] == [
        ("c", 1),
        ("c", 2),
        ("u", 1),
        ("u", 20),
        ("d", 1),
        ("c", 3),
    ]


def test_a_starting_position_leaves_out_what_was_before(flow: Flow) -> None:
    captured(flow)
    reader = flow.session.read.format("pgtide").option("journal", flow.journal).option("table", "orders")
    first = reader.load().selectExpr("min(_commit_lsn) as lsn").collect()[0]["lsn"]
    rows = reader.option("startingPosition", first).load().collect()
    assert [row["_op"] for row in sorted(rows, key=lambda row: row["_commit_lsn"])] == ["u", "u", "d"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "public.orders"}, "needs option `journal`"),
        ({"journal": "{journal}"}, "needs option `table`"),
        ({"journal": "{journal}", "table": "public.nope"}, "the journal has no table public.nope"),
        ({"journal": "{journal}", "tabel": "x"}, "unknown option of the pgtide source: tabel"),
    ],
)
def test_wrong_options_are_named(flow: Flow, options: dict[str, str], message: str) -> None:
    captured(flow)
    reader = flow.session.read.format("pgtide")
    for key, value in options.items():
        reader = reader.option(key, value.format(journal=flow.journal))
    with pytest.raises(PySparkException, match=message):
        reader.load().collect()
