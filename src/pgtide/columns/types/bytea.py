"""bytea.

Wire: the bytes themselves. Arrow: binary, the same bytes. The text form is escaped and is not read.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgtide.columns.assemble import copied_slices
from pgtide.columns.gather import Bytes, Positions, Valid
from pgtide.columns.kernel import Kernel


def decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
    """The slices as they are."""
    return copied_slices(pa.binary(), buffer, start, length, valid)


def kernel(type_name: str, modifier: int) -> Kernel:
    return Kernel(type_name, pa.binary(), decode)
