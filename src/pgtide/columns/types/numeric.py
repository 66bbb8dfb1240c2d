"""numeric.

Wire: base 10,000 digits behind a short header, as `numeric_wire` says. Arrow: decimal128(p, s) for
numeric(p, s) where p is at most 38 and s is from 0 to p, by `numeric_decimal`. Any other numeric, above
all one without precision, is a string exactly as Postgres prints it, by `numeric_text`: no digit, no
trailing zero, no NaN and no infinity is lost.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from pgtide.columns.kernel import Kernel
from pgtide.columns.types import numeric_decimal, numeric_text, text

# Arrow's decimal128 has room for 38 digits: they fit into 127 bits.
_PRECISION_MAX = 38


def precision_and_scale(modifier: int) -> tuple[int, int] | None:
    """What a type modifier says; None without a precision.

    Postgres keeps ((precision << 16) | (scale & 0x7ff)) + 4, where the scale is a signed number of
    11 bits.
    """
    if modifier < 4:
        return None
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 0x400) - 0x400


def kernel(type_name: str, modifier: int) -> Kernel:
    declared = precision_and_scale(modifier)
    if declared is None:
        return _text_kernel(type_name)
    precision, scale = declared
    full_name = f"{type_name}({precision},{scale})"
    if not 0 <= scale <= precision <= _PRECISION_MAX:
        return _text_kernel(full_name)
    decode = partial(numeric_decimal.decode, type_name=full_name, precision=precision, scale=scale)
    return Kernel(full_name, pa.decimal128(precision, scale), decode)


def _text_kernel(type_name: str) -> Kernel:
    return Kernel(type_name, pa.string(), partial(numeric_text.decode, type_name=type_name), text.decode)
