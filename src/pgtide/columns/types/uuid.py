"""uuid.

Wire: 16 bytes. Arrow: string, lowercase with dashes, as Postgres prints it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.columns.assemble import variable_width
from pgtide.columns.gather import BYTES16, Bytes, Positions, Valid, gather_raw
from pgtide.columns.kernel import Kernel
from pgtide.columns.types import text

# Two characters for each byte, kept as one number, so that hexadecimal is a table look-up.
_HEXADECIMAL = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)

_PRINTED_LENGTH = 36
_GROUP_LENGTHS = (8, 4, 4, 4, 12)


def _groups(gap: int) -> np.dtype[np.void]:
    """A record of the five groups of digits, with `gap` bytes between them."""
    offsets = [sum(_GROUP_LENGTHS[:index]) + gap * index for index in range(len(_GROUP_LENGTHS))]
    return np.dtype(
        {
            "names": [f"group{index}" for index in range(len(_GROUP_LENGTHS))],
            "formats": [f"V{length}" for length in _GROUP_LENGTHS],
            "offsets": offsets,
            "itemsize": offsets[-1] + _GROUP_LENGTHS[-1],
        }
    )


_DIGITS = _groups(gap=0)
_PRINTED = _groups(gap=1)


def _decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
    present = start if valid is None else start[valid]
    raw = gather_raw(buffer, present, BYTES16).view(np.uint8)
    digits = _HEXADECIMAL.take(raw).view(_DIGITS)
    data = np.full(present.size * _PRINTED_LENGTH, ord("-"), np.uint8)
    printed = data.view(_PRINTED)
    for group in _PRINTED.names or ():
        printed[group] = digits[group]
    lengths = np.full(start.size, _PRINTED_LENGTH) if valid is None else valid * np.int64(_PRINTED_LENGTH)
    return variable_width(pa.string(), lengths, data, valid)


def kernel(type_name: str, modifier: int) -> Kernel:
    return Kernel(type_name, pa.string(), _decode, text.decode, width=BYTES16.itemsize)
