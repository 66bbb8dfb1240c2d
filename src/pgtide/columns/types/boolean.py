"""bool.

Wire: one byte, 1 or 0. Arrow: bool, one bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.columns.assemble import fixed_width
from pgtide.columns.gather import Bytes, Positions, Valid, gather_values
from pgtide.columns.kernel import Kernel, malformed

_WIRE = np.dtype(np.uint8)


def _decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
    values = gather_values(buffer, start, valid, _WIRE, np.uint8)
    if values.size and int(values.max()) > 1:
        raise malformed("bool", "its byte is neither 0 nor 1")
    return fixed_width(pa.bool_(), np.packbits(values, bitorder="little"), valid, start.size)


def kernel(type_name: str, modifier: int) -> Kernel:
    return Kernel(type_name, pa.bool_(), _decode, width=_WIRE.itemsize)
