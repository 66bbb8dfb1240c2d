"""What happens in the shop: each kind of transaction as a function, and the one table of them.

Between them the kinds do what makes change data capture hard: several tables at once, changes of key with a long value
left in TOAST, the same key deleted and inserted again, two keys swapped, one of many equal rows removed, work undone by
a savepoint or by a rollback, many rows in one statement, truncate.

Each function works inside a transaction that its caller begins and ends, and gives the number of rows it changed. It
finds its rows at random; when there is none left to work on, it changes nothing.

Invariant: rows are locked in the order of their keys where several are, so that deadlocks are rare; they do happen.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from pgtide.demo.shop import FIRST_DRAFT_ID
from pgtide.postgres.connection import Connection

BULK_ROWS = 300
_STATUSES = ("placed", "paid", "packed", "shipped", "delivered", "returned", "cancelled")
_TAGS = ("new", "vip", "b2b", "newsletter", "späte Zahlung", 'says "hello"', None)
_NAMES = ("Ada Lovelace", "Björn Müller", "Grace O'Brien", "花子", "Chloé Nowak")
_CARTS = 50
_LINES_MAX = 5
# More than any order has lines, so that shifting them all makes no two collide.
_LINE_SHIFT = 10


@dataclass
class Till:
    """What a transaction needs: a connection, chance, how much a bulk statement may touch, and roughly how large the
    shop is."""

    connection: Connection
    chance: random.Random
    bulk_rows: int
    products: int
    newest_order: int
    audit_pages: int

    @classmethod
    def open(cls, connection: Connection, chance: random.Random, bulk_rows: int = BULK_ROWS) -> Till:
        """Look at the shop."""
        row = connection.execute(
            "select (select count(*) from shop.products where id < %s), coalesce(max(id), 1),"
            " pg_relation_size('shop.audit_log') / current_setting('block_size')::int from shop.orders",
            [FIRST_DRAFT_ID],
        ).fetchone()
        assert row is not None
        return cls(connection, chance, bulk_rows, *row)

    def change(self, statement: str, *values: Any) -> int:
        """Run a statement; gives the number of rows it changed."""
        return self.connection.execute(statement.encode(), values).rowcount

    def ask(self, statement: str, *values: Any) -> list[Any]:
        """The first column of the rows that a statement gives."""
        return [row[0] for row in self.connection.execute(statement.encode(), values)]

    def span(self, first: int) -> tuple[int, int]:
        """First and last key of a bulk statement."""
        return first, first + self.bulk_rows - 1

    def some_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.chance.getrandbits(128), version=4)

    def some_product(self) -> int:
        """One that is on sale: these are never deleted and keep their id."""
        return self.chance.randint(1, self.products)

    def some_draft(self) -> int:
        """An id in the range of drafts; whoever is next after it is meant."""
        return self.chance.randrange(FIRST_DRAFT_ID, 2 * FIRST_DRAFT_ID)

    def some_order(self) -> int:
        """An id in the range of orders; whoever is next after it is meant."""
        return self.chance.randint(1, self.newest_order)

    def some_audit_page(self) -> str:
        """Where to begin looking for a row of the audit log, as a tid."""
        return f"({self.chance.randrange(max(self.audit_pages, 1))},0)"

    def some_price(self) -> str:
        return f"{self.chance.randint(100, 99_999)}.{self.chance.randint(0, 99):02}"

    def some_description(self) -> str | None:
        """Mostly too long and too random to be stored in the row; now and then short, or none at all."""
        kind = self.chance.random()
        if kind < 0.05:
            return None
        return "sold by weight" if kind < 0.15 else self.chance.randbytes(self.chance.randint(2000, 3000)).hex()


def place_order(till: Till) -> int:
    """An order, its lines, its total, and the stock that it takes: four statements over four tables."""
    customers = till.ask(
        "select id from shop.customers where id >= %s order by id limit 1 for key share", till.some_uuid()
    )
    if not customers:
        return 0
    # Tills in a shop that grows do not know the newest products; no matter.
    lines = till.chance.randint(1, min(_LINES_MAX, till.products))
    products = sorted(till.chance.sample(range(1, till.products + 1), lines))
    quantities = [till.chance.randint(1, 5) for _ in products]
    note = till.chance.choice([None, None, "ring twice", 'say "hello", then\nleave it'])
    (order,) = till.ask(
        "insert into shop.orders (customer_id, total, note) values (%s, 0, %s) returning id", customers[0], note
    )
    till.newest_order = max(till.newest_order, order)
    changed = 1 + till.change(
        "insert into shop.order_items select %s, line_no, product.id, quantity, price"
        " from unnest(%s::bigint[], %s::int[]) with ordinality ordered (product_id, quantity, line_no)"
        " join shop.products product on product.id = product_id",
        *(order, products, quantities),
    )
    changed += till.change(
        "update shop.orders set total = (select sum(quantity * unit_price) from shop.order_items where order_id = %s)"
        " where id = %s",
        *(order, order),
    )
    # The history keeps the last eight.
    return changed + till.change(
        "update shop.inventory set stock = stock - quantity, updated_at = now(),"
        " history = (history || stock)[greatest(cardinality(history) - 6, 1):]"
        " from unnest(%s::bigint[], %s::int[]) ordered (ordered_id, quantity) where product_id = ordered_id",
        *(products, quantities),
    )


def change_status(till: Till) -> int:
    return till.change(
        "update shop.orders set status = %s::shop.order_status"
        " where id = (select id from shop.orders where id >= %s order by id limit 1)",
        *(till.chance.choice(_STATUSES), till.some_order()),
    )


def delete_order(till: Till) -> int:
    """An order and its lines."""
    orders = till.ask("select id from shop.orders where id >= %s order by id limit 1 for update", till.some_order())
    return sum(
        till.change("delete from shop.order_items where order_id = %s", order)
        + till.change("delete from shop.orders where id = %s", order)
        for order in orders
    )


def renumber_order(till: Till) -> int:
    """A change of key that the foreign key carries on to the lines."""
    orders = till.ask(
        "update shop.orders set id = nextval(pg_get_serial_sequence('shop.orders', 'id'))"
        " where id = (select id from shop.orders where id >= %s order by id limit 1) returning id",
        till.some_order(),
    )
    lines = [till.ask("select line_no from shop.order_items where order_id = %s", order) for order in orders]
    return sum(1 + len(each) for each in lines)


def renumber_lines(till: Till) -> int:
    """A change of one column of a key of two."""
    return till.change(
        "update shop.order_items set line_no = line_no + %s"
        " where order_id = (select id from shop.orders where id >= %s order by id limit 1)",
        *(_LINE_SHIFT, till.some_order()),
    )


def change_price(till: Till) -> int:
    """Leaves the long description where it is: the change does not carry it."""
    return till.change(
        "update shop.products set price = %s, attributes = attributes || %s where id = %s",
        *(till.some_price(), Jsonb({"weight_kg": till.chance.randint(0, 9999) / 100}), till.some_product()),
    )


def change_description(till: Till) -> int:
    return till.change(
        "update shop.products set description = %s where id = %s", till.some_description(), till.some_product()
    )


def renumber_draft(till: Till) -> int:
    """A change of key that leaves the long description where it is."""
    return till.change(
        "update shop.products set id = %s where id = (select id from shop.products where id >= %s order by id limit 1)",
        *(till.some_draft(), till.some_draft()),
    )


def swap_drafts(till: Till) -> int:
    """Two rows exchange their keys by way of a third, and so each takes over the other's long description."""
    drafts = till.ask("select id from shop.products where id >= %s order by id limit 2 for update", till.some_draft())
    if len(drafts) < 2:
        return 0
    first, second = drafts
    moves = ((first, -first), (second, first), (-first, second))
    return sum(till.change("update shop.products set id = %s where id = %s", new, old) for old, new in moves)


