"""text, varchar, bpchar, name, json, xml, citext, enums; and "char".

Wire: the text itself, in binary form as in text form; for "char" a single byte. Arrow: string, exactly
as Postgres sends it: the blanks that pad a bpchar are kept, json is not touched.

An Arrow string is UTF-8. A database with the encoding SQL_ASCII can hold other bytes, which the
server sends unconverted: there is no room for them, and it is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.columns.assemble import copied_slices
from pgtide.columns.gather import Bytes, Positions, Valid, gather_values
from pgtide.columns.kernel import Kernel
from pgtide.errors import UnsupportedValue

_ONE_BYTE = np.dtype(np.uint8)


def decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
    """The slices as strings, checked to be UTF-8."""
    array = copied_slices(pa.string(), buffer, start, length, valid)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        # The reason is not chained: Arrow's message may quote the value.
        raise UnsupportedValue(
            "a text is not valid UTF-8",
            hint="text of a SQL_ASCII database must hold UTF-8 to be captured; bytea takes any bytes",
        ) from None
    return array


def _single_byte_form(byte: int) -> str:
    """A "char" as charout prints it: nothing for zero, octal for bytes that are not ASCII."""
    if byte == 0:
        return ""
    return chr(byte) if byte < 0x80 else f"\\{byte:03o}"


_SINGLE_BYTE_FORMS = pa.array([_single_byte_form(byte) for byte in range(256)], pa.string())


def _decode_single_byte(buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
    values = gather_values(buffer, start, valid, _ONE_BYTE, np.uint8)
    missing = None if valid is None else ~valid
    return _SINGLE_BYTE_FORMS.take(pa.array(values, pa.uint8(), mask=missing))


def kernel(type_name: str, modifier: int) -> Kernel:
    if type_name == '"char"':
        return Kernel(type_name, pa.string(), _decode_single_byte, decode, width=_ONE_BYTE.itemsize)
    return Kernel(type_name, pa.string(), decode, decode)
