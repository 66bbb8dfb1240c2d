"""The text of a value is the same from Postgres and from Arrow, for every type, and different for different values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from psycopg import sql

from pgtide.columns import arrow_schema
from pgtide.columns.kernels import _BUILT_INS
from pgtide.embedded.postgres import EmbeddedPostgres
from pgtide.schema import Column, Table, TableName
from pgtide.verify.canonical import Form, UnexpectedType, ask_field, form_for, render_field
from pgtide.verify.digests import RowForm, digests
from pgtide.verify.sink import SinkReader
from pgtide.verify.source import describe_rows, read_source_types
from tests.verify.lake import copied, described

TIMESTAMPS: list[LiteralString] = [
    "2000-01-01", "1970-01-01", "1969-12-31 23:59:59.999999", "0001-01-01", "4714-11-24 BC", "infinity", "-infinity",
    "2024-02-29 12:34:56.789012", "9999-12-31 23:59:59.999999", "294247-01-01",
]  # fmt: skip

# Every type, with its edge values. Each list has no two values that are equal.
CASES: dict[LiteralString, list[LiteralString]] = {
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647", "0", "-1"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "0"],
    "oid": ["0", "4294967295"],
    "xid": ["3", "4294967295"],
    "cid": ["0", "4294967295"],
    "real": ["0", "-0", "1.1", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38"],
    "double precision": ["0", "-0", "1.1", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308"],
    "boolean": ["true", "false"],
    "text": ["", "N", "1:N", "null", "plain", "zwölf 🐘", "tab\tand\nline", "\\N", " ", "a,b", "e\u0301", "é"],
    "varchar(10)": ["", "é", "0123456789"],
    "char(5)": ["", "ab", "🐘", "12345"],
    "name": ["", "a_name"],
    '"char"': ["", "a", "\\\\", "\\377", "\\200", "7"],
    "json": ['{"a":  [1, null]}', '{"a": [1, null]}', '"🐘"', "1.00", " [ ] ", "null", '"N"'],
    "jsonb": ['{"b": {"c": [1, {"d": null}]}, "a": 1.00}', '"🐘"', "[]", "null", '"N"', "1.0"],
    "bytea": ["", "\\x00ff", "\\x6869", "\\x00"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "date": ["2000-01-01", "1969-12-31", "0001-01-01", "4714-11-24 BC", "5874897-12-31", "infinity", "-infinity"],
    "time": ["00:00", "24:00", "13:45:06.123456", "13:45:06.1", "23:59:59.999999", "00:00:00.000001"],
    "timestamp": TIMESTAMPS,
    "timestamptz": TIMESTAMPS,
    "numeric": [
        "0", "0.00", "1", "-1", "1e20", "1.10", "-0.0001", "0.00010000", "1e-30", "NaN", "Infinity", "-Infinity",
        "-99999999999999999999999999999999999999.5", "1e1000", "1e-1000",
    ],
    "numeric(12,2)": ["9999999999.99", "-9999999999.99", "0", "0.01", "-0.01", "10000.05"],
    "numeric(4,4)": ["0", "0.9999", "-0.0001", "0.1"],
    "numeric(18,0)": ["999999999999999999", "-999999999999999999", "0"],
    "numeric(38,10)": ["9999999999999999999999999999.9999999999", "-0.0000000001", "0", "1e27"],
    "numeric(38,38)": ["0.99999999999999999999999999999999999999", "-1e-38", "0", "1e-19"],
    "numeric(39,1)": ["1", "-99999999999999999999999999999999999999.9", "NaN"],
    "numeric(5,-2)": ["9999900", "-149", "0"],
    "integer[]": ["{}", "{1}", "{1,NULL,-2147483648}", "{1,2,3,4}", "{NULL}", "{12,3}", "{1,23}"],
    "boolean[]": ["{}", "{t,f,NULL}"],
    "text[]": ["{}", '{""}', "{NULL}", '{"NULL"}', '{N}', '{"a,b"}', "{a,b}", '{"a}"}', "{a,NULL,🐘}"],
    "char(3)[]": ["{}", '{"a",NULL,"abc"}'],
    "bytea[]": ["{}", '{"\\\\x00ff",NULL,""}'],
    "double precision[]": ["{}", "{0,-0,NaN,NULL}"],
    "numeric[]": ["{}", "{1.50,NULL,NaN,-0.00001}", "{1e50}"],
    "numeric(12,2)[]": ["{}", "{1.5,NULL,-9999999999.99}"],
    "uuid[]": ["{}", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}"],
    "date[]": ["{infinity,-infinity,2024-02-29,NULL}"],
    "timestamptz[]": ["{2024-02-29 12:34:56.789012,1950-01-01,infinity}", "{NULL}"],
    "jsonb[]": ["{}", '{"{\\"a\\": 1}",NULL,"null"}'],
    "mood": ["sad", "happy", "so-so, 🐘"],
    "mood[]": ["{}", '{sad,NULL,"so-so, 🐘"}'],
    "price": ["0", "9999999999.99", "-0.01"],
    "price[]": ["{}", "{1,NULL,2.5}"],
    "scores": ["{}", "{1,NULL,2}"],
    "moment": ["2024-02-29 12:34:56.789012", "infinity"],
    "inet": ["::1", "10.0.0.0/8", "10.0.0.0"],
    "inet[]": ["{}", "{::1,NULL}"],
    "interval": ["1 month", "30 days", "-1 microsecond"],
    "point": ["(1,2)", "(-0,2)"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "span": ["[1,5)", "empty"],
    "int4multirange": ["{}", "{[1,2),[5,6)}"],
    "pair": ["(1,x)", "(,)", '(1,"")', "(1,)"],
    "pair[]": ["{}", '{"(1,x)",NULL,"(,)"}'],
    "whole": ["(1,x)", "(,)"],
    "money": ["1.50", "-1.50"],
    "bit varying": ["", "0", "00", "101"],
    "tsvector": ["", "'a':1 'b':2"],
    "macaddr": ["08:00:2b:01:02:03"],
}  # fmt: skip


@contextmanager
def source(dsn: str, value_type: LiteralString, literals: list[LiteralString]) -> Iterator[psycopg.Connection]:
    """A connection to a database with a table of the values: nulls stand first, last and between."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in (
            sql.SQL("create type mood as enum ('sad', 'happy', 'so-so, 🐘')"),
            sql.SQL("create domain price as numeric(12,2)"),
            sql.SQL("create domain scores as integer[]"),
            sql.SQL("create domain moment as timestamptz"),
            sql.SQL("create domain span as int4range"),
            sql.SQL("create type pair as (a integer, b text)"),
            sql.SQL("create domain whole as pair"),
            sql.SQL("create table t (id integer primary key, value {})").format(sql.SQL(value_type)),
        ):
            connection.execute(statement)
        insert = sql.SQL("insert into t values (%s, %s::text::{})").format(sql.SQL(value_type))
        connection.cursor().executemany(insert, enumerate([None, *literals, None, *reversed(literals), None]))
        yield connection


