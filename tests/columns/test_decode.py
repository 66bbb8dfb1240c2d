from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from pgtide.columns import (
    arrow_schema,
    decode_column,
    decode_columns,
    kernel_for,
    walk_copy_tuples,
    walk_stream_tuples,
)
from pgtide.errors import ProtocolError, UnsupportedValue
from pgtide.schema import Column, Table, TableName, TypeInfo
from tests.columns.building import (
    UNCHANGED,
    Row,
    Text,
    block_of,
    copy_tuple,
    decoded,
    numeric_bytes,
    numeric_modifier,
    stream_column,
    stream_tuple,
)

TABLE = Table(
    oid=16400,
    name=TableName("public", "orders"),
    columns=(
        Column("id", 20, key=True, not_null=True),
        Column("mood", 90001),
        Column("price", 1700, numeric_modifier(12, 2)),
    ),
    key=("id",),
    types={90001: TypeInfo(90001, "mood", "e")},
)

ID = struct.pack(">q", 7)


def test_the_schema_of_a_table_has_its_columns_in_their_order_and_all_nullable() -> None:
    expected: dict[str, pa.DataType] = {"id": pa.int64(), "mood": pa.string(), "price": pa.decimal128(12, 2)}
    schema = arrow_schema(TABLE)
    assert schema == pa.schema(expected)
    assert schema.names == list(expected)
    assert all(field.nullable for field in schema)


def test_a_streamed_row_and_a_copied_row_are_the_same_row() -> None:
    row = [ID, b"happy", numeric_bytes("1.50")]
    streamed, copied = block_of([stream_tuple(row)]), block_of([copy_tuple(row)])
    from_stream = decode_columns(streamed.buffer, walk_stream_tuples(*streamed, 3)[0], TABLE)
    from_copy = decode_columns(copied.buffer, walk_copy_tuples(*copied, 3)[0], TABLE)
    assert pa.table(from_stream).schema == arrow_schema(TABLE)
    assert from_stream == from_copy


def test_only_the_wanted_columns_are_decoded() -> None:
    # The price is no numeric at all: nobody looks at it.
    block = block_of([stream_tuple([ID, b"happy", b"?"])])
    slices, _ = walk_stream_tuples(*block, 3)
    columns = decode_columns(block.buffer, slices, TABLE, only={"mood", "id"})
    assert {name: column.to_pylist() for name, column in columns.items()} == {"id": [7], "mood": ["happy"]}
    assert list(columns) == ["id", "mood"]
    assert decode_columns(block.buffer, slices, TABLE, only=()) == {}


def test_null_and_unchanged_are_both_null_in_arrow() -> None:
    rows: list[Row] = [[ID, None, UNCHANGED], [ID, UNCHANGED, None], [ID, b"sad", numeric_bytes("1.00")]]
    block = block_of([stream_tuple(row) for row in rows])
    columns = decode_columns(block.buffer, walk_stream_tuples(*block, 3)[0], TABLE)
    assert columns["mood"].to_pylist() == [None, None, "sad"]
    assert [str(value) for value in columns["price"].to_pylist()] == ["None", "None", "1.00"]


@pytest.mark.parametrize("type_oid", [16, 17, 20, 25, 701, 1007, 1009, 1082, 1184, 1700, 2950, 3802, 99999])
def test_a_column_without_any_value_is_null_everywhere(type_oid: int) -> None:
    assert decoded([None, UNCHANGED, None], type_oid).to_pylist() == [None] * 3


@pytest.mark.parametrize("type_oid", [16, 17, 18, 20, 25, 701, 1007, 1009, 1082, 1083, 1700, 2950, 3802, 99999])
def test_no_rows_give_an_empty_column(type_oid: int) -> None:
    assert decoded([], type_oid).to_pylist() == []


def test_a_known_type_that_arrives_as_text_is_refused_with_a_hint() -> None:
    with pytest.raises(UnsupportedValue, match="int4 arrived as text") as error:
        decoded([Text(b"42"), None], 23)
    assert "42" not in str(error.value)
    assert error.value.hint is not None


def test_an_error_names_the_column_and_the_table_but_not_the_value() -> None:
    block = block_of([stream_tuple([ID, b"happy", numeric_bytes("NaN")])])
    slices, _ = walk_stream_tuples(*block, 3)
    with pytest.raises(UnsupportedValue, match=r"numeric\(12,2\)") as unsupported:
        decode_columns(block.buffer, slices, TABLE)
    assert unsupported.value.detail == "column price of public.orders: NaN and infinity are no decimal"
    assert unsupported.value.hint is not None
    block = block_of([stream_tuple([b"1234567", b"happy", None])])
    slices, _ = walk_stream_tuples(*block, 3)
    with pytest.raises(ProtocolError, match=r"column id of public\.orders"):
        decode_columns(block.buffer, slices, TABLE)


def test_slices_must_be_there_for_every_column() -> None:
    block = block_of([stream_tuple([ID, None])])
    with pytest.raises(ValueError, match="shorter"):
        decode_columns(block.buffer, walk_stream_tuples(*block, 2)[0], TABLE)


def test_a_block_may_be_read_only_memory() -> None:
    buffer, slices = stream_column([ID])
    assert not buffer.flags.writeable
    assert decode_column(buffer, slices, kernel_for(TABLE.columns[0], {})).to_pylist() == [7]
