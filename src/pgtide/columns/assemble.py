"""Arrow arrays out of numpy parts.

Every array is built from its buffers, in the layout that the Arrow columnar format lays down: a
validity bitmap (least significant bit first), int32 offsets where values vary in width, and the data.
No Python object is made for a row.

Invariant: an array owns its memory. None refers to the buffer that it was decoded from, so a block
can be dropped as soon as its columns are built.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgtide.columns.gather import Bytes, Mask, Positions, Valid
from pgtide.errors import UnsupportedValue

# Arrow's string and binary types count bytes with int32 offsets.
OFFSET_MAX = 2**31 - 1


def memory_of(values: npt.NDArray[Any]) -> pa.Buffer:
    """The memory of a contiguous array, not copied."""
    return pa.py_buffer(values)  # type: ignore[arg-type]  # an array has the buffer protocol


def validity(valid: Valid) -> pa.Buffer | None:
    """The validity bitmap of a column, or None when every row has a value."""
    return None if valid is None else memory_of(np.packbits(valid, bitorder="little"))


def fixed_width(arrow_type: pa.DataType, values: npt.NDArray[Any], valid: Valid, rows: int) -> pa.Array[Any]:
    """An array whose data buffer is exactly the memory of `values`."""
    return pa.Array.from_buffers(arrow_type, rows, [validity(valid), memory_of(values)])


def variable_width(arrow_type: pa.DataType, lengths: Positions, data: Bytes, valid: Valid) -> pa.Array[Any]:
    """An array of values that lie end to end in `data`, one of each length."""
    offsets = memory_of(offsets_of(lengths))
    return pa.Array.from_buffers(arrow_type, lengths.size, [validity(valid), offsets, memory_of(data)])


def offsets_of(lengths: Positions) -> npt.NDArray[np.int32]:
    """Arrow offsets for values or lists of these lengths."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > OFFSET_MAX:
        raise _too_large()
    return offsets.astype(np.int32)


def copied_slices(
    arrow_type: pa.DataType, buffer: Bytes, start: Positions, length: Positions, valid: Valid
) -> pa.Array[Any]:
    """A string or binary array of the slices of the buffer. Rows without a value have length 0.

    Starts ascend within a block, so an Arrow array over the same buffer with the offsets s0 e0 s1 e1 …
    has the values as its even elements and the gaps as its odd ones. Taking the even ones leaves the
    copying to Arrow.
    """
    rows = start.size
    end = start + length
    if rows == 0 or not bool((start[1:] >= end[:-1]).all()):
        return _slices_in_any_order(arrow_type, buffer, start, length, valid)
    if buffer.size > OFFSET_MAX:
        return _slices_of_large_buffer(arrow_type, buffer, start, end, valid)
    taken = _even_elements(arrow_type, buffer, start, end, np.int32)
    if valid is None:
        return taken
    return pa.Array.from_buffers(arrow_type, rows, [validity(valid), *taken.buffers()[1:]])


def characters(matrix: Bytes, keep: Mask, valid: Valid) -> pa.Array[Any]:
    """A string array from a matrix of characters, one row each, of which only the kept are part."""
    lengths = np.count_nonzero(keep, axis=1)
    if valid is not None:
        keep = keep & valid[:, np.newaxis]
        lengths = np.where(valid, lengths, 0)
    return variable_width(pa.string(), lengths, matrix[keep], valid)


def _even_elements(
    arrow_type: pa.DataType, buffer: Bytes, start: Positions, end: Positions, offset_type: type[np.integer[Any]]
) -> pa.Array[Any]:
    rows = start.size
    offsets = np.empty(2 * rows, offset_type)
    offsets[0::2] = start
    offsets[1::2] = end
    both = pa.Array.from_buffers(arrow_type, 2 * rows - 1, [None, memory_of(offsets), memory_of(buffer)])
    return both.take(np.arange(0, 2 * rows, 2, dtype=np.int32))


def _slices_of_large_buffer(
    arrow_type: pa.DataType, buffer: Bytes, start: Positions, end: Positions, valid: Valid
) -> pa.Array[Any]:
    """The same for a buffer of 2 GiB or more: offsets of 64 bits, brought down after the taking."""
    taken = _even_elements(pa.large_binary(), buffer, start, end, np.int64)
    _, wide, data = taken.buffers()
    assert wide is not None
    offsets = np.frombuffer(memoryview(wide), np.int64, start.size + 1)
    if offsets[-1] > OFFSET_MAX:
        raise _too_large()
    narrow = memory_of(offsets.astype(np.int32))
    return pa.Array.from_buffers(arrow_type, start.size, [validity(valid), narrow, data])


def _slices_in_any_order(
    arrow_type: pa.DataType, buffer: Bytes, start: Positions, length: Positions, valid: Valid
) -> pa.Array[Any]:
    """The same for rows that were put in another order or repeated: slower, byte by byte."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if ends.size else 0
    source = np.repeat(start - ends + length, length) + np.arange(total)
    return variable_width(arrow_type, length, buffer[source], valid)


def _too_large() -> UnsupportedValue:
    return UnsupportedValue(
        "a column of one block has more data than an Arrow array holds",
        detail=f"the limit is {OFFSET_MAX} bytes or elements",
        hint="decode fewer rows at a time",
    )
