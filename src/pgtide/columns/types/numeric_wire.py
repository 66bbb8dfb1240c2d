"""The binary form of numeric: headers and digits of many values at once.

    uint16  number of digits       leading and trailing zero digits are not sent
    int16   weight                 the first digit counts 10000 ** weight
    uint16  sign                   0x0000 +, 0x4000 -, 0xC000 NaN, 0xD000 Infinity, 0xF000 -Infinity
    uint16  display scale          decimal digits to print after the point
    uint16  digit, repeated        0 to 9999

Invariant: a `Numerics` has only headers that were checked, and digits are checked when they are read.
Rows without a value are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtide.columns.gather import UINT2, UINT8, Bytes, Mask, Positions, Valid, gather, gather_values
from pgtide.columns.kernel import malformed

BASE_DIGITS = 4
"""Decimal digits in one digit of base 10,000."""

NEGATIVE = 0x4000
NAN = 0xC000
INFINITY = 0xD000
NEGATIVE_INFINITY = 0xF000

_SIGNS = (0, NEGATIVE, NAN, INFINITY, NEGATIVE_INFINITY)
_BASE = 10_000
_HEADER_BYTES = 8
_DIGIT_BYTES = 2
_DISPLAY_SCALE_MAX = 0x3FFF


def digits_for(decimal_digits: int) -> int:
    """How many digits of base 10,000 hold so many decimal digits."""
    return -(-decimal_digits // BASE_DIGITS)


@dataclass
class Numerics:
    """Many numerics: checked headers, and where each one's first digit is."""

    type_name: str
    buffer: Bytes
    digit_count: Positions
    weight: npt.NDArray[np.int64]
    sign: npt.NDArray[np.int64]
    display_scale: Positions
    first_digit: Positions

    @property
    def special(self) -> Mask:
        """Which are NaN or infinite."""
        return self.sign > NEGATIVE

    @property
    def negative(self) -> Mask:
        """Which are finite and below zero."""
        negative: Mask = self.sign == NEGATIVE
        return negative

    def weights(self) -> range:
        """The weights of all digits, from the lowest to the highest; empty if there is no digit."""
        weight, digit_count = self.weight, self.digit_count
        some = digit_count > 0
        if not some.all():
            weight, digit_count = weight[some], digit_count[some]
        if weight.size == 0:
            return range(0)
        return range(int((weight - digit_count).min()) + 1, int(weight.max()) + 1)

    def digits(self, weight: int) -> npt.NDArray[np.int64]:
        """The digit of each value that counts 10000 ** weight; 0 where it has none."""
        index = self.weight - weight
        # As unsigned numbers, what is before the first digit is beyond the last one.
        inside = index.view(np.uint64) < self.digit_count.view(np.uint64)
        position = np.where(inside, self.first_digit + _DIGIT_BYTES * index, 0)
        digits = gather(self.buffer, position, UINT2, np.int64)
        digits *= inside
        self._require_digits(digits)
        return digits

    def digits_of(self, row: int) -> list[int]:
        """All digits of one value, the first one first."""
        first, count = int(self.first_digit[row]), int(self.digit_count[row])
        wire = self.buffer[first : first + _DIGIT_BYTES * count].view(UINT2)
        self._require_digits(wire)
        digits: list[int] = wire.tolist()
        return digits

    def select(self, rows: Mask) -> Numerics:
        """Those of the given rows."""
        return Numerics(
            self.type_name,
            self.buffer,
            self.digit_count[rows],
            self.weight[rows],
            self.sign[rows],
            self.display_scale[rows],
            self.first_digit[rows],
        )

    def _require_digits(self, digits: npt.NDArray[np.integer[Any]]) -> None:
        if digits.size and int(digits.max()) >= _BASE:
            raise malformed(self.type_name, f"a digit is not below {_BASE}")


def read_numerics(buffer: Bytes, start: Positions, length: Positions, valid: Valid, type_name: str) -> Numerics:
    """Read and check the headers. Raises ProtocolError."""
    header = gather_values(buffer, start, valid, UINT8, np.uint64).view(np.int64)
    digit_count = header >> 48 & 0xFFFF
    # The weight is signed: its sign bit is moved to the top and drawn along by the shift back.
    weight = header << 16 >> 48
    sign = header >> 16 & 0xFFFF
    display_scale = header & 0xFFFF
    fits = length == _HEADER_BYTES + _DIGIT_BYTES * digit_count
    if valid is not None:
        fits |= ~valid
    if not fits.all():
        raise malformed(type_name, "its length is not that of its digits")
    if (sign & ~NEGATIVE).any():
        _require_known_signs(type_name, sign, digit_count)
    if display_scale.size and int(display_scale.max()) > _DISPLAY_SCALE_MAX:
        raise malformed(type_name, f"its display scale is above {_DISPLAY_SCALE_MAX}")
    return Numerics(type_name, buffer, digit_count, weight, sign, display_scale, start + _HEADER_BYTES)


def _require_known_signs(type_name: str, sign: npt.NDArray[np.int64], digit_count: npt.NDArray[np.int64]) -> None:
    if not np.isin(sign, _SIGNS).all():
        raise malformed(type_name, "its sign is unknown")
    if digit_count[sign > NEGATIVE].any():
        raise malformed(type_name, "NaN or an infinity has digits")
