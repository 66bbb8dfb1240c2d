"""Wire tuples built by hand, and the values in them.

A cell is bytes (a binary value), a `Text`, `UNCHANGED` or None. Blocks put foreign bytes before, between
and after the tuples, so that a decoder that reads beside them is found out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import settings

from pgtide.columns import ColumnSlices, decode_column, kernel_for, walk_stream_tuples
from pgtide.schema import Column, TypeInfo

unhurried = settings(deadline=None)  # how long one example takes is up to the machine

FOREIGN = b"\xfe\xfd\xfc"


class Unchanged(Enum):
    UNCHANGED = "u"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True)
class Text:
    """A value in text form."""

    value: bytes


Cell = bytes | Text | Unchanged | None
Row = Sequence[Cell]


class Block(NamedTuple):
    """A buffer with tuples, as the walkers take it."""

    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def stream_tuple(row: Row) -> bytes:
    """A tuple as pgoutput sends it."""
    return struct.pack(">h", len(row)) + b"".join(map(_stream_cell, row))


def copy_tuple(row: Sequence[bytes | None]) -> bytes:
    """A tuple as COPY binary sends it."""
    cells = (struct.pack(">i", -1) if cell is None else sized(cell) for cell in row)
    return struct.pack(">h", len(row)) + b"".join(cells)


def _stream_cell(cell: Cell) -> bytes:
    match cell:
        case None:
            return b"n"
        case Unchanged():
            return b"u"
        case Text(value):
            return b"t" + sized(value)
        case _:
            return b"b" + sized(cell)


def sized(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def block_of(tuples: Sequence[bytes]) -> Block:
    """A block of the tuples, with foreign bytes around each."""
    starts, ends, parts, position = [], [], [FOREIGN], len(FOREIGN)
    for each in tuples:
        starts.append(position)
        ends.append(position + len(each))
        parts += [each, FOREIGN]
        position += len(each) + len(FOREIGN)
    buffer = np.frombuffer(b"".join(parts), np.uint8)
    return Block(buffer, np.array(starts, np.int64), np.array(ends, np.int64))


def stream_column(cells: Sequence[Cell]) -> tuple[npt.NDArray[np.uint8], ColumnSlices]:
    """A block with one column, walked."""
    block = block_of([stream_tuple([cell]) for cell in cells])
    slices, _ = walk_stream_tuples(*block, 1)
    return block.buffer, slices[0]


def decoded(
    cells: Sequence[Cell], type_oid: int, modifier: int = -1, types: Mapping[int, TypeInfo] | None = None
) -> pa.Array[Any]:
    """The cells as a column of the type, checked to be a well-formed array of the promised type."""
    kernel = kernel_for(Column("value", type_oid, modifier), types or {})
    array = decode_column(*stream_column(cells), kernel)
    array.validate(full=True)
    assert array.type == kernel.arrow_type
    assert len(array) == len(cells)
    return array


def numeric_modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def numeric_bytes(value: str) -> bytes:
    """A numeric as numeric_send writes it, from its printed form."""
    special = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
    if value in special:
        return struct.pack(">HhHH", 0, 0, special[value], 0)
    integer, _, fraction = value.removeprefix("-").partition(".")
    # Filled up to whole digits of base 10,000 on both sides of the point.
    integer = "0" * (-len(integer) % 4) + integer
    decimal = integer + fraction + "0" * (-len(fraction) % 4)
    digits = [int(decimal[at : at + 4]) for at in range(0, len(decimal), 4)]
    leading = next((index for index, digit in enumerate(digits) if digit), len(digits))
    weight = len(integer) // 4 - 1 - leading
    digits = digits[leading:]
    while digits and digits[-1] == 0:
        digits.pop()
    sign = 0x4000 if digits and value.startswith("-") else 0
    return numeric_parts(digits, weight if digits else 0, sign, len(fraction))


def numeric_parts(digits: Sequence[int], weight: int, sign: int, scale: int) -> bytes:
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign, scale, *digits)


def array_bytes(elements: Sequence[bytes | None], *, element_oid: int = 0, lower_bound: int = 1) -> bytes:
    """An array as array_send writes it."""
    has_null = any(element is None for element in elements)
    if not elements:
        return struct.pack(">iiI", 0, 0, element_oid)
    header = struct.pack(">iiIii", 1, has_null, element_oid, len(elements), lower_bound)
    cells = (struct.pack(">i", -1) if element is None else sized(element) for element in elements)
    return header + b"".join(cells)
