from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.columns.types.numeric import precision_and_scale
from pgtide.errors import ProtocolError, UnsupportedValue
from tests.columns.building import Cell, Text, decoded, numeric_bytes, numeric_modifier, numeric_parts, unhurried

NUMERIC = 1700
EXACT = Context(prec=400)


def printed(unscaled: int, scale: int) -> str:
    """An unscaled number as Postgres prints it."""
    return f"{Decimal(unscaled).scaleb(-scale, EXACT):f}"


def decoded_decimal(values: list[str | None], precision: int, scale: int) -> pa.Array[Any]:
    cells = [None if value is None else numeric_bytes(value) for value in values]
    return decoded(cells, NUMERIC, numeric_modifier(precision, scale))


@st.composite
def columns(draw: st.DrawFn) -> tuple[int, int, list[str | None]]:
    """A precision, a scale, and values that fit."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    # Values of any size, and not only those near the limit.
    digits = st.integers(0, precision).flatmap(lambda count: st.integers(-(10**count) + 1, 10**count - 1))
    values = draw(st.lists(st.none() | digits, min_size=1, max_size=8))
    return precision, scale, [None if value is None else printed(value, scale) for value in values]


@unhurried
@given(columns())
def test_every_value_of_a_declared_numeric_is_exact(column: tuple[int, int, list[str | None]]) -> None:
    precision, scale, values = column
    array = decoded_decimal(values, precision, scale)
    assert array.type == pa.decimal128(precision, scale)
    assert array.to_pylist() == [None if value is None else Decimal(value) for value in values]


@pytest.mark.parametrize(
    ("precision", "scale"),
    [(precision, scale) for precision in (1, 4, 12, 18, 19, 20, 28, 37, 38) for scale in range(precision + 1)],
)
def test_the_extremes_of_every_precision_and_scale_are_exact(precision: int, scale: int) -> None:
    most, least = 10**precision - 1, 1
    values = [printed(value, scale) for value in (most, -most, least, -least, 0)]
    array = decoded_decimal([*values, None], precision, scale)
    assert array.to_pylist() == [*map(Decimal, values), None]


@pytest.mark.parametrize(("precision", "scale"), [(4, 2), (12, 2), (18, 0), (25, 3), (30, 10), (38, 0), (38, 38)])
def test_a_value_with_more_digits_than_its_type_is_refused(precision: int, scale: int) -> None:
    for factor in (1, 3, 10, 35, 100, 1000, 10**6):
        with pytest.raises(UnsupportedValue, match=rf"numeric\({precision},{scale}\).*\n.*before the point"):
            decoded_decimal(["0", printed(10**precision * factor, scale)], precision, scale)


@pytest.mark.parametrize("scale", [0, 1, 2, 3, 4, 7])
def test_a_value_finer_than_its_scale_is_refused_and_never_rounded(scale: int) -> None:
    for finer in range(scale + 1, scale + 9):
        with pytest.raises(UnsupportedValue, match="after the point"):
            decoded_decimal(["1", printed(10**finer + 1, finer)], 20, scale)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_decimal_has_no_room_for_what_is_no_number(value: str) -> None:
    with pytest.raises(UnsupportedValue, match=r"numeric\(12,2\)"):
        decoded_decimal(["1.00", value], 12, 2)


def test_a_decimal_as_text_is_refused() -> None:
    with pytest.raises(UnsupportedValue, match=r"numeric\(12,2\) arrived as text"):
        decoded([Text(b"1.00")], NUMERIC, numeric_modifier(12, 2))


@pytest.mark.parametrize(
    ("precision", "scale"), [(39, 0), (39, 10), (1000, 2), (3, 5), (5, -2), (38, -1), (2, 1000), (2, -1000)]
)
def test_a_numeric_that_no_decimal_can_be_is_text(precision: int, scale: int) -> None:
    modifier = numeric_modifier(precision, scale)
    assert precision_and_scale(modifier) == (precision, scale)
    array = decoded([numeric_bytes("1")], NUMERIC, modifier)
    assert array.type == pa.string()
    assert array.to_pylist() == ["1"]


PRINTED = [
    "0",
    "0.00",
    "1",
    "-1",
    "10000",
    "9999",
    "100000000",
    "1.10",
    "-0.0001",
    "0.00010000",
    "0.000000000000000001",
    "123456789.987654321",
    "12345678901234567890.5",
    "NaN",
    "Infinity",
    "-Infinity",
    "9" * 36 + "." + "9" * 36,
    "1" + "0" * 36,
    "0." + "0" * 36 + "1",
    "-" + "7" * 100 + "." + "3" * 50,
    "1" + "0" * 131_071,
    "0." + "0" * 16_382 + "1",
    "1." + "0" * 16_383,
]


def test_a_numeric_without_precision_is_printed_as_postgres_prints_it() -> None:
    cells: list[Cell] = [*map(numeric_bytes, PRINTED), None, Text(b"1.0")]
    assert decoded(cells, NUMERIC).to_pylist() == [*PRINTED, None, "1.0"]


def test_values_of_usual_size_are_printed_together() -> None:
    usual: list[str | None] = ["1.50", None, "-20", "0.000", "123456789012.3", None]
    cells = [None if value is None else numeric_bytes(value) for value in usual]
    assert decoded(cells, NUMERIC).to_pylist() == usual


@unhurried
@given(st.lists(st.tuples(st.integers(-(10**45), 10**45), st.integers(0, 45)) | st.none()))
def test_any_numeric_is_printed_with_its_display_scale(values: list[tuple[int, int] | None]) -> None:
    expected = [None if value is None else printed(*value) for value in values]
    cells = [None if value is None else numeric_bytes(value) for value in expected]
    assert decoded(cells, NUMERIC).to_pylist() == expected


@pytest.mark.parametrize("modifier", [-1, numeric_modifier(12, 2), numeric_modifier(38, 10)])
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\0" * 7,
        numeric_bytes("1.5")[:-1],
        numeric_bytes("1.5") + b"\0",
        numeric_parts([10_000], 0, 0, 0),
        numeric_parts([1, 65_535], 0, 0, 2),
        numeric_parts([1], 0, 0x8000, 0),
        numeric_parts([1], 0, 1, 0),
        numeric_parts([1], 0, 0xC000, 0),
        numeric_parts([1], 0, 0, 0x4000),
    ],
)
def test_bytes_that_are_no_numeric_are_refused(value: bytes, modifier: int) -> None:
    with pytest.raises(ProtocolError, match="numeric"):
        decoded([numeric_bytes("1.00"), value], NUMERIC, modifier)


def test_a_bad_digit_in_a_value_of_unusual_size_is_refused() -> None:
    with pytest.raises(ProtocolError, match="below 10000"):
        decoded([numeric_parts([1, 10_000], 100, 0, 0)], NUMERIC)
