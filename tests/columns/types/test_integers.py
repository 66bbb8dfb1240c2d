from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from pgtide.errors import ProtocolError
from tests.columns.building import decoded


@pytest.mark.parametrize(
    ("oid", "form", "arrow_type", "low", "high"),
    [
        (21, ">h", pa.int16(), -(2**15), 2**15 - 1),
        (23, ">i", pa.int32(), -(2**31), 2**31 - 1),
        (20, ">q", pa.int64(), -(2**63), 2**63 - 1),
        (26, ">I", pa.int64(), 0, 2**32 - 1),
        (28, ">I", pa.int64(), 0, 2**32 - 1),
        (29, ">I", pa.int64(), 0, 2**32 - 1),
    ],
)
def test_integers_keep_their_extremes(oid: int, form: str, arrow_type: pa.DataType, low: int, high: int) -> None:
    values = [low, 1, None, 0, high]
    array = decoded([None if value is None else struct.pack(form, value) for value in values], oid)
    assert array.type == arrow_type
    assert array.to_pylist() == values


@pytest.mark.parametrize("length", [0, 3, 5, 8])
def test_an_integer_of_another_width_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="a value of type int4 is malformed"):
        decoded([b"\0" * 4, None, b"\0" * length], 23)
