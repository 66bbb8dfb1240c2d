"""Columns as Postgres itself sends them: the server is the oracle.

Each case is a type with its edge values. They are written to a table and read in both ways, through a
slot (pgoutput, binary) and through COPY (format binary). Both must give the same Arrow column, and that
column must hold what the server says the values are, in its own text form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, LiteralString

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from pgtide.columns import (
    BINARY,
    NULL,
    TEXT,
    UNCHANGED,
    ColumnSlices,
    arrow_schema,
    decode_columns,
    walk_copy_tuples,
    walk_stream_tuples,
)
from pgtide.errors import UnsupportedValue
from pgtide.schema import Column, Table, TableName, TypeInfo
from tests.columns.building import Block

SLOT = "the_slot"
COPY_HEADER_BYTES = 19
FRAME_HEADER_BYTES = 6  # kind of message, oid of the table, kind of tuple


@dataclass(frozen=True)
class Case:
    """A type, literals of it, and how the server's text for a value says what Arrow must hold.

    `oracle` is the expression that is asked of the server, `expected` reads its text. `comparable` is
    applied to the Arrow column first, where Python has no room for its values.
    """

    sql_type: LiteralString
    literals: list[LiteralString]
    arrow_type: pa.DataType
    expected: Callable[[str], object] = str
    oracle: LiteralString = "value"
    comparable: Callable[[pa.Array[Any]], list[Any]] = pa.Array.to_pylist


def float_bits(form: str) -> Callable[[pa.Array[Any]], list[Any]]:
    def bits(array: pa.Array[Any]) -> list[Any]:
        return [None if value is None else struct.pack(form, value) for value in array.to_pylist()]

    return bits


def as_int32(array: pa.Array[Any]) -> list[Any]:
    return array.cast(pa.int32()).to_pylist()


def as_int64(array: pa.Array[Any]) -> list[Any]:
    return array.cast(pa.int64()).to_pylist()


def as_int64_lists(array: pa.Array[Any]) -> list[Any]:
    numbers: pa.Array[Any] = array.cast(pa.list_(pa.int64()))
    return numbers.to_pylist()


# Days and microseconds since 1970, by the server's own arithmetic; the infinities as the rule has them.
DAYS: LiteralString = """case value when 'infinity' then 2147483647 when '-infinity' then -2147483648
                              else value - date '1970-01-01' end"""
MICROSECONDS: LiteralString = """case value when 'infinity' then 9223372036854775807
                                      when '-infinity' then -9223372036854775808
                                      else (extract(epoch from value) * 1000000)::bigint end"""
ELEMENT_MICROSECONDS: LiteralString = """
    (select string_agg(coalesce((extract(epoch from each) * 1000000)::bigint::text, 'NULL'), ',' order by place)
     from unnest(value) with ordinality as elements(each, place))"""

NUMERIC_LITERALS: list[LiteralString] = [
    "0", "0.00", "1", "-1", "10000", "9999", "99990000", "1e20", "1.10", "-0.0001", "0.00010000", "1e-30", "NaN",
    "Infinity", "-Infinity", "123456789.987654321", "-99999999999999999999999999999999999999.5", "1e1000", "1e-1000",
    "7777777777777777777777777777777777777777777777777777777777777777777777777777777777777777777777777777.125",
]  # fmt: skip
TIMESTAMPS: list[LiteralString] = [
    "2000-01-01", "1970-01-01", "1969-12-31 23:59:59.999999", "1969-12-31", "0001-01-01", "4714-11-24 BC",
    "2024-02-29 12:34:56.789012", "9999-12-31 23:59:59.999999", "infinity", "-infinity",
    "294247-01-01",
]  # fmt: skip


def decimal_case(sql_type: LiteralString, precision: int, scale: int, literals: list[LiteralString]) -> Case:
    return Case(sql_type, literals, pa.decimal128(precision, scale), Decimal)


def elements(of: Callable[[str], object]) -> Callable[[str], object]:
    """The text form of an array whose elements need no quotes."""

    def split(text: str) -> object:
        inner = text.strip("{}")
        return [None if each == "NULL" else of(each) for each in inner.split(",")] if inner else []

    return split


CASES = {
    "smallint": Case("smallint", ["-32768", "32767", "0"], pa.int16(), int),
    "integer": Case("integer", ["-2147483648", "2147483647", "0", "-1"], pa.int32(), int),
    "bigint": Case("bigint", ["-9223372036854775808", "9223372036854775807", "0"], pa.int64(), int),
    "oid": Case("oid", ["0", "4294967295"], pa.int64(), int),
    "xid": Case("xid", ["3", "4294967295"], pa.int64(), int),
    "cid": Case("cid", ["0", "4294967295"], pa.int64(), int),
    "real": Case(
        "real",
        ["0", "-0", "1.1", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38"],
        pa.float32(),
        lambda text: struct.pack(">f", float(text)),
        comparable=float_bits(">f"),
    ),
    "double": Case(
        "double precision",
        ["0", "-0", "1.1", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308"],
        pa.float64(),
        lambda text: struct.pack(">d", float(text)),
        comparable=float_bits(">d"),
    ),
    "boolean": Case("boolean", ["true", "false"], pa.bool_(), "t".__eq__),
    "text": Case("text", ["", "plain", "zwölf 🐘", "tab\tand\nline", "\\N", " "], pa.string()),
    "varchar": Case("varchar(10)", ["", "é", "0123456789"], pa.string()),
    "bpchar": Case("char(5)", ["", "ab", "🐘", "12345"], pa.string()),
    "name": Case("name", ["", "a_name"], pa.string()),
    "single byte": Case('"char"', ["", "a", "\\377", "\\200"], pa.string()),
    "json": Case("json", ['{"a":  [1, null]}', '"🐘"', "1.00", " [ ] "], pa.string()),
    "jsonb": Case("jsonb", ['{"b": {"c": [1, {"d": null}]}, "a": 1.00}', '"🐘"', "[]", "null"], pa.string()),
    "bytea": Case("bytea", ["", "\\x00ff", "\\x6869"], pa.binary(), lambda text: bytes.fromhex(text[2:])),
    "uuid": Case(
        "uuid",
        ["00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
        pa.string(),
    ),
    "date": Case(
        "date",
        ["2000-01-01", "1969-12-31", "0001-01-01", "4714-11-24 BC", "5874897-12-31", "infinity", "-infinity"],
        pa.date32(),
        int,
        DAYS,
        as_int32,
    ),
    "time": Case(
        "time",
        ["00:00", "24:00", "13:45:06.123456", "13:45:06.100000", "23:59:59.999999", "00:00:00.000001", "01:02"],
        pa.string(),
    ),
    "time(2)": Case("time(2)", ["13:45:06.129", "13:45:06"], pa.string()),
    "timestamp": Case("timestamp", TIMESTAMPS, pa.timestamp("us"), int, MICROSECONDS, as_int64),
    "timestamptz": Case("timestamptz", TIMESTAMPS, pa.timestamp("us", "UTC"), int, MICROSECONDS, as_int64),
    "numeric": Case("numeric", NUMERIC_LITERALS, pa.string()),
    "numeric(12,2)": decimal_case(
        "numeric(12,2)", 12, 2, ["9999999999.99", "-9999999999.99", "0", "0.01", "-0.01", "1e4", "10000.0001"]
    ),
    "numeric(4,4)": decimal_case("numeric(4,4)", 4, 4, ["0", "0.9999", "-0.0001", "0.1"]),
    "numeric(18,0)": decimal_case("numeric(18,0)", 18, 0, ["999999999999999999", "-999999999999999999", "0"]),
    "numeric(19,3)": decimal_case("numeric(19,3)", 19, 3, ["9999999999999999.999", "-0.001", "1e15"]),
    "numeric(38,0)": decimal_case(
        "numeric(38,0)",
        38,
        0,
        ["99999999999999999999999999999999999999", "-99999999999999999999999999999999999999", "0", "-1", "1e37"],
    ),
    "numeric(38,10)": decimal_case(
        "numeric(38,10)", 38, 10, ["9999999999999999999999999999.9999999999", "-0.0000000001", "0", "1e27"]
    ),
    "numeric(38,38)": decimal_case(
        "numeric(38,38)", 38, 38, ["0.99999999999999999999999999999999999999", "-1e-38", "0", "1e-19"]
    ),
    "numeric(39,1)": Case("numeric(39,1)", ["1", "-99999999999999999999999999999999999999.9", "NaN"], pa.string()),
    "numeric(3,5)": Case("numeric(3,5)", ["0.00999", "-0.00001", "0"], pa.string()),
    "numeric(5,-2)": Case("numeric(5,-2)", ["9999900", "-149", "0"], pa.string()),
    "integer[]": Case(
        "integer[]",
        ["{}", "{1}", "{1,NULL,-2147483648}", "{1,2,3,4}", "{NULL}"],
        pa.list_(pa.int32()),
        elements(int),
    ),
    "boolean[]": Case("boolean[]", ["{}", "{t,f,NULL}"], pa.list_(pa.bool_()), elements("t".__eq__)),
    "text[]": Case(
        "text[]",
        ["{}", "{a,NULL,🐘}", "{one,two,three}"],
        pa.list_(pa.string()),
        elements(str),
    ),
    "varchar(3)[]": Case("varchar(3)[]", ["{}", "{abc,d}"], pa.list_(pa.string()), elements(str)),
    "numeric[]": Case("numeric[]", ["{}", "{1.50,NULL,NaN,-0.00001}", "{1e50}"], pa.list_(pa.string()), elements(str)),
    "numeric(12,2)[]": Case(
        "numeric(12,2)[]", ["{}", "{1.5,NULL,-9999999999.99}"], pa.list_(pa.decimal128(12, 2)), elements(Decimal)
    ),
    "uuid[]": Case(
        "uuid[]", ["{}", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}"], pa.list_(pa.string()), elements(str)
    ),
    "timestamptz[]": Case(
        "timestamptz[]",
        ["{2024-02-29 12:34:56.789012,1950-01-01}", "{NULL}"],
        pa.list_(pa.timestamp("us", "UTC")),
        elements(int),
        ELEMENT_MICROSECONDS,
        as_int64_lists,
    ),
    "enum": Case("mood", ["sad", "happy", "so-so 🐘"], pa.string()),
    "enum[]": Case("mood[]", ["{}", "{sad,NULL,happy}"], pa.list_(pa.string()), elements(str)),
    "domain": decimal_case("price", 12, 2, ["0", "9999999999.99", "-0.01"]),
    "domain over domain": decimal_case("good_price", 12, 2, ["0", "9999999999.99"]),
    "domain[]": Case("price[]", ["{}", "{1,NULL,2.5}"], pa.list_(pa.decimal128(12, 2)), elements(Decimal)),
    "domain over array": Case("scores", ["{}", "{1,NULL,2}"], pa.list_(pa.int32()), elements(int)),
}


@contextmanager
def source(dsn: str, value_type: LiteralString) -> Iterator[psycopg.Connection]:
    """A connection to a database with a table of that type, a publication and a slot."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in (
            sql.SQL("create type mood as enum ('sad', 'happy', 'so-so 🐘')"),
            sql.SQL("create domain price as numeric(12,2)"),
            sql.SQL("create domain good_price as price check (value >= 0)"),
            sql.SQL("create domain scores as integer[]"),
            sql.SQL("create type pair as (a integer, b text)"),
            sql.SQL("create table t (id integer primary key, value {})").format(sql.SQL(value_type)),
            sql.SQL("create publication the_publication for table t"),
        ):
            connection.execute(statement)
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        yield connection


