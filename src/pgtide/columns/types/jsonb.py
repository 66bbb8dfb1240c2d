"""jsonb.

Wire: a version byte, always 1, then the text; in text form the text alone. Arrow: string, the text as
Postgres prints it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.columns.gather import Bytes, Positions, Valid
from pgtide.columns.kernel import Kernel, malformed
from pgtide.columns.types import text

_VERSION = 1


def _decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
    has_version = (length > 0) & (buffer.take(start, mode="clip") == _VERSION)
    skipped = np.ones(1, np.int64)
    if valid is not None:
        has_version |= ~valid
        skipped = valid.astype(np.int64)
    if not has_version.all():
        raise malformed("jsonb", f"it does not begin with the version {_VERSION}")
    return text.decode(buffer, start + skipped, length - skipped, valid)


def kernel(type_name: str, modifier: int) -> Kernel:
    return Kernel(type_name, pa.string(), _decode, text.decode)
