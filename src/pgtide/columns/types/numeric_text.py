"""numeric as text, exactly as Postgres prints it.

The printed form is a sign, the integer digits without leading zeros, and after a point as many digits
as the display scale says. Usual values are printed together: a matrix with a row of characters for each
value, four for each digit of base 10,000, from which the characters that are part of the number are kept.
Values of unusual size, NaN and the infinities are printed one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.columns.assemble import characters
from pgtide.columns.gather import Bytes, Mask, Positions, Valid
from pgtide.columns.types import numeric_wire
from pgtide.columns.types.numeric_wire import BASE_DIGITS, Numerics, digits_for, read_numerics

# Digits of base 10,000 on either side of the point. The matrix is as wide as the widest value, so the
# limit bounds its memory: at most 74 characters for each row.
_USUAL_DIGITS = 9

_FOUR_DIGITS = np.frombuffer("".join(f"{digit:04d}" for digit in range(10_000)).encode(), np.uint32)

_SPECIAL_FORMS = {
    numeric_wire.NAN: "NaN",
    numeric_wire.INFINITY: "Infinity",
    numeric_wire.NEGATIVE_INFINITY: "-Infinity",
}


def decode(buffer: Bytes, start: Positions, length: Positions, valid: Valid, *, type_name: str) -> pa.Array[Any]:
    """Read numerics into strings."""
    numerics = read_numerics(buffer, start, length, valid, type_name)
    usual = _usual(numerics)
    if usual.all():
        return characters(*_matrix(numerics), valid)
    return _usual_and_others(numerics, usual, valid)


def _usual(numerics: Numerics) -> Mask:
    small = numerics.weight < _USUAL_DIGITS
    small &= numerics.display_scale <= _USUAL_DIGITS * BASE_DIGITS
    return small & ~numerics.special


def _usual_and_others(numerics: Numerics, usual: Mask, valid: Valid) -> pa.Array[Any]:
    """Both kinds printed apart and brought back into the order of the rows."""
    together = characters(*_matrix(numerics.select(usual)), None)
    one_by_one = pa.array(_printed(numerics.select(~usual)), pa.string())
    source = np.empty(usual.size, np.int64)
    source[usual] = np.arange(len(together))
    source[~usual] = np.arange(len(together), usual.size)
    rows = pa.array(source, pa.int64(), mask=None if valid is None else ~valid)
    return pa.concat_arrays([together, one_by_one]).take(rows)


def _matrix(numerics: Numerics) -> tuple[Bytes, Mask]:
    """The characters of each value, and which of them are part of the number."""
    integer_digits = max(numerics.weights().stop, 1)
    fraction_digits = digits_for(int(numerics.display_scale.max(initial=0)))
    integer = _decimal_digits(numerics, range(integer_digits - 1, -1, -1))
    fraction = _decimal_digits(numerics, range(-1, -1 - fraction_digits, -1))
    sign = np.full((numerics.weight.size, 1), ord("-"), np.uint8)
    point = np.full((numerics.weight.size, 1), ord("."), np.uint8)
    significant = np.logical_or.accumulate(integer != ord("0"), axis=1)
    significant[:, -1] = True
    scale = numerics.display_scale[:, np.newaxis]
    keep = [numerics.negative[:, np.newaxis], significant, scale > 0, np.arange(fraction.shape[1]) < scale]
    return np.hstack([sign, integer, point, fraction]), np.hstack(keep)


def _decimal_digits(numerics: Numerics, weights: range) -> Bytes:
    """A row of ASCII digits for each value, four for each weight."""
    digits = np.empty((numerics.weight.size, len(weights)), np.uint32)
    for column, weight in enumerate(weights):
        digits[:, column] = _FOUR_DIGITS[numerics.digits(weight)]
    return digits.view(np.uint8)


def _printed(numerics: Numerics) -> list[str]:
    """Each value printed by itself."""
    return [
        _SPECIAL_FORMS.get(sign) or _printed_one(numerics, row, negative=sign == numeric_wire.NEGATIVE)
        for row, sign in enumerate(numerics.sign.tolist())
    ]


def _printed_one(numerics: Numerics, row: int, *, negative: bool) -> str:
    weight, scale = int(numerics.weight[row]), int(numerics.display_scale[row])
    digits = numerics.digits_of(row)
    # Make the first digit the one of weight 0 at least, and the last one that of the display scale.
    digits = [0] * (-1 - weight) + digits
    point = max(weight, -1) + 1
    digits += [0] * (point + digits_for(scale) - len(digits))
    integer = "".join(f"{digit:04d}" for digit in digits[:point]).lstrip("0") or "0"
    fraction = "".join(f"{digit:04d}" for digit in digits[point:])[:scale]
    return ("-" if negative else "") + integer + ("." + fraction if scale else "")
