"""The workload: every kind of transaction happens, whatever happens to the server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from pgtide.demo.shop import load_shop
from pgtide.demo.transactions import KINDS
from pgtide.demo.workload import Workload
from pgtide.embedded.postgres import EmbeddedPostgres
from pgtide.errors import SourceError
from pgtide.pgoutput import UNCHANGED, AnyMessage, Delete, Insert, MessageParser, Truncate, Update
from pgtide.postgres.catalog import one
from pgtide.postgres.connection import Connection
from tests.fixtures.waiting import wait_until

SMALL = 0.05


@pytest.fixture
def shop(database: str) -> str:
    """The dsn of a database with a small shop in it."""
    with psycopg.connect(database) as connection:
        load_shop(connection, scale=SMALL)
    return database


def test_every_kind_of_transaction_happens_and_the_shop_stays_whole(shop: str) -> None:
    with Workload(shop, seed=1) as workload:
        wait_until(lambda: min(workload.counts.by_kind.values()) >= 3, describe=lambda: workload.counts)

    counts = workload.counts
    assert sum(counts.by_kind.values()) == counts.transactions + counts.rolled_back
    assert counts.rolled_back == sum(counts.by_kind[kind.name] for kind in KINDS if kind.rolled_back)
    with psycopg.connect(shop) as connection:
        _assert_whole(connection)


def test_the_rows_it_counts_are_the_rows_that_changed(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        _record(connection)
        with Workload(shop, seed=2) as workload:
            wait_until(lambda: min(workload.counts.by_kind.values()) >= 1, describe=lambda: workload.counts)
        found = Counter(type(message) for message in _recorded(connection))

    assert found[Insert] + found[Update] + found[Delete] == workload.rows
    assert found[Truncate] == workload.counts.by_kind["empty carts"]


def test_keys_change_while_a_long_value_stays_in_toast(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        _record(connection)
        with Workload(shop, seed=3) as workload:
            wait_until(lambda: workload.counts.by_kind["swap drafts"] >= 5, describe=lambda: workload.counts)
        updates = [message for message in _recorded(connection) if isinstance(message, Update)]
        names: dict[int, str] = dict(connection.execute("select oid::int8, relname from pg_class").fetchall())

    moved = [update for update in updates if update.old is not None and not update.old.whole]
    assert {names[update.relation_oid] for update in moved} == {"products", "orders", "order_items", "customers"}
    unsent = Counter(names[update.relation_oid] for update in moved if UNCHANGED in update.new)
    assert unsent["products"] >= 10


def test_it_holds_the_rate_it_is_given(shop: str) -> None:
    rate, seconds = 400, 5
    with Workload(shop, rate_per_second=rate) as workload:
        wait_until(lambda: workload.rows > 0)
        began, before = time.monotonic(), workload.rows
        wait_until(lambda: time.monotonic() - began >= seconds, describe="the time for measuring is over")
        measured = (workload.rows - before) / (time.monotonic() - began)

    assert measured == pytest.approx(rate, rel=0.3)


def test_without_a_rate_it_changes_more_than_1_500_rows_a_second(shop: str) -> None:
    with Workload(shop) as workload:
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began >= 3, describe="the time for measuring is over")
        measured = workload.rows / (time.monotonic() - began)

    assert measured > 1500


def test_writers_that_are_in_each_others_way_try_again(database: str) -> None:
    with psycopg.connect(database) as connection:
        load_shop(connection, scale=0.0001)

    with Workload(database, writers=8) as workload:
        wait_until(lambda: workload.counts.retried >= 3, describe=lambda: workload.counts)

    with psycopg.connect(database) as connection:
        _assert_whole(connection)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_it_goes_on_after_the_server_was_away(how: str) -> None:
    with EmbeddedPostgres(18, durable=False) as server:
        with psycopg.connect(server.dsn) as connection:
            load_shop(connection, scale=SMALL)
        with Workload(server.dsn) as workload:
            wait_until(lambda: workload.transactions > 100)
            if how == "restart":
                server.restart()
            else:
                server.kill()
                server.start()
            before = workload.transactions
            wait_until(lambda: workload.transactions > before + 100, describe=lambda: workload.counts)
            assert workload.running
        assert workload.counts.reconnects > 0
        with psycopg.connect(server.dsn) as connection:
            _assert_whole(connection)


def test_it_stops_while_the_server_is_away() -> None:
    with EmbeddedPostgres(18, durable=False) as server:
        with psycopg.connect(server.dsn) as connection:
            load_shop(connection, scale=SMALL)
        workload = Workload(server.dsn)
        workload.start()
        wait_until(lambda: workload.transactions > 0)
        server.kill()
        wait_until(lambda: workload.counts.reconnects > 4)

        began = time.monotonic()
        workload.stop()

        assert time.monotonic() - began < 5


def test_it_stops_promptly_though_its_writers_wait_for_a_lock(shop: str) -> None:
    with Workload(shop) as workload, psycopg.connect(shop) as connection:
        wait_until(lambda: workload.transactions > 0)
        connection.execute("lock table shop.orders in access exclusive mode")
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        with psycopg.connect(shop, autocommit=True) as observer:
            wait_until(lambda: one(observer, waiting) == (4,), describe="every writer waits")

        began = time.monotonic()
        workload.stop()

        assert time.monotonic() - began < 5


def test_a_failure_that_is_no_conflict_ends_it_and_is_told(shop: str) -> None:
    workload = Workload(shop)
    workload.start()
    wait_until(lambda: workload.transactions > 0)

    with psycopg.connect(shop) as connection:
        connection.execute("drop table shop.carts")
    wait_until(lambda: not workload.running, describe=lambda: workload.counts)

    with pytest.raises(SourceError, match="reports an error"):
        workload.stop()


def test_it_does_not_start_without_a_shop(database: str) -> None:
    with pytest.raises(SourceError, match="reports an error"):
        Workload(database).start()


def _record(connection: Connection) -> None:
    """From now on remember what changes in this database."""
    connection.execute("create publication everything for all tables")
    connection.execute("select pg_create_logical_replication_slot(current_database() || '_record', 'pgoutput')")


def _recorded(connection: Connection) -> Iterator[AnyMessage]:
    parser = MessageParser(protocol_version=1)
    rows = connection.execute(
        "select data from pg_logical_slot_get_binary_changes(current_database() || '_record', null, null,"
        " 'proto_version', '1', 'publication_names', 'everything')"
    )
    for (data,) in rows:
        yield parser.parse(data)


def _assert_whole(connection: Connection) -> None:
    """The foreign keys hold (as seen by joins, not by trust), and nothing of a swap is left half done."""
    wrong = (
        "shop.orders where not exists (select from shop.customers where customers.id = customer_id)",
        "shop.order_items where not exists (select from shop.orders where orders.id = order_id)",
        "shop.order_items where not exists (select from shop.products where products.id = product_id)",
        "shop.inventory where not exists (select from shop.products where products.id = product_id)",
        "shop.orders where total <> (select sum(quantity * unit_price) from shop.order_items where order_id = id)",
        "shop.products where id <= 0",
        "shop.order_items where line_no = 0",
    )
    for rows in wrong:
        assert one(connection, f"select count(*) from {rows}") == (0,), rows
