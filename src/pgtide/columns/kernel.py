"""A kernel: how the values of one type become an Arrow array.

Kernels are made by the modules in `types/`, one for each family, and found through the table in
`kernels`. A kernel is a value: it keeps no state between blocks.

Invariant: the Arrow type of a kernel depends on the column's type alone, never on the values of a
block, and `decode` gives exactly that type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from pgtide.columns.gather import Bytes, Positions, Valid
from pgtide.errors import ProtocolError, UnsupportedValue

Decode: TypeAlias = Callable[[Bytes, Positions, Positions, Valid], "pa.Array[Any]"]
"""(buffer, start, length, valid) to an array with one element for each start.

Slices lie inside the buffer. Rows without a value have length 0, and a start that means nothing.
"""


@dataclass(frozen=True)
class Kernel:
    """How the values of one type are read.

    `from_binary` reads the binary form; `from_text` the text form, where it can be taken as it is.
    `width` is the number of bytes of every value in binary form, 0 if it varies: it is checked here,
    so `from_binary` need not.
    """

    type_name: str
    arrow_type: pa.DataType
    from_binary: Decode
    from_text: Decode | None = None
    width: int = 0

    def decode(self, buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
        """Read values in binary form.

        Raises ProtocolError for bytes that are no such value, UnsupportedValue for a value that the
        Arrow type has no room for.
        """
        if start.size == 0:
            return pa.array([], self.arrow_type)
        if self.width:
            fits = length == self.width
            if valid is not None:
                fits |= ~valid
            if not fits.all():
                raise malformed(self.type_name, f"its length is not {self.width} bytes")
        return self.from_binary(buffer, start, length, valid)

    def decode_text(self, buffer: Bytes, start: Positions, length: Positions, valid: Valid) -> pa.Array[Any]:
        """Read values in text form. Raises UnsupportedValue if this type is only read as binary."""
        if self.from_text is None:
            raise UnsupportedValue(
                f"a value of type {self.type_name} arrived as text and is only read as binary",
                hint="let the source send it in binary form: option binary of pgoutput, format binary of copy",
            )
        return self.from_text(buffer, start, length, valid)


def malformed(type_name: str, rule: str) -> ProtocolError:
    """The error for bytes that are not a value of the type at all."""
    return ProtocolError(f"a value of type {type_name} is malformed", detail=rule)


def no_room(type_name: str, rule: str, hint: str | None = None) -> UnsupportedValue:
    """The error for a good value that the chosen Arrow type cannot hold."""
    return UnsupportedValue(f"a value of type {type_name} has no place in Arrow", detail=rule, hint=hint)
