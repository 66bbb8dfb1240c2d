from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.columns.types import arrays
from pgtide.errors import ProtocolError, UnsupportedValue
from pgtide.schema import TypeInfo
from tests.columns.building import (
    array_bytes,
    decoded,
    numeric_bytes,
    numeric_modifier,
    sized,
    unhurried,
)

INT4_ARRAY, TEXT_ARRAY, NUMERIC_ARRAY = 1007, 1009, 1231


@pytest.fixture(params=["pass for each index", "loop over elements"])
def _walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either way of walking elements, whatever the number of rows."""
    few_rows = 1 if request.param == "pass for each index" else 1_000_000
    monkeypatch.setattr(arrays, "_FEW_ROWS", few_rows)


def int4(value: int | None) -> bytes | None:
    return None if value is None else struct.pack(">i", value)


@unhurried
@given(st.lists(st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1))))
def test_arrays_of_integers_are_lists_of_the_same(values: list[list[int | None] | None]) -> None:
    cells = [None if value is None else array_bytes([int4(each) for each in value]) for value in values]
    array = decoded(cells, INT4_ARRAY)
    assert array.type == pa.list_(pa.int32())
    assert array.to_pylist() == values


@unhurried
@given(st.lists(st.none() | st.lists(st.none() | st.text(st.characters(codec="utf-8"))), max_size=80))
def test_arrays_of_text_are_lists_of_the_same(values: list[list[str | None] | None]) -> None:
    def element(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    cells = [None if value is None else array_bytes([element(each) for each in value]) for value in values]
    array = decoded(cells, TEXT_ARRAY)
    assert array.type == pa.list_(pa.string())
    assert array.to_pylist() == values


@pytest.mark.usefixtures("_walk")
def test_arrays_of_different_sizes_are_walked_side_by_side() -> None:
    values = [[f"{row}.{index}" for index in range(row % 7)] for row in range(100)]
    cells = [array_bytes([each.encode() for each in value]) for value in values]
    assert decoded(cells, TEXT_ARRAY).to_pylist() == values


def test_one_array_of_many_elements_is_read() -> None:
    values = [None if index % 10 == 0 else str(index) for index in range(50_000)]
    cell = array_bytes([None if each is None else each.encode() for each in values])
    assert decoded([cell, None, array_bytes([])], TEXT_ARRAY).to_pylist() == [values, None, []]


def test_the_modifier_of_an_array_is_that_of_its_elements() -> None:
    cell = array_bytes([numeric_bytes("1.50"), None, numeric_bytes("-20.00")])
    array = decoded([cell], NUMERIC_ARRAY, numeric_modifier(12, 2))
    assert array.type == pa.list_(pa.decimal128(12, 2))
    assert array.to_pylist() == [[Decimal("1.50"), None, Decimal("-20.00")]]


def test_an_array_without_elements_in_its_one_dimension_is_empty() -> None:
    assert decoded([struct.pack(">iiIii", 1, 0, 23, 0, 1)], INT4_ARRAY).to_pylist() == [[]]


def test_an_array_of_only_nulls_has_them() -> None:
    for oid in (INT4_ARRAY, TEXT_ARRAY, NUMERIC_ARRAY, 1000, 1001, 1002, 1183, 1185, 2951, 3807):
        assert decoded([array_bytes([None, None])], oid).to_pylist() == [[None, None]]


def test_arrays_of_a_domain_over_arrays_are_lists_of_lists() -> None:
    types = {
        90001: TypeInfo(90001, "series", "d", base=INT4_ARRAY),
        90002: TypeInfo(90002, "_series", "a", element=90001),
    }
    inner = array_bytes([int4(1), None])
    array = decoded([array_bytes([inner, None, array_bytes([])]), None], 90002, types=types)
    assert array.to_pylist() == [[[1, None], None, []], None]


def test_arrays_of_enums_are_lists_of_strings() -> None:
    types = {90001: TypeInfo(90001, "mood", "e"), 90002: TypeInfo(90002, "_mood", "a", element=90001)}
    assert decoded([array_bytes([b"sad", None])], 90002, types=types).to_pylist() == [["sad", None]]


def test_an_array_of_several_dimensions_is_refused() -> None:
    value = struct.pack(">iiIiiii", 2, 0, 23, 1, 1, 1, 1) + sized(struct.pack(">i", 1))
    with pytest.raises(UnsupportedValue, match=r"int4\[\].*\n.*several dimensions"):
        decoded([value], INT4_ARRAY)


@pytest.mark.parametrize("lower_bound", [0, 2, -1])
def test_an_array_that_does_not_begin_at_1_is_refused(lower_bound: int) -> None:
    with pytest.raises(UnsupportedValue, match="lower bound"):
        decoded([array_bytes([b"a"], lower_bound=lower_bound)], TEXT_ARRAY)


def malformed_arrays() -> Iterator[bytes]:
    good = array_bytes([b"abcd", b"efgh"])
    yield from (good[:size] for size in range(len(good)))
    yield good + b"\0"
    yield array_bytes([]) + b"\0"
    yield struct.pack(">iiI", -1, 0, 25)
    yield struct.pack(">iiI", 7, 0, 25)
    for count in (-1, 1, 3, 2**31 - 1, -(2**31)):
        yield good[:12] + struct.pack(">i", count) + good[16:]
    for length in (-2, 3, 5, 2**31 - 1, -(2**31)):
        yield good[:20] + struct.pack(">i", length) + good[24:]
        yield good[:28] + struct.pack(">i", length) + good[32:]


@pytest.mark.usefixtures("_walk")
@pytest.mark.parametrize("oid", [INT4_ARRAY, TEXT_ARRAY])
def test_bytes_that_are_no_array_are_refused(oid: int) -> None:
    for value in malformed_arrays():
        with pytest.raises(ProtocolError):
            decoded([array_bytes([b"abcd"]), value, None], oid)


def test_an_element_of_another_width_is_refused() -> None:
    with pytest.raises(ProtocolError, match="int4"):
        decoded([array_bytes([b"abcde", b"abc"])], INT4_ARRAY)
