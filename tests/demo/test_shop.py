"""The shop: what is loaded has the size and the difficulties that it is there for."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from pgtide.columns import arrow_schema
from pgtide.demo.shop import FIRST_DRAFT_ID, SCHEMA, TABLES, count_rows, load_shop
from pgtide.errors import SourceError
from pgtide.postgres.catalog import one, read_tables
from pgtide.postgres.connection import Connection
from pgtide.schema import TableName

SMALL = 0.02


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def test_at_full_scale_it_has_more_than_220_000_rows(connection: Connection) -> None:
    rows = load_shop(connection)

    assert list(rows) == [TableName(SCHEMA, table) for table in TABLES]
    assert sum(rows.values()) > 220_000
    assert rows == count_rows(connection)


def test_the_smallest_shop_has_something_in_every_table(connection: Connection) -> None:
    rows = load_shop(connection, scale=0.0001)

    assert min(rows.values()) >= 20
    assert sum(rows.values()) < 500


def test_a_refused_load_leaves_nothing_behind(connection: Connection) -> None:
    connection.execute("create schema shop")

    with pytest.raises(SourceError, match="already exists"):
        load_shop(connection, scale=SMALL)

    assert one(connection, "select count(*) from pg_class where relnamespace = 'shop'::regnamespace") == (0,)


def test_descriptions_and_long_details_lie_out_of_line(connection: Connection) -> None:
    rows = load_shop(connection, scale=SMALL)

    assert _values_out_of_line(connection, "products") == rows[TableName(SCHEMA, "products")]
    assert _values_out_of_line(connection, "audit_log") > 0


def test_the_audit_log_has_no_key_and_the_same_rows_many_times(connection: Connection) -> None:
    rows = load_shop(connection, scale=SMALL)

    (log,) = read_tables(connection, [TableName(SCHEMA, "audit_log")])
    assert log.table.keyless
    assert log.table.replica_identity == "f"
    (different,) = one(connection, "select count(*) from (select distinct * from shop.audit_log) each")
    assert different < rows[TableName(SCHEMA, "audit_log")] / 4


def test_the_tables_refer_to_each_other_but_never_to_a_draft(connection: Connection) -> None:
    load_shop(connection, scale=SMALL)

    references = connection.execute(
        "select conrelid::regclass::text, confrelid::regclass::text from pg_constraint where contype = 'f'"
    ).fetchall()
    assert sorted(references) == [
        ("shop.inventory", "shop.products"),
        ("shop.order_items", "shop.orders"),
        ("shop.order_items", "shop.products"),
        ("shop.orders", "shop.customers"),
    ]
    drafts = one(
        connection,
        "select count(*), count(item), count(stock) from shop.products product"
        " left join shop.order_items item on item.product_id = product.id"
        " left join shop.inventory stock on stock.product_id = product.id where product.id >= %s",
        [FIRST_DRAFT_ID],
    )
    assert drafts == (20, 0, 0)


def test_every_order_is_worth_its_lines(connection: Connection) -> None:
    load_shop(connection, scale=SMALL)

    wrong = one(
        connection,
        "select count(*) from shop.orders where total is distinct from"
        " (select sum(quantity * unit_price) from shop.order_items where order_id = id)",
    )
    assert wrong == (0,)


def test_every_column_has_a_type_of_its_own_in_arrow(connection: Connection) -> None:
    load_shop(connection, scale=SMALL)

    for source_table in read_tables(connection, [TableName(SCHEMA, table) for table in TABLES]):
        for field in arrow_schema(source_table.table):
            assert not pa.types.is_binary(field.type), f"{source_table.table.name}.{field.name}"


def test_two_loads_differ_in_nothing_but_the_time(connection: Connection) -> None:
    load_shop(connection, scale=SMALL)
    first = _digests(connection)
    connection.execute("drop schema shop cascade")

    load_shop(connection, scale=SMALL)

    assert _digests(connection) == first


def _values_out_of_line(connection: Connection, table: str) -> int:
    """How many values the table's TOAST holds."""
    (toast,) = one(
        connection,
        "select relname from pg_class where oid = (select reltoastrelid from pg_class where oid = %s::regclass)",
        [f"shop.{table}"],
    )
    counted = sql.SQL("select count(distinct chunk_id) from {}").format(sql.Identifier("pg_toast", toast))
    row = connection.execute(counted).fetchone()
    assert row is not None
    return int(row[0])


def _digests(connection: Connection) -> dict[str, str]:
    """The content of each table without its times, in one number each."""
    times = ["at", "created_at", "placed_at", "updated_at"]
    query = sql.SQL(
        "select md5(string_agg(line, '' order by line))"
        " from (select (to_jsonb(each) - %s::text[])::text from {} each) lines (line)"
    )
    return {
        table: connection.execute(query.format(sql.Identifier(SCHEMA, table)), [times]).fetchall()[0][0]
        for table in TABLES
    }
