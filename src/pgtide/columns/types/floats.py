"""float4 and float8.

Wire: IEEE 754, big-endian. Arrow: the same bits, so NaN, the infinities and the sign of zero are kept.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.columns.assemble import fixed_width
from pgtide.columns.gather import UINT4, UINT8, Bytes, Positions, Valid, gather_values
from pgtide.columns.kernel import Kernel

# Read as integers: a conversion of floats may quiet a signalling NaN, one of integers moves bits only.
_FORMS: dict[str, tuple[np.dtype[Any], type[np.generic], pa.DataType]] = {
    "float4": (UINT4, np.uint32, pa.float32()),
    "float8": (UINT8, np.uint64, pa.float64()),
}


def _decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid, *, type_name: str) -> pa.Array[Any]:
    wire, native, arrow_type = _FORMS[type_name]
    return fixed_width(arrow_type, gather_values(buffer, start, valid, wire, native), valid, start.size)


def kernel(type_name: str, modifier: int) -> Kernel:
    wire, _, arrow_type = _FORMS[type_name]
    return Kernel(type_name, arrow_type, partial(_decode, type_name=type_name), width=wire.itemsize)