@contextmanager
def database_on(server: EmbeddedPostgres, options: LiteralString = "") -> Iterator[str]:
    """A database that goes after the test, on a server and with options that are not everybody's."""
    with psycopg.connect(server.dsn, autocommit=True) as administrator:
        administrator.execute(sql.SQL("create database canonical {}").format(sql.SQL(options)))
        try:
            yield server.dsn_for("canonical")
        finally:
            administrator.execute("drop database canonical with (force)")


def form_of(connection: psycopg.Connection, table: Table) -> Form:
    return describe_rows(connection, table).forms["value"]


def server_fields(connection: psycopg.Connection, form: Form) -> list[str]:
    field = ask_field(form, sql.Identifier("t", "value"), utf8=True)
    return [text for (text,) in connection.execute(sql.SQL("select {} from t order by id").format(field))]


@pytest.mark.parametrize("value_type", CASES)
def test_a_value_has_the_same_text_from_postgres_and_from_arrow(value_type: LiteralString, database: str) -> None:
    literals = CASES[value_type]
    with source(database, value_type, literals) as connection:
        table = described(connection, "t")
        form = form_of(connection, table)
        expected = server_fields(connection, form)
        rows = copied(connection, table).sort_by("id")
    column = rows["value"].combine_chunks()
    assert render_field(form, column).to_pylist() == expected
    assert len(set(expected)) == len(literals) + 1, "different values, or null, have the same text"
    # Parts of arrays have an offset, which none of the buffers may be read without.
    assert render_field(form, column.slice(3)).to_pylist() == expected[3:]
    assert render_field(form, column.slice(0, 0)).to_pylist() == []
    assert render_field(form, column.slice(0, 1)).to_pylist() == ["N"]


