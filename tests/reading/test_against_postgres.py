"""What Postgres sends for each kind of table, from the wire to rows and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtide.config import Config
from pgtide.reading.compact import compact
from tests.capture.running import capturing, make_config, set_up, wait_for_marker
from tests.reading.captured import Told, captured, captured_changes, plain_values, plan_all

LONG = "(select string_agg(md5(random()::text), '') from generate_series(1, 200))"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def capture(dsn: str, journal: Path, tables: str, *statements: Any) -> Config:
    """Run the statements while they are captured."""
    run(dsn, *tables.split(";"))
    config = make_config(dsn, journal)
    set_up(config, oracle=False)
    with capturing(config):
        run(dsn, *statements)
        wait_for_marker(config, dsn)
    return config


def run(dsn: str, *statements: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def value(dsn: str, query: Any) -> Any:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0]


def key_of(config: Config, name: str) -> tuple[str, ...]:
    return captured_changes(config, name)[-1].table.key


def row_hashes(config: Config) -> list[bytes | None]:
    (changes,) = captured_changes(config, "t")
    assert changes.row_hash is not None
    hashes: list[bytes | None] = changes.row_hash.to_pylist()
    return hashes


def test_with_the_default_identity_a_delete_has_the_key_and_an_update_only_what_was_sent(database, journal):
    config = capture(
        database,
        journal,
        "create table t (id int primary key, v text, big text)",
        f"insert into t values (1, 'a', 'short'), (2, 'b', {LONG})",
        "update t set v = 'c' where id = 2",
        "update t set v = 'd' where id = 1",
        "update t set id = 3 where id = 2",
        "delete from t where id = 1",
    )
    big = value(database, "select big from t where id = 3")
    assert captured(config, "t") == [
        Told("c", (1, "a", "short")),
        Told("c", (2, "b", big)),
        Told("u", (2, "c", ...)),
        Told("u", (1, "d", "short")),
        Told("u", (3, "c", ...), (2,)),
        Told("d", (1, None, None)),
    ]


def test_with_full_identity_and_a_key_long_values_come_from_the_old_row(database, journal):
    config = capture(
        database,
        journal,
        "create table t (v text, big text, id int primary key); alter table t replica identity full",
        f"insert into t values ('a', {LONG}, 1)",
        "update t set v = 'b'",
        "update t set id = 2",
        "update t set big = null",
        "update t set v = null",
        "delete from t",
    )
    told = captured(config, "t")
    big = told[0].row[1]
    assert len(big) > 4000
    assert told == [
        Told("c", ("a", big, 1)),
        Told("u", ("b", big, 1)),
        Told("u", ("b", big, 2), (1,)),
        Told("u", ("b", None, 2)),
        Told("u", (None, None, 2)),
        Told("d", (None, None, 2)),
    ]
    assert key_of(config, "t") == ("id",)


def test_with_an_index_as_identity_the_index_is_the_key(database, journal):
    config = capture(
        database,
        journal,
        "create table t (id int primary key, code text not null, part int not null, v text);"
        "create unique index the_index on t (part, code);"
        "alter table t replica identity using index the_index",
        "insert into t values (1, 'x', 7, 'a')",
        "update t set v = 'b'",
        "update t set id = 2",
        "update t set code = 'y'",
        "delete from t",
    )
    assert key_of(config, "t") == ("code", "part")
    assert captured(config, "t") == [
        Told("c", (1, "x", 7, "a")),
        Told("u", (1, "x", 7, "b")),
        Told("u", (2, "x", 7, "b")),
        Told("u", (2, "y", 7, "b"), ("x", 7)),
        Told("d", (None, "y", 7, None)),
    ]


def test_without_a_key_an_update_is_a_delete_and_an_insert_of_whole_rows(database, journal):
    config = capture(
        database,
        journal,
        "create table t (n int, big text); alter table t replica identity full",
        f"insert into t values (1, {LONG}), (null, null), (null, null)",
        "update t set n = 2 where n = 1",
        "delete from t where n is null",
        "truncate t",
        "insert into t values (5, 'x')",
    )
    told = captured(config, "t")
    big = told[0].row[1]
    assert told == [
        Told("c", (1, big)),
        Told("c", (None, None)),
        Told("c", (None, None)),
        Told("d", (1, big)),
        Told("c", (2, big)),
        Told("d", (None, None)),
        Told("d", (None, None)),
        Told("t", (None, None)),
        Told("c", (5, "x")),
    ]
    hashes = row_hashes(config)
    assert hashes[0] == hashes[3] != hashes[4]
    assert hashes[1] == hashes[2] == hashes[5] == hashes[6]
    assert hashes[7] is None
    assert len(set(hashes)) == 5


def test_a_null_and_an_empty_text_are_different_rows(database, journal):
    config = capture(
        database,
        journal,
        "create table t (a text, b text); alter table t replica identity full",
        "insert into t values ('', null), (null, ''), ('x', ''), ('', 'x'), (null, null), ('', '')",
    )
    assert len(set(row_hashes(config))) == 6


def test_a_truncate_of_several_tables_stands_in_each(database, journal):
    config = capture(
        database,
        journal,
        "create table a (id int primary key); create table b (id int primary key, a int references a);"
        "create table c (id int primary key)",
        "insert into a values (1), (2)",
        "insert into b values (1, 1)",
        "insert into c values (1)",
        "begin; insert into a values (3); truncate a cascade; insert into a values (4); commit",
        "truncate b, c restart identity",
    )
    assert captured(config, "a") == [
        Told("c", (1,)),
        Told("c", (2,)),
        Told("c", (3,)),
        Told("t", (None,)),
        Told("c", (4,)),
    ]
    assert captured(config, "b") == [Told("c", (1, 1)), Told("t", (None, None)), Told("t", (None, None))]
    assert captured(config, "c") == [Told("c", (1,)), Told("t", (None,))]


def test_a_key_that_is_itself_in_toast_is_told(database, journal):
    """An index entry has room for 2.7 kB, a row in the table for 2 kB: such a key lies in TOAST."""
    config = capture(
        database,
        journal,
        "create table t (id text primary key, v int); alter table t alter id set storage external",
        "insert into t select string_agg(md5(i::text), ''), 1 from generate_series(1, 80) i",
        "update t set v = 2",
        "update t set id = 'short'",
    )
    told = captured(config, "t")
    key = told[0].row[0]
    assert len(key) == 80 * 32
    assert told == [Told("c", (key, 1)), Told("u", (key, 2)), Told("u", ("short", 2), (key,))]


def test_a_column_added_later_divides_the_changes_into_two_runs(database, journal):
    config = capture(
        database,
        journal,
        "create table t (id int primary key, v text)",
        "insert into t values (1, 'a')",
        "alter table t add column more int",
        "insert into t values (2, 'b', 7)",
        "alter table t drop column v",
        "insert into t values (3, 8)",
    )
    runs = captured_changes(config, "t")
    assert [run.table.column_names for run in runs] == [["id", "v"], ["id", "v", "more"], ["id", "more"]]
    assert captured(config, "t") == [Told("c", (1, "a")), Told("c", (2, "b", 7)), Told("c", (3, 8))]


def test_generated_and_dropped_columns_are_not_there(database, journal):
    config = capture(
        database,
        journal,
        "create table t (gone int, id int primary key, twice int generated always as (id * 2) stored, v text);"
        "alter table t drop column gone",
        "insert into t (id, v) values (1, 'a')",
        "update t set v = 'b'",
        "delete from t",
    )
    assert captured(config, "t") == [Told("c", (1, "a")), Told("u", (1, "b")), Told("d", (1, None))]


def test_a_table_without_any_identity_can_be_inserted_into(database, journal):
    run(database, "create table t (a int, b text)")
    config = make_config(database, journal)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create publication pgtide_test for table t")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [config.source.slot])
    with capturing(config):
        run(database, "insert into t values (1, 'x'), (1, 'x')")
        wait_for_marker(config, database)
    assert captured(config, "t") == [Told("c", (1, "x")), Told("c", (1, "x"))]


def test_a_key_column_renamed_before_capture_saw_the_table_is_still_the_key(database, journal):
    """The catalog may be newer than the stream: what the stream says of the identity is what counts."""
    run(database, "create table t (id int primary key, v text)")
    config = make_config(database, journal)
    set_up(config, oracle=False)
    run(
        database,
        "insert into t values (1, 'a')",
        "delete from t",
        "alter table t rename column id to ident",
        "insert into t values (2, 'b')",
    )
    with capturing(config):
        wait_for_marker(config, database)
    runs = captured_changes(config, "t")
    assert [run.table.key for run in runs] == [("id",), ("ident",)]
    assert captured(config, "t") == [Told("c", (1, "a")), Told("d", (1, None)), Told("c", (2, "b"))]


def test_a_key_dropped_before_capture_saw_the_table_is_still_the_key(database, journal):
    run(database, "create table t (id int primary key, v text)")
    config = make_config(database, journal)
    set_up(config, oracle=False)
    run(database, "insert into t values (1, 'a')", "delete from t", "alter table t drop constraint t_pkey")
    with capturing(config):
        wait_for_marker(config, database)
    assert key_of(config, "t") == ("id",)
    assert captured(config, "t") == [Told("c", (1, "a")), Told("d", (1, None))]


def test_a_table_dropped_before_capture_saw_it_is_read_all_the_same(database, journal):
    run(database, "create table t (id int primary key, v text)")
    config = make_config(database, journal)
    set_up(config, oracle=False)
    run(database, "insert into t values (1, 'a')", "update t set id = 2", "drop table t")
    with capturing(config):
        wait_for_marker(config, database)
    assert captured(config, "t") == [Told("c", (1, "a")), Told("u", (2, "a"), (1,))]


KEY_TYPES = {
    "smallint": ("1", "2"),
    "bigint": ("1", "-9223372036854775808"),
    "text": ("''", "'é'"),
    "varchar(10)": ("'a'", "'A'"),
    "char(5)": ("'a'", "'b'"),
    "uuid": ("'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "boolean": ("true", "false"),
    "date": ("'2020-01-01'", "'infinity'"),
    "time": ("'12:00'", "'24:00'"),
    "timestamp": ("'2020-01-01'", "'0044-03-15 BC'"),
    "timestamptz": ("'2020-01-01'", "'-infinity'"),
    "numeric": ("1.0", "'NaN'"),
    "numeric(12,2)": ("1.00", "-5.25"),
    "real": ("1.5", "'NaN'"),
    "double precision": ("0.1", "'Infinity'"),
    "bytea": ("''", r"'\x00ff'"),
    "interval": ("'1 day'", "'1 month'"),
    "inet": ("'10.0.0.1'", "'::1'"),
    "macaddr": ("'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"),
    "jsonb": ("'{}'", "'[1]'"),
    "oid": ("1", "4294967295"),
    "int[]": ("'{}'", "'{1,2}'"),
    "text[]": ("'{a}'", "'{a,b}'"),
    "int4range": ("'[1,2)'", "'[1,3)'"),
    "bit(3)": ("'101'", "'111'"),
    "mood": ("'sad'", "'glad'"),
    "positive": ("1", "2"),
    "money": ("1", "2"),
    '"char"': ("'a'", "'b'"),
    "name": ("'a'", "'b'"),
}


@pytest.fixture(scope="module")
def every_key_type(postgres18, tmp_path_factory):
    """One capture for all: a table for each type, its key changed and deleted."""
    names = {type_name: f"t{index}" for index, type_name in enumerate(KEY_TYPES)}
    with psycopg.connect(postgres18.dsn, autocommit=True) as connection:
        connection.execute("create database key_types")
    dsn = postgres18.dsn_for("key_types")
    run(dsn, "create type mood as enum ('sad', 'glad')", "create domain positive as int check (value > 0)")
    tables = ";".join(
        f"create table {names[each]} (k {each} primary key, v text); "
        f"create table {names[each]}f (k {each} primary key, v text); alter table {names[each]}f replica identity full"
        for each in KEY_TYPES
    )
    statements = []
    for each, (one, other) in KEY_TYPES.items():
        for name in (names[each], f"{names[each]}f"):
            statements += [
                f"insert into {name} values ({one}, 'a')",
                f"update {name} set v = 'b'",
                f"update {name} set k = {other}",
                f"update {name} set v = 'c'",
                f"insert into {name} values ({one}, 'd')",
                f"delete from {name} where v = 'c'",
            ]
    config = capture(dsn, tmp_path_factory.mktemp("keys") / "journal", tables, *statements)
    yield config, names
    with psycopg.connect(postgres18.dsn, autocommit=True) as connection:
        connection.execute("select pg_drop_replication_slot(%s)", [config.source.slot])
        connection.execute("drop database key_types with (force)")


@pytest.mark.parametrize("identity", ["", "f"], ids=["default", "full"])
@pytest.mark.parametrize("type_name", KEY_TYPES)
def test_any_type_can_be_a_key(every_key_type, type_name, identity):
    config, names = every_key_type
    name = f"{names[type_name]}{identity}"
    told = captured(config, name)
    one, other = told[0].row[0], told[2].row[0]
    assert repr(one) != repr(other)
    whole = "c" if identity else None
    expected = [
        Told("c", (one, "a")),
        Told("u", (one, "b")),
        Told("u", (other, "b"), (one,)),
        Told("u", (other, "c")),
        Told("c", (one, "d")),
        Told("d", (other, whole)),
    ]
    assert repr(told) == repr(expected)  # NaN is not equal to itself
    (changes,) = captured_changes(config, name)
    compacted = compact(changes)
    assert repr(plain_values(compacted.upserts.columns["k"])) == repr([one])
    assert compacted.upserts.columns["v"].to_pylist() == ["d"]
    assert repr(plain_values(compacted.deleted["k"])) == repr([other])


def test_the_plan_knows_every_table_it_meets(database, journal):
    config = capture(
        database,
        journal,
        "create table a (id int primary key); create table b (id int primary key)",
        "insert into a values (1)",
        "insert into b values (1)",
        "alter table a rename to c",
        "insert into c values (2)",
    )
    plan = plan_all(config)
    assert {str(table.name) for table in plan.known.values()} == {"public.b", "public.c"}
    assert plan.tables.keys() == plan.known.keys()