def swap_lines(till: Till) -> int:
    """The same for two lines of an order."""
    lines = till.connection.execute(
        "select order_id, line_no from shop.order_items where order_id = (select order_id from shop.order_items"
        " where order_id >= %s order by order_id limit 1) order by line_no limit 2 for update",
        [till.some_order()],
    ).fetchall()
    if len(lines) < 2:
        return 0
    (order, first), (_, second) = lines
    moves = ((first, 0), (second, first), (0, second))
    statement = "update shop.order_items set line_no = %s where order_id = %s and line_no = %s"
    return sum(till.change(statement, new, order, old) for old, new in moves)


def replace_draft(till: Till) -> int:
    """Delete a row and insert another under the same key."""
    drafts = till.ask(
        "delete from shop.products where id = (select id from shop.products where id >= %s order by id limit 1)"
        " returning id",
        till.some_draft(),
    )
    statement = "insert into shop.products (id, sku, title, price, description) values (%s, %s, %s, %s, %s)"
    description = till.some_description()
    inserted = [till.change(statement, id, f"SKU-{id}", "Draft", till.some_price(), description) for id in drafts]
    return len(drafts) + sum(inserted)


def replace_inventory(till: Till) -> int:
    """The same where the key is a foreign one."""
    products = till.ask("delete from shop.inventory where product_id = %s returning product_id", till.some_product())
    statement = "insert into shop.inventory (product_id, stock, history) values (%s, %s, %s)"
    stock = till.chance.randint(0, 1000)
    return len(products) + sum(till.change(statement, product, stock, [stock]) for product in products)


