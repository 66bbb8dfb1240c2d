"""Arrays of one dimension.

Wire:

    int32   number of dimensions   0 for an empty array
    int32   flags                  1 if any element is null
    uint32  type of the elements
    int32   number of elements     these two for each dimension
    int32   lower bound
    int32   length, repeated       of an element, -1 for null; then its bytes

Arrow: a list of what the element's type becomes. The elements of all rows are found first and then
read by the element's own kernel, all at once. Elements of fixed width without nulls are where a
multiplication says; others are walked, one pass over all rows for each index.

A list has neither a second dimension nor a lower bound, so an array of several dimensions, or one that
does not begin at 1, is an error. Postgres declares neither: they are a matter of each value.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pgtide.columns.assemble import memory_of, offsets_of, validity
from pgtide.columns.gather import INT4, Bytes, Positions, Valid, gather
from pgtide.columns.kernel import Kernel, malformed, no_room
from pgtide.errors import ProtocolError

_DIMENSIONS_MAX = 6  # MAXDIM of Postgres
_EMPTY_BYTES = 12
_HEADER_BYTES = 20
_COUNT_AT = 12
_LOWER_BOUND_AT = 16
_LENGTH_BYTES = 4
_LENGTH = struct.Struct(">i")

# For fewer rows a plain loop over the elements is faster than a numpy pass for each index: a pass costs
# about 15 microseconds however few the rows, an element in the loop about 0.3.
_FEW_ROWS = 32


class _Arrays(NamedTuple):
    """Where many arrays are, with the number of elements of each."""

    type_name: str
    buffer: Bytes
    start: Positions
    end: Positions
    element_count: Positions


class _Elements(NamedTuple):
    """The elements of many arrays, one after the other."""

    start: Positions
    length: Positions
    valid: Valid


def _decode(
    buffer: Bytes, start: Positions, length: Positions, valid: Valid, *, type_name: str, element: Kernel
) -> pa.Array[Any]:
    rows = start.size
    if valid is not None:
        start, length = start[valid], length[valid]
    arrays = _read_headers(type_name, buffer, start, length)
    elements = _evenly_spaced(arrays, element.width) or _walked(arrays)
    values = element.decode(buffer, elements.start, elements.length, elements.valid)
    count = arrays.element_count
    if valid is not None:
        count = np.zeros(rows, np.int64)
        count[valid] = arrays.element_count
    offsets = memory_of(offsets_of(count))
    list_type = pa.list_(element.arrow_type)
    return pa.Array.from_buffers(list_type, rows, [validity(valid), offsets], children=[values])


def _read_headers(type_name: str, buffer: Bytes, start: Positions, length: Positions) -> _Arrays:
    """Check the headers. Afterwards the number of elements is bounded by the bytes that are there."""
    if (length < _EMPTY_BYTES).any():
        raise malformed(type_name, "it is shorter than its header")
    dimensions = gather(buffer, start, INT4, np.int64)
    if ((dimensions < 0) | (dimensions > _DIMENSIONS_MAX)).any():
        raise malformed(type_name, f"its dimensions are not between 0 and {_DIMENSIONS_MAX}")
    if (dimensions > 1).any():
        raise no_room(type_name, "an array of several dimensions is no list")
    one = dimensions == 1
    count = gather(buffer, start + _COUNT_AT, INT4, np.int64) * one
    room = length - np.where(one, _HEADER_BYTES, _EMPTY_BYTES) - _LENGTH_BYTES * count
    if ((count < 0) | (room < 0) | ((count == 0) & (room > 0))).any():
        raise _unlike_its_elements(type_name)
    if (gather(buffer, start + _LOWER_BOUND_AT, INT4, np.int64) != 1)[one].any():
        raise no_room(type_name, "an array whose lower bound is not 1 is no list")
    return _Arrays(type_name, buffer, start, start + length, count)


def _evenly_spaced(arrays: _Arrays, width: int) -> _Elements | None:
    """The elements if all have the same width, of which none is null; else None."""
    stride = _LENGTH_BYTES + width
    some = arrays.element_count > 0
    if not width or (arrays.start + _HEADER_BYTES + stride * arrays.element_count != arrays.end)[some].any():
        return None
    before = np.cumsum(arrays.element_count) - arrays.element_count
    first = arrays.start + (_HEADER_BYTES + _LENGTH_BYTES) - stride * before
    start = np.repeat(first, arrays.element_count)
    start += stride * np.arange(start.size)
    length = gather(arrays.buffer, start - _LENGTH_BYTES, INT4, np.int64)
    return _Elements(start, length, None) if (length == width).all() else None


def _walked(arrays: _Arrays) -> _Elements:
    """The elements of any width, walked from each array's first to its last."""
    total = int(arrays.element_count.sum())
    start, length = np.empty(total, np.int64), np.empty(total, np.int64)
    # Of the arrays that still have elements: which they are, where they are read, where the next one goes.
    rows = np.flatnonzero(arrays.element_count)
    position = arrays.start[rows] + _HEADER_BYTES
    target = (np.cumsum(arrays.element_count) - arrays.element_count)[rows]
    last = target + arrays.element_count[rows] - 1
    while rows.size >= _FEW_ROWS:
        size = gather(arrays.buffer, position, INT4, np.int64)
        position = position + _LENGTH_BYTES
        start[target], length[target] = position, size
        position += np.maximum(size, 0)
        end, more = arrays.end[rows], target < last
        if ((size < -1) | (position > end) | (~more & (position != end))).any():
            raise _unlike_its_elements(arrays.type_name)
        rows, position, target, last = rows[more], position[more], target[more] + 1, last[more]
    for row, at, first, final in zip(rows, position, target, last, strict=True):
        _walk_one(arrays, int(at), int(arrays.end[row]), start[first : final + 1], length[first : final + 1])
    null = length < 0
    return _Elements(start, np.maximum(length, 0), ~null if null.any() else None)


def _walk_one(arrays: _Arrays, position: int, end: int, start: Positions, length: Positions) -> None:
    """Walk the elements of one array, into the parts of `start` and `length` that are its own."""
    data = arrays.buffer.data
    for index in range(start.size):
        if position + _LENGTH_BYTES > end:
            raise _unlike_its_elements(arrays.type_name)
        (size,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH_BYTES
        start[index], length[index] = position, size
        position += max(size, 0)
        if size < -1:
            raise _unlike_its_elements(arrays.type_name)
    if position != end:
        raise _unlike_its_elements(arrays.type_name)


def _unlike_its_elements(type_name: str) -> ProtocolError:
    return malformed(type_name, "its length is not that of its elements")


def kernel(type_name: str, element: Kernel) -> Kernel:
    decode = partial(_decode, type_name=type_name, element=element)
    return Kernel(type_name, pa.list_(element.arrow_type), decode)
