"""Where the columns of many tuples are: one numpy pass per column over all rows.

A streamed tuple (pgoutput, TupleData): int16 number of columns; then for each column a byte that says
what follows: `n` null, `u` an unchanged TOASTed value that is not sent, `t` a value as text, `b` a value as
binary; for the last two an int32 length and that many bytes.

A snapshot tuple (COPY binary): int16 number of columns; then for each column an int32 length, -1 for
null, and that many bytes.

Invariant: what is returned lies inside `ends`. Reads are clipped to the buffer, and because every
column moves a row's position forward, one comparison with `ends` after each column finds every row that
ran past its end, whatever it read there. Errors name the column's index and the number of rows, never
a byte of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgtide.columns.gather import INT2, INT4, Bytes, Positions, gather
from pgtide.errors import ProtocolError

# What a tuple holds in a column. Plain numbers, because numpy compares whole arrays with them.
NULL = 0
BINARY = 1
TEXT = 2
UNCHANGED = 3

_UNKNOWN = 255
_BINARY_KIND = ord("b")
_STATE_OF_KIND = np.full(256, _UNKNOWN, np.uint8)
_STATE_OF_KIND[ord("n")] = NULL
_STATE_OF_KIND[ord("u")] = UNCHANGED
_STATE_OF_KIND[ord("t")] = TEXT
_STATE_OF_KIND[_BINARY_KIND] = BINARY

_COUNT_BYTES = 2
_KIND_BYTES = 1
_LENGTH_BYTES = 4


@dataclass
class ColumnSlices:
    """One column of many rows: what each row holds (`NULL`, `BINARY`, `TEXT` or `UNCHANGED`), and where.

    `start` and `length` are bytes in the buffer. Without a value `length` is 0 and `start` is where the
    value would be, so starts ascend when the tuples did.
    """

    state: npt.NDArray[np.uint8]
    start: Positions
    length: Positions


def walk_stream_tuples(
    buffer: Bytes, starts: Positions, ends: Positions, column_count: int
) -> tuple[list[ColumnSlices], Positions]:
    """Slices for each column of the pgoutput tuples, and the position behind each tuple.

    A tuple begins at its start and may not reach past its end; what follows it before the end is the
    caller's. Raises ProtocolError for bytes that are no tuple of `column_count` columns.
    """
    position = _enter(buffer, starts, ends, column_count)
    slices = []
    for index in range(column_count):
        column, position = _stream_column(buffer, position, ends, index)
        slices.append(column)
    return slices, position


def walk_copy_tuples(
    buffer: Bytes, starts: Positions, ends: Positions, column_count: int
) -> tuple[list[ColumnSlices], Positions]:
    """The same for the rows of a COPY in binary format, without its header and trailer."""
    position = _enter(buffer, starts, ends, column_count)
    slices = []
    for index in range(column_count):
        column, position = _copy_column(buffer, position, ends, index)
        slices.append(column)
    return slices, position


def _enter(buffer: Bytes, starts: Positions, ends: Positions, column_count: int) -> Positions:
    """The position of the first column, after the checks that make every later read safe."""
    assert starts.size == ends.size
    position = starts + _COUNT_BYTES
    if starts.size == 0:
        return position
    if int(starts.min()) < 0 or int(ends.max()) > buffer.size or not (position <= ends).all():
        raise ProtocolError("a tuple does not lie inside its frame", detail=_rows(starts))
    if not (gather(buffer, starts, INT2, np.int16) == column_count).all():
        raise ProtocolError(
            "a tuple has another number of columns than its table",
            detail=f"{column_count} columns expected, {_rows(starts)}",
        )
    return position


def _stream_column(buffer: Bytes, position: Positions, ends: Positions, index: int) -> tuple[ColumnSlices, Positions]:
    if position.size == 0:
        return ColumnSlices(np.empty(0, np.uint8), position, position), position
    kind = buffer.take(position, mode="clip")
    length = gather(buffer, position + _KIND_BYTES, INT4, np.int64)
    binary = kind == _BINARY_KIND
    if binary.all():
        state = binary.view(np.uint8)  # BINARY is 1
        start = position + (_KIND_BYTES + _LENGTH_BYTES)
    else:
        state = _STATE_OF_KIND[kind]
        value = (state == BINARY) | (state == TEXT)
        length *= value
        start = position + np.where(value, _KIND_BYTES + _LENGTH_BYTES, _KIND_BYTES)
    after = start + length
    if not (after <= ends).all():
        raise _runs_past_end(index, position)
    if int(state.max()) == _UNKNOWN:
        raise ProtocolError("a tuple has a column of unknown kind", detail=_place(index, position))
    if int(length.min()) < 0:
        raise _negative_length(index, position)
    return ColumnSlices(state, start, length), after


def _copy_column(buffer: Bytes, position: Positions, ends: Positions, index: int) -> tuple[ColumnSlices, Positions]:
    if position.size == 0:
        return ColumnSlices(np.empty(0, np.uint8), position, position), position
    length = gather(buffer, position, INT4, np.int64)
    start = position + _LENGTH_BYTES
    shortest = int(length.min())
    if shortest >= 0:
        state = np.ones(length.size, np.uint8)  # BINARY is 1
    else:
        value = length != -1
        length *= value
        state = value.view(np.uint8)  # NULL is 0 and BINARY is 1
    after = start + length
    if not (after <= ends).all():
        raise _runs_past_end(index, position)
    if shortest < -1:
        raise _negative_length(index, position)
    return ColumnSlices(state, start, length), after


def _runs_past_end(index: int, position: Positions) -> ProtocolError:
    return ProtocolError("a tuple runs past its end", detail=_place(index, position))


def _negative_length(index: int, position: Positions) -> ProtocolError:
    return ProtocolError("a tuple has a column of negative length", detail=_place(index, position))


def _place(index: int, position: Positions) -> str:
    return f"column {index}, {_rows(position)}"


def _rows(position: Positions) -> str:
    return f"in a block of {position.size} rows"
