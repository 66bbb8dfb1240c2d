"""date, time, timestamp and timestamptz.

Wire: date is an int32 of days, timestamp and timestamptz an int64 of microseconds, both since
2000-01-01 (in UTC for timestamptz); time is an int64 of microseconds since midnight. Arrow: date32 and
timestamp in microseconds, both since 1970-01-01, timestamptz with the zone UTC. time becomes a string,
as Postgres prints it, because Arrow's time has no 24:00:00.

The rule for infinity: `infinity` is the largest number of the Arrow type (int32 for date, int64 for
timestamps) and `-infinity` the smallest, as on Postgres's own wire. No finite value is mapped there,
so nothing is lost. Years BC are negative numbers like any other. A finite timestamp from the year
294247 on may not fit when counted from 1970; then it is an error.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgtide.columns.assemble import characters, fixed_width
from pgtide.columns.gather import INT4, INT8, Bytes, Positions, Valid, gather_values
from pgtide.columns.kernel import Kernel, malformed, no_room
from pgtide.columns.types import text

_DAYS_1970_TO_2000 = 10_957
_MICROSECONDS_1970_TO_2000 = _DAYS_1970_TO_2000 * 86_400_000_000

_ARROW_TYPES: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def _decode_date(buffer: Bytes, start: Positions, length: Positions, valid: Valid, *, type_name: str) -> pa.Array[Any]:
    days = gather_values(buffer, start, valid, INT4, np.int32)
    return _since_1970(type_name, days, np.int32(_DAYS_1970_TO_2000), valid)


def _decode_timestamp(
    buffer: Bytes, start: Positions, length: Positions, valid: Valid, *, type_name: str
) -> pa.Array[Any]:
    microseconds = gather_values(buffer, start, valid, INT8, np.int64)
    return _since_1970(type_name, microseconds, np.int64(_MICROSECONDS_1970_TO_2000), valid)


def _since_1970(
    type_name: str, since_2000: npt.NDArray[Any], shift: np.signedinteger[Any], valid: Valid
) -> pa.Array[Any]:
    """The same instants counted from 1970, with the infinities left where they are."""
    bounds = np.iinfo(since_2000.dtype)
    # Below this a shifted value is less than the largest number, which is infinity's.
    room = bounds.max - int(shift)
    moved = since_2000 + shift
    if since_2000.size and (int(since_2000.max()) >= room or int(since_2000.min()) == bounds.min):
        infinite = (since_2000 == bounds.max) | (since_2000 == bounds.min)
        if ((since_2000 >= room) & ~infinite).any():
            raise no_room(type_name, "it is too late to be counted from 1970 in the same number of bits")
        moved = np.where(infinite, since_2000, moved)
    return fixed_width(_ARROW_TYPES[type_name], moved, valid, since_2000.size)


_MICROSECONDS_OF_DAY = 86_400_000_000
_PRINTED_TIME = np.frombuffer(b"00:00:00.000000", np.uint8)
_POINT = 8
# (place in the printed form, value of the digit in microseconds, number of values of the digit)
_TIME_DIGITS = (
    (0, 36_000_000_000, 10),
    (1, 3_600_000_000, 10),
    (3, 600_000_000, 6),
    (4, 60_000_000, 10),
    (6, 10_000_000, 6),
    (7, 1_000_000, 10),
    (9, 100_000, 10),
    (10, 10_000, 10),
    (11, 1_000, 10),
    (12, 100, 10),
    (13, 10, 10),
    (14, 1, 10),
)


def _decode_time(buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
    microseconds = gather_values(buffer, start, valid, INT8, np.int64)
    if ((microseconds < 0) | (microseconds > _MICROSECONDS_OF_DAY)).any():
        raise malformed("time", "it is not between 00:00:00 and 24:00:00")
    printed = np.tile(_PRINTED_TIME, (microseconds.size, 1))
    keep = np.ones(printed.shape, np.bool_)
    for place, value, values in _TIME_DIGITS:
        printed[:, place] += (microseconds // value % values).astype(np.uint8)
        if place > _POINT:
            keep[:, place] = microseconds % (value * 10) != 0
    keep[:, _POINT] = keep[:, _POINT + 1]
    return characters(printed, keep, valid)


def kernel(type_name: str, modifier: int) -> Kernel:
    if type_name == "time":
        return Kernel(type_name, pa.string(), _decode_time, text.decode, width=INT8.itemsize)
    if type_name == "date":
        decode_date = partial(_decode_date, type_name=type_name)
        return Kernel(type_name, _ARROW_TYPES[type_name], decode_date, width=INT4.itemsize)
    decode_timestamp = partial(_decode_timestamp, type_name=type_name)
    return Kernel(type_name, _ARROW_TYPES[type_name], decode_timestamp, width=INT8.itemsize)