def add_customer(till: Till) -> int:
    id = till.some_uuid()
    return till.change(
        "insert into shop.customers (id, email, name, tags) values (%s, %s, %s, %s)",
        *(id, f"{id.hex}@example.org", till.chance.choice(_NAMES), list(till.chance.sample(_TAGS, 2))),
    )


def change_customer(till: Till) -> int:
    preferences = {"language": till.chance.choice(("en", "de", "fr", "ja")), "theme": till.chance.randint(1, 9)}
    return till.change(
        "update shop.customers set tags = %s, preferences = preferences || %s, active = %s"
        " where id = (select id from shop.customers where id >= %s order by id limit 1)",
        till.chance.sample(_TAGS, till.chance.randint(0, 4)),
        *(Jsonb(preferences), till.chance.random() < 0.9, till.some_uuid()),
    )


def renumber_customer(till: Till) -> int:
    """A change of key, of a customer who never ordered."""
    return till.change(
        "update shop.customers set id = %s where id = (select id from shop.customers customer where id >= %s and not"
        " exists (select from shop.orders where customer_id = customer.id) order by id limit 1)",
        *(till.some_uuid(), till.some_uuid()),
    )


def log_action(till: Till) -> int:
    """One or more equal rows, which may be equal to others that are there."""
    detail = till.chance.choice((None, {"shelf": till.chance.randint(1, 5)}))
    return till.change(
        "insert into shop.audit_log select date_trunc('hour', now()), %s, %s, %s from generate_series(1, %s)",
        till.chance.choice(("shop", "warehouse", "support")),
        till.chance.choice(("login", "export")),
        *(None if detail is None else Jsonb(detail), till.chance.randint(1, 4)),
    )


def forget_action(till: Till) -> int:
    """Remove one row of several equal ones."""
    return till.change(
        "delete from shop.audit_log"
        " where ctid = (select ctid from shop.audit_log where ctid >= %s::tid limit 1 for update skip locked)",
        till.some_audit_page(),
    )


def amend_action(till: Till) -> int:
    """Change one row of several equal ones."""
    return till.change(
        "update shop.audit_log set action = %s"
        " where ctid = (select ctid from shop.audit_log where ctid >= %s::tid limit 1 for update skip locked)",
        *(till.chance.choice(("login", "export", "price check")), till.some_audit_page()),
    )


