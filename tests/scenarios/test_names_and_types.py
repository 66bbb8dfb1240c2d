"""Names that need quoting, and types that have no binary form, arrive by snapshot and by stream alike."""

from __future__ import annotations

import pytest

from tests.fixtures.flow import Flow

pytestmark = pytest.mark.spark


def test_quoted_names_are_copied_and_followed(flow: Flow) -> None:
    flow.sql.execute('create schema "My Schema"')
    flow.sql.execute(
        'create table "My Schema"."Weird "" Name" ("Id" int primary key, "select" text, "a.b" int, "größe" int)'
    )
    flow.sql.execute("""insert into "My Schema"."Weird "" Name" values (1, 'copied', 1, 1)""")
    flow.run()
    flow.sql.execute("""insert into "My Schema"."Weird "" Name" values (2, 'streamed', 2, 2)""")
    flow.sql.execute("""update "My Schema"."Weird "" Name" set "select" = 'changed', "Id" = 10 where "Id" = 1""")
    flow.settle()
    assert flow.assert_exact() == 2


def test_a_type_without_binary_form_is_text_by_both_ways(flow: Flow) -> None:
    flow.sql.execute("create table grants (id int primary key, acl aclitem)")
    flow.sql.execute("insert into grants values (1, 'postgres=r/postgres')")
    flow.run()
    flow.sql.execute("insert into grants values (2, 'postgres=r/postgres'), (3, null)")
    flow.settle()
    assert [row["acl"] for row in sorted(flow.rows("grants"), key=lambda row: row["id"])] == [
        "postgres=r/postgres",
        "postgres=r/postgres",
        None,
    ]
    assert flow.assert_exact() == 3


def test_enums_domains_arrays_and_composite_keys_are_exact(flow: Flow) -> None:
    flow.sql.execute(
        "create type mood as enum ('sad', 'glad'); create domain price as numeric(8, 2) check (value >= 0)"
    )
    flow.sql.execute(
        "create table things (a int, b uuid default gen_random_uuid(), m mood, p price, n numeric, xs int[], ts text[],"
        " at timestamptz default now(), d date, f float8, raw bytea, primary key (b, a))"
    )
    insert = (
        "insert into things (a, m, p, n, xs, ts, d, f, raw) select n, 'glad', n, n / 7.0, array[n, null],"
        " array['x', ''], date '2024-02-29' + n, 'NaN', decode(md5(n::text), 'hex') from generate_series({}, {}) n"
    )
    flow.sql.execute(insert.format(1, 100))
    flow.run()
    flow.sql.execute(insert.format(101, 200))
    flow.sql.execute("update things set m = 'sad', xs = '{}', at = 'infinity', d = '-infinity' where a % 5 = 0")
    flow.sql.execute("update things set a = a + 1000 where a % 7 = 0")
    flow.sql.execute("delete from things where a % 11 = 0")
    flow.settle()
    assert flow.assert_exact() > 150