def described(connection: psycopg.Connection) -> Table:
    """The table as the catalog describes it."""
    columns = connection.execute(
        """select attname, atttypid, atttypmod, attnum from pg_attribute
           where attrelid = 't'::regclass and attnum > 0 and not attisdropped order by attnum"""
    ).fetchall()
    types = connection.execute(
        """select oid, typname, case when typcategory = 'A' and typelem <> 0 then 'a' else typtype::text end,
                  typbasetype, typtypmod, typelem, typsend <> 0 from pg_type"""
    ).fetchall()
    return Table(
        oid=0,
        name=TableName("public", "t"),
        columns=tuple(Column(name, oid, modifier, attnum=attnum) for name, oid, modifier, attnum in columns),
        types={row[0]: TypeInfo(*row) for row in types},
    )


def streamed_frames(connection: psycopg.Connection, kind: bytes) -> list[bytes]:
    """The messages of one kind that the slot has not given yet."""
    rows = connection.execute(
        """select data from pg_logical_slot_get_binary_changes(%s, null, null, 'proto_version', '1',
                                'publication_names', 'the_publication', 'binary', 'true')""",
        [SLOT],
    ).fetchall()
    return [frame for (frame,) in rows if frame.startswith(kind)]


def streamed_slices(frames: list[bytes], columns: int) -> tuple[Any, list[ColumnSlices]]:
    lengths = np.array([len(frame) for frame in frames], np.int64)
    ends = np.cumsum(lengths)
    buffer = np.frombuffer(b"".join(frames), np.uint8)
    slices, after = walk_stream_tuples(buffer, ends - lengths + FRAME_HEADER_BYTES, ends, columns)
    assert after.tolist() == ends.tolist()
    return buffer, slices


