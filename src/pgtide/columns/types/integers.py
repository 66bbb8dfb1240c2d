"""int2, int4, int8; oid, xid and cid.

Wire: a big-endian integer. Arrow: the integer of the same width; oid, xid and cid are unsigned with 32
bits and become int64, because readers of a lake seldom know unsigned integers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.columns.assemble import fixed_width
from pgtide.columns.gather import INT2, INT4, INT8, UINT4, Bytes, Positions, Valid, gather_values
from pgtide.columns.kernel import Kernel

_FORMS: dict[str, tuple[np.dtype[Any], type[np.generic], pa.DataType]] = {
    "int2": (INT2, np.int16, pa.int16()),
    "int4": (INT4, np.int32, pa.int32()),
    "int8": (INT8, np.int64, pa.int64()),
    "oid": (UINT4, np.int64, pa.int64()),
    "xid": (UINT4, np.int64, pa.int64()),
    "cid": (UINT4, np.int64, pa.int64()),
}


def _decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid, *, type_name: str) -> pa.Array[Any]:
    wire, native, arrow_type = _FORMS[type_name]
    return fixed_width(arrow_type, gather_values(buffer, start, valid, wire, native), valid, start.size)


def kernel(type_name: str, modifier: int) -> Kernel:
    wire, _, arrow_type = _FORMS[type_name]
    return Kernel(type_name, arrow_type, partial(_decode, type_name=type_name), width=wire.itemsize)
