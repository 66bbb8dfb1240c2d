"""Big-endian integers at any byte of a buffer, for many positions at once.

Values on the wire are unaligned. An overlapping view with a stride of one byte has an element at every
byte of the buffer, so that gathering them is one indexing operation; numpy swaps the bytes when the
result is turned into a native array.

Invariant: no read leaves the buffer. A position too near to the end reads the last whole element
instead; whoever computed the position finds out that it was wrong from the end of the tuple or value,
which is checked for every row anyway.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
"""A contiguous buffer of raw bytes."""

Positions: TypeAlias = npt.NDArray[np.int64]
"""Byte positions in a buffer, or lengths; never negative."""

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One truth value for each row."""

Valid: TypeAlias = Mask | None
"""Which rows have a value; None when all have."""

# Named as Postgres names them, by the number of bytes: int8 is a bigint.
INT2 = np.dtype(">i2")
UINT2 = np.dtype(">u2")
INT4 = np.dtype(">i4")
UINT4 = np.dtype(">u4")
INT8 = np.dtype(">i8")
UINT8 = np.dtype(">u8")
BYTES16 = np.dtype("V16")

_Wire = TypeVar("_Wire", bound=np.generic)
_Native = TypeVar("_Native", bound=np.generic)


def gather(buffer: Bytes, position: Positions, wire: np.dtype[_Wire], native: type[_Native]) -> npt.NDArray[_Native]:
    """The values of wire type `wire` at the positions, as native numbers."""
    return gather_raw(buffer, position, wire).astype(native)


def gather_raw(buffer: Bytes, position: Positions, wire: np.dtype[_Wire]) -> npt.NDArray[_Wire]:
    """The values of wire type `wire` at the positions, as they are on the wire."""
    width = wire.itemsize
    if buffer.size < width:
        buffer = np.concatenate((buffer, np.zeros(width - buffer.size, np.uint8)))
    last = buffer.size - width
    everywhere: npt.NDArray[_Wire] = np.ndarray((last + 1,), wire, buffer, strides=(1,))
    return everywhere[np.minimum(position, last)]


def gather_values(
    buffer: Bytes, start: Positions, valid: Valid, wire: np.dtype[_Wire], native: type[_Native]
) -> npt.NDArray[_Native]:
    """Like `gather`, with zero in rows that have no value, so that checks need not skip them."""
    values = gather(buffer, start, wire, native)
    if valid is not None:
        values[~valid] = native(0)
    return values