def copied_block(connection: psycopg.Connection) -> Block:
    """The rows of the table as COPY sends them, found in the plainest way."""
    with (
        connection.cursor() as cursor,
        cursor.copy("copy (select * from t order by id) to stdout (format binary)") as copy,
    ):
        data = b"".join(bytes(each) for each in copy)
    starts, ends, position = [], [], COPY_HEADER_BYTES
    while (count := struct.unpack_from(">h", data, position)[0]) != -1:
        starts.append(position)
        position += 2
        for _ in range(count):
            position += 4 + max(struct.unpack_from(">i", data, position)[0], 0)
        ends.append(position)
    return Block(np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(ends, np.int64))


def both_ways(connection: psycopg.Connection) -> tuple[pa.Table, pa.Table]:
    """All rows of the table, inserted in the order of their ids: from the slot and from COPY."""
    table = described(connection)
    buffer, slices = streamed_slices(streamed_frames(connection, b"I"), len(table.columns))
    from_stream = pa.table(decode_columns(buffer, slices, table))
    block = copied_block(connection)
    slices, after = walk_copy_tuples(*block, len(table.columns))
    assert after.tolist() == block.ends.tolist()
    from_copy = pa.table(decode_columns(block.buffer, slices, table))
    for each in (from_stream, from_copy):
        each.validate(full=True)
        assert each.schema == arrow_schema(table)
    return from_stream, from_copy


