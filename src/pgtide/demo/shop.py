"""The shop: seven tables to copy, for the demonstration, the tests and the measurements.

Between them they have what makes copying hard: keys of one and of two columns, uuid keys, values stored out of line,
enums, arrays, jsonb, numerics, foreign keys, and a table whose rows have no key and repeat.

Invariant: everything but the times follows from the number of rows asked for.
"""

from __future__ import annotations

from importlib import resources

from psycopg import ClientCursor, sql

from pgtide.postgres.connection import Connection, source_errors
from pgtide.schema import TableName

SCHEMA = "shop"
TABLES = ("customers", "products", "orders", "order_items", "inventory", "audit_log", "carts")
# Products with an id from here on are drafts: no order and no inventory refers to them, so their key may change.
FIRST_DRAFT_ID = 1_000_000_000

# At scale 1.0. An order has two and a half lines on average, which makes the whole about 258,000 rows.
_ROWS = {"customers": 20_000, "products": 3_800, "drafts": 200, "orders": 60_000, "audit_log": 20_000, "carts": 300}
# Below this the workload would find nothing to work on.
_ROWS_MIN = 20


def load_shop(connection: Connection, *, scale: float = 1.0) -> dict[TableName, int]:
    """Create schema `shop` and fill it, in one transaction; gives the number of rows of each table.

    The schema must not exist yet.
    """
    sizes = {name: max(int(rows * scale), _ROWS_MIN) for name, rows in _ROWS.items()}
    script = resources.files("pgtide.demo").joinpath("shop.sql").read_text(encoding="utf-8")
    with source_errors(), connection.transaction():
        # The server takes several statements at once only without parameters: put them in here.
        ClientCursor(connection).execute(script, sizes)
        return count_rows(connection)


def count_rows(connection: Connection) -> dict[TableName, int]:
    """How many rows each table has now."""
    names = [TableName(SCHEMA, table) for table in TABLES]
    counts = [sql.SQL("(select count(*) from {})").format(sql.Identifier(*name)) for name in names]
    row = connection.execute(sql.SQL("select {}").format(sql.SQL(", ").join(counts))).fetchone()
    assert row is not None
    return dict(zip(names, row, strict=True))