@pytest.mark.parametrize("version", [16, 18])
def test_every_type_comes_out_of_a_delta_table_with_the_same_digests(
    version: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: EmbeddedPostgres = request.getfixturevalue(f"postgres{version}")
    with database_on(server) as dsn, source(dsn, "integer", []) as connection:
        connection.execute("truncate t")
        names = {f"c{index}": (type_, literals) for index, (type_, literals) in enumerate(CASES.items())}
        for name, (type_, _) in names.items():
            connection.execute(sql.SQL("alter table t add {} {}").format(sql.Identifier(name), sql.SQL(type_)))
        most = max(len(literals) for _, literals in names.values())
        for row in range(most + 1):
            values = [literals[row] if row < len(literals) else None for _, literals in names.values()]
            casts = sql.SQL(", ").join(sql.SQL("%s::text::{}").format(sql.SQL(type_)) for type_, _ in names.values())
            connection.execute(sql.SQL("insert into t values (%s, null, {})").format(casts), [row, *values])
        table = described(connection, "t")
        form = describe_rows(connection, table)
        query = sql.SQL("select {} from t order by id").format(form.ask_record())
        expected = [key + row for key, row in connection.execute(query)]
        # Statistics of dates are left out: the writer has no room for infinity in them.
        nothing = {"delta.dataSkippingNumIndexedCols": "0"}
        write_deltalake(str(tmp_path), copied(connection, table), configuration=nothing)
    with SinkReader(tmp_path, form).read_all() as spool:
        assert sorted(record.tobytes() for record in spool.read(None)) == sorted(expected)


def test_a_database_of_another_encoding_gives_the_digests_of_utf8(postgres18: EmbeddedPostgres) -> None:
    with (
        database_on(postgres18, "encoding 'LATIN1' locale 'C' template template0") as dsn,
        psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as connection,
    ):
        connection.execute("create table t (id text primary key, label text, labels text[])")
        connection.execute("insert into t values ('größe', 'é', '{é,ß}'), ('b', null, '{}')")
        table = described(connection, "t")
        form = describe_rows(connection, table)
        expected = [row for _, row in connection.execute(sql.SQL("select {} from t").format(form.ask_record()))]
        (batch,) = copied(connection, table).to_batches()
    assert not form.utf8
    assert [record[16:].tobytes() for record in form.records(batch)] == expected


def test_every_kernel_of_pgtide_has_a_form_that_takes_its_arrow_type(database: str) -> None:
    with psycopg.connect(database) as connection:
        types = read_source_types(connection, {oid for each in _BUILT_INS for oid in (each.oid, each.array_oid)})
    for each in _BUILT_INS:
        for oid in (each.oid, each.array_oid):
            table = Table(0, TableName("public", "t"), (Column("value", oid),))
            arrow_type = arrow_schema(table).field("value").type
            nulls: Any = pa.nulls(2, arrow_type)
            assert render_field(form_for(arrow_type, oid, types), nulls).to_pylist() == ["N", "N"], each.type_name


def test_an_array_that_does_not_begin_at_one_has_a_text_that_no_list_has(database: str) -> None:
    with source(database, "integer[]", ["{1,2}", "[0:1]={1,2}", "{{1,2}}"]) as connection:
        fields = server_fields(connection, form_of(connection, described(connection, "t")))
    assert fields[1:4] == ["[1:2]{1,2}", "[0:1]{1,2}", "[1:1][1:2]{1,2}"]


def test_a_timestamp_that_is_too_late_for_arrow_is_no_error(database: str) -> None:
    with source(database, "timestamp", ["294276-12-31 23:59:59.999999"]) as connection:
        fields = server_fields(connection, form_of(connection, described(connection, "t")))
    assert fields[0] == "N"
    assert int(fields[1]) > 2**63


def test_a_type_that_is_only_printed_is_its_text(database: str) -> None:
    with source(database, "aclitem", []) as connection:
        connection.execute("update t set value = makeaclitem(10, 10, 'select', false) where id = 0")
        form = form_of(connection, described(connection, "t"))
        fields = server_fields(connection, form)
        (printed,) = connection.execute("select value::text from t where id = 0").fetchone() or ()
    rendered = render_field(form, pa.array([printed, None], pa.string()))
    assert rendered.to_pylist() == fields[:2]


def test_more_columns_than_a_function_takes_arguments_have_one_text(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        columns = sql.SQL(", ").join(sql.SQL("{} integer").format(sql.Identifier(f"c{n}")) for n in range(250))
        connection.execute(sql.SQL("create table t ({})").format(columns))
        connection.execute("insert into t (c0, c89, c90, c249) values (1, 2, 3, 4)")
        table = described(connection, "t")
        form = describe_rows(connection, table)
        (expected,) = connection.execute(sql.SQL("select {} from t").format(form.ask_record())).fetchone() or ()
        (batch,) = copied(connection, table).to_batches()
    assert form.records(batch)[0].tobytes() == expected + expected


def test_a_column_that_the_sink_does_not_have_is_null_in_every_row(database: str) -> None:
    with source(database, "text", ["a"]) as connection:
        table = described(connection, "t")
        form = describe_rows(connection, table)
    ids = pa.array([1, 2], pa.int32())
    without = pa.record_batch({"id": ids})
    with_nulls = pa.record_batch({"id": ids, "value": pa.nulls(2, pa.string())})
    assert (form.records(without) == form.records(with_nulls)).all()


def test_a_column_of_a_foreign_type_is_refused_without_a_value(database: str) -> None:
    from pgtide.errors import SinkError

    with source(database, "text", ["a"]) as connection:
        form = describe_rows(connection, described(connection, "t"))
    batch = pa.record_batch({"id": pa.array([1], pa.int32()), "value": pa.array([4711])})
    with pytest.raises(SinkError, match=r"column value of public\.t") as caught:
        form.records(batch)
    assert "int64" in str(caught.value)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("value_type", ["integer", "text", "boolean", "bytea", "date", "timestamp", "numeric(5,2)"])
def test_a_form_refuses_the_arrow_type_of_another(value_type: LiteralString, database: str) -> None:
    with source(database, value_type, []) as connection:
        form = form_of(connection, described(connection, "t"))
    foreign: Any = pa.array([1.5])
    with pytest.raises(UnexpectedType, match="double"):
        form.render(foreign)


def test_rows_whose_fields_only_meet_across_the_border_have_different_texts(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table t (a text, b text, c text[], d jsonb)")
        connection.execute(
            """insert into t values ('a', 'b', '{}', '1'), ('a,1:b', null, '{}', '1'), ('a', 'b,', '{}', '1'),
                                    (null, 'a', '{}', '1'), ('a', null, '{}', '1'), ('', 'a', '{}', '1'),
                                    ('a', 'b', null, '1'), ('a', 'b', '{}', null), ('a', 'b', '{}', 'null')"""
        )
        table = described(connection, "t")
        form = describe_rows(connection, table)
        (batch,) = copied(connection, table).to_batches()
    assert len({text.encode() for text in form.key_texts(batch).to_pylist()}) == 9


def test_the_digest_of_a_plain_key_is_the_md5_that_sql_gives(database: str) -> None:
    with source(database, "integer", ["7"]) as connection:
        form: RowForm = describe_rows(connection, described(connection, "t"))
        rows = connection.execute("select md5(id::text) from t order by id").fetchall()
        (batch,) = copied(connection, described(connection, "t")).sort_by("id").to_batches()
    assert [key.tobytes().hex() for key in digests(form.key_texts(batch))] == [digest for (digest,) in rows]