def server_texts(connection: psycopg.Connection, expression: LiteralString) -> list[str | None]:
    """What the server prints for the expression in each row, before any conversion in Python."""
    cursor = connection.execute(sql.SQL("select {} from t order by id").format(sql.SQL(expression)))
    result = cursor.pgresult
    assert result is not None
    texts = (result.get_value(row, 0) for row in range(result.ntuples))
    return [None if text is None else text.decode() for text in texts]


def same_bytes(left: pa.Table, right: pa.Table) -> bool:
    """Equal, and NaN equal to NaN."""
    return all(
        [buffer and buffer.to_pybytes() for buffer in one.combine_chunks().buffers()]
        == [buffer and buffer.to_pybytes() for buffer in other.combine_chunks().buffers()]
        for one, other in zip(left.columns, right.columns, strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_every_type_is_read_as_the_server_prints_it(name: str, database: str) -> None:
    case = CASES[name]
    with source(database, case.sql_type) as connection:
        insert = sql.SQL("insert into t values (%s, %s::text::{})").format(sql.SQL(case.sql_type))
        # A null first, last and between, so that it stands beside every kind of neighbour.
        literals = [None, *case.literals, None, *reversed(case.literals), None]
        connection.cursor().executemany(insert, enumerate(literals))
        from_stream, from_copy = both_ways(connection)
        texts = server_texts(connection, case.oracle)
    assert from_stream.schema.field("value").type == case.arrow_type
    assert same_bytes(from_stream, from_copy)
    column = from_stream["value"].combine_chunks()
    assert case.comparable(column) == [None if text is None else case.expected(text) for text in texts]


def insert(connection: psycopg.Connection, literal: LiteralString) -> None:
    connection.execute(sql.SQL("insert into t values (1, {})").format(sql.SQL(literal)))


@pytest.mark.parametrize(
    ("value_type", "literal", "rule"),
    [
        ("numeric(12,2)", "'NaN'", "NaN and infinity"),
        ("integer[]", "'{{1,2},{3,4}}'", "several dimensions"),
        ("text[]", "'[0:1]={a,b}'", "lower bound"),
        ("timestamp", "'294276-12-31 23:59:59.999999'", "too late"),
        ("timestamptz", "'294247-01-11'", "too late"),
    ],
)
def test_values_that_arrow_has_no_room_for_are_refused_in_both_ways(
    value_type: LiteralString, literal: LiteralString, rule: str, database: str
) -> None:
    with source(database, value_type) as connection:
        insert(connection, literal)
        table = described(connection)
        buffer, slices = streamed_slices(streamed_frames(connection, b"I"), 2)
        with pytest.raises(UnsupportedValue, match=rule):
            decode_columns(buffer, slices, table)
        block = copied_block(connection)
        with pytest.raises(UnsupportedValue, match=rule):
            decode_columns(block.buffer, walk_copy_tuples(*block, 2)[0], table)


@pytest.mark.parametrize(
    ("value_type", "literal"), [("point", "'(1,2)'"), ("int4range", "'[1,5)'"), ("pair", "'(1,x)'"), ("inet", "'::1'")]
)
def test_types_without_a_kernel_keep_the_bytes_that_the_server_sends(
    value_type: LiteralString, literal: LiteralString, database: str
) -> None:
    with source(database, value_type) as connection:
        insert(connection, literal)
        from_stream, from_copy = both_ways(connection)
        cursor = connection.execute("select value from t", binary=True)
        assert cursor.pgresult is not None
        sent = cursor.pgresult.get_value(0, 0)
    assert from_stream["value"].to_pylist() == from_copy["value"].to_pylist() == [sent]


def test_a_type_that_is_only_sent_as_text_is_that_text(database: str) -> None:
    # COPY refuses such a type in binary format, so there is only the stream.
    with source(database, "aclitem") as connection:
        connection.execute("insert into t values (1, makeaclitem(10, 10, 'select', false)), (2, null)")
        table = described(connection)
        buffer, slices = streamed_slices(streamed_frames(connection, b"I"), 2)
        texts = server_texts(connection, "value")
    assert slices[1].state.tolist() == [TEXT, NULL]
    assert decode_columns(buffer, slices, table)["value"].to_pylist() == texts


def test_an_unchanged_toasted_value_is_a_state_of_its_own(database: str) -> None:
    with source(database, "text") as connection:
        connection.execute("alter table t add other integer, alter value set storage external")
        connection.execute("insert into t values (1, repeat('x', 10000), 1), (2, 'short', 1), (3, null, 1)")
        streamed_frames(connection, b"I")
        connection.execute("update t set other = 2")
        table = described(connection)
        buffer, slices = streamed_slices(streamed_frames(connection, b"U"), 3)
    assert slices[1].state.tolist() == [UNCHANGED, BINARY, NULL]
    columns = decode_columns(buffer, slices, table)
    assert columns["value"].to_pylist() == [None, "short", None]
    assert columns["other"].to_pylist() == [2, 2, 2]


def test_the_tuple_of_a_delete_has_the_key_alone(database: str) -> None:
    with source(database, "text") as connection:
        connection.execute("insert into t values (1, 'one'), (2, 'two')")
        streamed_frames(connection, b"I")
        connection.execute("delete from t")
        table = described(connection)
        buffer, slices = streamed_slices(streamed_frames(connection, b"D"), 2)
    columns = decode_columns(buffer, slices, table)
    assert {name: column.to_pylist() for name, column in columns.items()} == {"id": [1, 2], "value": [None, None]}


@dataclass(frozen=True)
class RandomColumn:
    """A column of random values: the expression that makes them, and the case that judges them."""

    expression: LiteralString
    case: Case


RANDOM_COLUMNS: dict[LiteralString, RandomColumn] = {
    "free": RandomColumn(
        "round((random() - 0.5)::numeric * 10::numeric ^ (random() * 60 - 20)::int, (random() * 50)::int)",
        Case("numeric", [], pa.string()),
    ),
    "price": RandomColumn(
        "(random() - 0.5) * 10 ^ (random() * 10)", Case("numeric(12,2)", [], pa.decimal128(12, 2), Decimal)
    ),
    "wide": RandomColumn(
        "(random() - 0.5)::numeric * 10::numeric ^ (random() * 26)::int",
        Case("numeric(38,12)", [], pa.decimal128(38, 12), Decimal),
    ),
    "fine": RandomColumn("random() - 0.5", Case("numeric(20,20)", [], pa.decimal128(20, 20), Decimal)),
    "day": RandomColumn(
        "date '2000-01-01' + ((random() - 0.5) * 1000000)::int",
        Case("date", [], pa.date32(), int, "day - date '1970-01-01'", as_int32),
    ),
    "instant": RandomColumn(
        "timestamptz '2000-01-01 00:00+00' + (random() - 0.5) * interval '4000 years'",
        Case(
            "timestamptz",
            [],
            pa.timestamp("us", "UTC"),
            int,
            "(extract(epoch from instant) * 1000000)::bigint",
            as_int64,
        ),
    ),
    "clock": RandomColumn("time '00:00' + random() * interval '23 hours'", Case("time", [], pa.string())),
    "label": RandomColumn(
        "case when random() < 0.9 then repeat('é', (random() * 20)::int) end", Case("text", [], pa.string())
    ),
    "code": RandomColumn("gen_random_uuid()", Case("uuid", [], pa.string())),
    "document": RandomColumn("jsonb_build_object('n', random(), 'l', array[id])", Case("jsonb", [], pa.string())),
    "ratio": RandomColumn("random() * 10 ^ (random() * 600 - 300)", Case("double precision", [], pa.float64(), float)),
    "tags": RandomColumn(
        "array(select nullif('t' || n, 't2') from generate_series(1, (random() * 4)::int) n)",
        Case("text[]", [], pa.list_(pa.string()), elements(str)),
    ),
    "sums": RandomColumn(
        "array(select random() * 1000 from generate_series(1, (random() * 4)::int))",
        Case("numeric(9,3)[]", [], pa.list_(pa.decimal128(9, 3)), elements(Decimal)),
    ),
}


def test_thousands_of_random_rows_are_read_as_the_server_prints_them(database: str) -> None:
    rows = 5_000
    with source(database, "integer") as connection:
        for name, column in RANDOM_COLUMNS.items():
            connection.execute(
                sql.SQL("alter table t add {} {}").format(sql.Identifier(name), sql.SQL(column.case.sql_type))
            )
        expressions = sql.SQL(", ").join([sql.SQL(column.expression) for column in RANDOM_COLUMNS.values()])
        connection.execute(
            sql.SQL("insert into t select id, null, {} from generate_series(1, {}) id").format(expressions, rows)
        )
        from_stream, from_copy = both_ways(connection)
        assert from_stream.num_rows == rows
        assert same_bytes(from_stream, from_copy)
        for name, column in RANDOM_COLUMNS.items():
            case = column.case
            texts = server_texts(connection, name if case.oracle == "value" else case.oracle)
            expected = [None if text is None else case.expected(text) for text in texts]
            assert from_stream.schema.field(name).type == case.arrow_type
            assert case.comparable(from_stream[name].combine_chunks()) == expected, name