def fill_cart(till: Till) -> int:
    """Insert, or update where the key is there already."""
    content = Jsonb({"product": till.some_product(), "quantity": till.chance.randint(1, 3)})
    return till.change(
        "insert into shop.carts (id, content) values (md5('cart ' || %s::int)::uuid, %s)"
        " on conflict (id) do update set content = excluded.content, updated_at = now()",
        *(till.chance.randint(1, 2 * _CARTS), content),
    )


def empty_carts(till: Till) -> int:
    """Truncate, and begin anew in the same transaction. The rows that truncate removes are not counted: a truncate is
    one change, whatever it empties."""
    till.connection.execute("truncate shop.carts")
    return till.change(
        "insert into shop.carts (id, content) select md5('cart ' || n)::uuid, '{}' from generate_series(1, %s) n",
        till.chance.randint(1, _CARTS),
    )


def undo_part(till: Till) -> int:
    """Of two savepoints one is rolled back, the other kept."""
    changed = place_order(till)
    till.connection.execute("savepoint undone")
    place_order(till)
    change_description(till)
    till.connection.execute("rollback to savepoint undone")
    till.connection.execute("savepoint kept")
    changed += change_price(till) + log_action(till)
    till.connection.execute("release savepoint kept")
    return changed


def undo_all(till: Till) -> int:
    """Its caller rolls it back."""
    return place_order(till) + delete_order(till) + change_description(till)


def restock(till: Till) -> int:
    """Many rows in one statement."""
    return till.change(
        "update shop.inventory set stock = stock + 100, updated_at = now() where product_id between %s and %s",
        *till.span(till.some_product()),
    )


def reprice(till: Till) -> int:
    """Many rows in one statement, each leaving its long description where it is."""
    return till.change(
        "update shop.products set price = price + 0.01 where id between %s and %s", *till.span(till.some_product())
    )


def deliver(till: Till) -> int:
    return till.change(
        "update shop.orders set status = 'delivered' where id between %s and %s", *till.span(till.some_order())
    )


def log_actions(till: Till) -> int:
    """Many rows, three different ones."""
    return till.change(
        "insert into shop.audit_log select date_trunc('hour', now()), 'shop', 'import', jsonb_build_object('part',"
        " mod(n, 3)) from generate_series(1, %s) n",
        till.bulk_rows,
    )


def forget_actions(till: Till) -> int:
    """Many rows from one place of the audit log, with some of each kind of equal ones."""
    return till.change(
        "delete from shop.audit_log where ctid = any (array(select ctid from shop.audit_log where ctid >= %s::tid"
        " limit %s for update skip locked))",
        *(till.some_audit_page(), till.bulk_rows // 2),
    )


@dataclass(frozen=True)
class Kind:
    """A kind of transaction: of a thousand, about `weight` are of this kind."""

    name: str
    weight: int
    run: Callable[[Till], int]
    rolled_back: bool = False


KINDS: tuple[Kind, ...] = (
    Kind("place order", 200, place_order),
    Kind("change status", 120, change_status),
    Kind("delete order", 80, delete_order),
    Kind("renumber order", 20, renumber_order),
    Kind("renumber lines", 20, renumber_lines),
    Kind("change price", 100, change_price),
    Kind("change description", 40, change_description),
    Kind("renumber draft", 25, renumber_draft),
    Kind("swap drafts", 20, swap_drafts),
    Kind("swap lines", 20, swap_lines),
    Kind("replace draft", 20, replace_draft),
    Kind("replace inventory", 20, replace_inventory),
    Kind("add customer", 20, add_customer),
    Kind("change customer", 60, change_customer),
    Kind("renumber customer", 20, renumber_customer),
    Kind("log action", 50, log_action),
    Kind("forget action", 40, forget_action),
    Kind("amend action", 30, amend_action),
    Kind("fill cart", 20, fill_cart),
    Kind("empty carts", 3, empty_carts),
    Kind("undo part", 30, undo_part),
    Kind("undo all", 25, undo_all, rolled_back=True),
    Kind("restock", 4, restock),
    Kind("reprice", 4, reprice),
    Kind("deliver", 4, deliver),
    Kind("log actions", 3, log_actions),
    Kind("forget actions", 6, forget_actions),
)
