from __future__ import annotations

import math
import struct

import pyarrow as pa
import pytest

from tests.columns.building import decoded

VALUES = [0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, None]


@pytest.mark.parametrize(("oid", "form", "arrow_type"), [(700, ">f", pa.float32()), (701, ">d", pa.float64())])
def test_floats_keep_every_bit(oid: int, form: str, arrow_type: pa.DataType) -> None:
    array = decoded([None if value is None else struct.pack(form, value) for value in VALUES], oid)
    assert array.type == arrow_type
    bits = [None if value is None else struct.pack(form, value) for value in array.to_pylist()]
    assert bits == [None if value is None else struct.pack(form, value) for value in VALUES]


def test_a_signalling_nan_is_not_quieted() -> None:
    signalling = bytes.fromhex("7ff0000000000001")
    array = decoded([signalling], 701)
    data = array.buffers()[1]
    assert data is not None
    assert data.to_pybytes() == signalling[::-1]
