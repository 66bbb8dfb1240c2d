from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.errors import ProtocolError, UnsupportedValue
from tests.columns.building import Text, decoded, unhurried

DATE, TIME, TIMESTAMP, TIMESTAMPTZ = 1082, 1083, 1114, 1184
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
EPOCH_SHIFT_DAYS = 10_957
EPOCH_SHIFT = EPOCH_SHIFT_DAYS * 86_400_000_000
MICROSECOND = timedelta(microseconds=1)


def days(value: date) -> bytes:
    return struct.pack(">i", (value - date(2000, 1, 1)).days)


def microseconds(value: datetime) -> bytes:
    return struct.pack(">q", (value - datetime(2000, 1, 1, tzinfo=value.tzinfo)) // MICROSECOND)


@unhurried
@given(st.lists(st.none() | st.dates()))
def test_dates_are_the_same_days(values: list[date | None]) -> None:
    array = decoded([None if value is None else days(value) for value in values], DATE)
    assert array.type == pa.date32()
    assert array.to_pylist() == values


@unhurried
@given(st.lists(st.none() | st.datetimes()))
def test_timestamps_are_the_same_instants(values: list[datetime | None]) -> None:
    array = decoded([None if value is None else microseconds(value) for value in values], TIMESTAMP)
    assert array.type == pa.timestamp("us")
    assert array.to_pylist() == values


@unhurried
@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC))))
def test_timestamps_with_a_zone_are_the_same_instants_in_utc(values: list[datetime | None]) -> None:
    array = decoded([None if value is None else microseconds(value) for value in values], TIMESTAMPTZ)
    assert array.type == pa.timestamp("us", "UTC")
    assert array.to_pylist() == values


def test_infinite_dates_are_the_extremes_of_the_number() -> None:
    values = [INT32_MAX, -INT32_MAX - 1, 0]
    array = decoded([struct.pack(">i", value) for value in values] + [None], DATE)
    assert array.cast(pa.int32()).to_pylist() == [INT32_MAX, -INT32_MAX - 1, EPOCH_SHIFT_DAYS, None]


@pytest.mark.parametrize("oid", [TIMESTAMP, TIMESTAMPTZ])
def test_infinite_timestamps_are_the_extremes_of_the_number(oid: int) -> None:
    values = [INT64_MAX, -INT64_MAX - 1, 0]
    array = decoded([struct.pack(">q", value) for value in values] + [None], oid)
    assert array.cast(pa.int64()).to_pylist() == [INT64_MAX, -INT64_MAX - 1, EPOCH_SHIFT, None]


def test_the_last_day_that_can_be_counted_from_1970_is_the_one_before_infinity() -> None:
    last = INT32_MAX - EPOCH_SHIFT_DAYS - 1
    assert decoded([struct.pack(">i", last)], DATE).cast(pa.int32()).to_pylist() == [INT32_MAX - 1]
    with pytest.raises(UnsupportedValue, match="date"):
        decoded([struct.pack(">i", INT32_MAX), struct.pack(">i", last + 1)], DATE)


@pytest.mark.parametrize("beyond", [1, 2, EPOCH_SHIFT])
def test_a_timestamp_that_cannot_be_counted_from_1970_is_refused(beyond: int) -> None:
    last = INT64_MAX - EPOCH_SHIFT - 1
    array = decoded([struct.pack(">q", last)], TIMESTAMP)
    assert array.cast(pa.int64()).to_pylist() == [INT64_MAX - 1]
    with pytest.raises(UnsupportedValue, match="timestamptz"):
        decoded([struct.pack(">q", last + beyond), None], TIMESTAMPTZ)


def test_what_lies_where_a_null_is_does_not_matter() -> None:
    # The foreign bytes behind a null at the end of a block look like a date beyond all.
    assert decoded([days(date(1970, 1, 1)), None], DATE).to_pylist() == [date(1970, 1, 1), None]


@unhurried
@given(st.lists(st.none() | st.times()))
def test_times_are_printed_without_zeros_at_the_end_of_the_fraction(values: list[time | None]) -> None:
    def wire(value: time) -> bytes:
        return microseconds(datetime.combine(date(2000, 1, 1), value))

    def printed(value: time) -> str:
        text = value.isoformat()
        return text.rstrip("0") if "." in text else text

    array = decoded([None if value is None else wire(value) for value in values], TIME)
    assert array.to_pylist() == [None if value is None else printed(value) for value in values]


def test_the_end_of_the_day_is_not_its_beginning() -> None:
    values = [0, 86_400_000_000, 86_399_999_999, 500_000, 1]
    array = decoded([struct.pack(">q", value) for value in values] + [Text(b"24:00:00")], TIME)
    assert array.to_pylist() == [
        "00:00:00",
        "24:00:00",
        "23:59:59.999999",
        "00:00:00.5",
        "00:00:00.000001",
        "24:00:00",
    ]


@pytest.mark.parametrize("value", [-1, 86_400_000_001, INT64_MAX])
def test_a_time_outside_the_day_is_refused(value: int) -> None:
    with pytest.raises(ProtocolError, match="time"):
        decoded([struct.pack(">q", value)], TIME)


@pytest.mark.parametrize("oid", [DATE, TIMESTAMP, TIMESTAMPTZ])
def test_dates_and_timestamps_as_text_are_refused_with_a_hint(oid: int) -> None:
    with pytest.raises(UnsupportedValue, match="hint: let the source send it in binary form"):
        decoded([Text(b"2000-01-01")], oid)
