"""numeric(p, s) as decimal128: exact up to 38 digits.

The unscaled number is the sum of each digit times 10 ** (4 * weight + s), one pass over all rows for
each weight that occurs. Up to 18 decimal digits the sum is an int64. Beyond, it is kept in three limbs,
which are joined with 128-bit arithmetic on pairs of uint64.

Postgres rounds to the column's scale before it stores, so digits below the scale, or more than p, only
appear in data that is not of this type: they are refused, never rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgtide.columns.assemble import fixed_width
from pgtide.columns.gather import Bytes, Positions, Valid
from pgtide.columns.kernel import no_room
from pgtide.columns.types.numeric_wire import BASE_DIGITS, Numerics, digits_for, read_numerics
from pgtide.errors import UnsupportedValue

_Ints: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

_INT64_DIGITS = 18

# Weights in the lowest and in the middle limb; the highest has the rest. With the part of a digit that
# the lowest limb may have in addition, no limb has more than 16 decimal digits.
_LOW_WEIGHTS = 3
_MIDDLE_WEIGHTS = 4

_HALF_BITS = np.uint64(32)
_HALF_MASK = np.uint64(0xFFFFFFFF)


def decode(
    buffer: Bytes,
    start: Positions,
    length: Positions,
    valid: Valid,
    *,
    type_name: str,
    precision: int,
    scale: int,
) -> pa.Array[Any]:
    """Read numerics into decimal128(precision, scale)."""
    numerics = read_numerics(buffer, start, length, valid, type_name)
    if numerics.special.any():
        raise no_room(
            type_name,
            "NaN and infinity are no decimal",
            hint="a numeric column without precision is kept as text and has room for them",
        )
    weights = numerics.weights()
    if weights.stop > digits_for(precision - scale):
        raise _too_many_digits(type_name)
    if weights.start < -digits_for(scale):
        raise _too_fine(type_name)
    fits_int64 = BASE_DIGITS * weights.stop + scale <= _INT64_DIGITS
    words = (_narrow if fits_int64 else _wide)(numerics, weights, precision, scale)
    return fixed_width(pa.decimal128(precision, scale), words, valid, start.size)


def _narrow(numerics: Numerics, weights: range, precision: int, scale: int) -> _Words:
    """Values of at most 18 digits, as pairs of words, the lower first."""
    total = np.zeros(numerics.weight.size, np.int64)
    for term, exponent in _terms(numerics, weights, scale):
        total += term * 10**exponent
    if total.size and int(total.max()) >= 10**precision:
        raise _too_many_digits(numerics.type_name)
    np.negative(total, out=total, where=numerics.negative)
    words = np.empty((total.size, 2), np.int64)
    words[:, 0] = total
    words[:, 1] = total >> 63
    return words.view(np.uint64)


def _wide(numerics: Numerics, weights: range, precision: int, scale: int) -> _Words:
    """Values of any size, as pairs of words, the lower first."""
    low_digits = BASE_DIGITS * _LOW_WEIGHTS + scale % BASE_DIGITS
    middle_digits = BASE_DIGITS * _MIDDLE_WEIGHTS
    low, middle, high = np.zeros((3, numerics.weight.size), np.int64)
    for term, exponent in _terms(numerics, weights, scale):
        if exponent < low_digits:
            low += term * 10**exponent
        elif exponent < low_digits + middle_digits:
            middle += term * 10 ** (exponent - low_digits)
        else:
            high += term * 10 ** (exponent - low_digits - middle_digits)
    # A power of ten is a limit for one limb alone, if the limbs above it are zero. The check comes before
    # the limbs are joined, because a number far beyond the limit would not fit into 128 bits either.
    limit_digits = precision - low_digits
    if middle_digits > limit_digits:
        too_large = (high > 0) | (middle >= 10**limit_digits)
    else:
        too_large = high >= 10 ** (limit_digits - middle_digits)
    if too_large.any():
        raise _too_many_digits(numerics.type_name)
    upper = np.zeros(high.size, np.uint64)
    upper, lower = _multiply_add(upper, high.view(np.uint64), 10**middle_digits, middle.view(np.uint64))
    upper, lower = _multiply_add(upper, lower, 10**low_digits, low.view(np.uint64))
    return _signed_words(upper, lower, numerics)


def _terms(numerics: Numerics, weights: range, scale: int) -> Iterator[tuple[_Ints, int]]:
    """What the digits of each weight add: a number for each row, times a power of ten."""
    for weight in weights:
        digits = numerics.digits(weight)
        exponent = BASE_DIGITS * weight + scale
        if exponent < 0:
            digits, rest = np.divmod(digits, 10**-exponent)
            if rest.any():
                raise _too_fine(numerics.type_name)
        yield digits, max(exponent, 0)


def _multiply_add(upper: _Words, lower: _Words, factor: int, addend: _Words) -> tuple[_Words, _Words]:
    """upper:lower * factor + addend, in 128 bits, by halves of words."""
    factor_high, factor_low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    high, low = lower >> _HALF_BITS, lower & _HALF_MASK
    bottom = low * factor_low
    left, right = high * factor_low, low * factor_high
    middle = (bottom >> _HALF_BITS) + (left & _HALF_MASK) + (right & _HALF_MASK)
    carried = (left >> _HALF_BITS) + (right >> _HALF_BITS) + (middle >> _HALF_BITS)
    product = (middle << _HALF_BITS) | (bottom & _HALF_MASK)
    result = product + addend
    return upper * np.uint64(factor) + high * factor_high + carried + (result < product), result


def _signed_words(upper: _Words, lower: _Words, numerics: Numerics) -> _Words:
    """Two's complement: a negative number is the inverse of its magnitude, plus one."""
    negative = numerics.negative
    words = np.empty((lower.size, 2), np.uint64)
    words[:, 0] = np.where(negative, ~lower + np.uint64(1), lower)
    words[:, 1] = np.where(negative, ~upper + (lower == 0), upper)
    return words


def _too_many_digits(type_name: str) -> UnsupportedValue:
    return no_room(type_name, "it has more digits before the point than its type")


def _too_fine(type_name: str) -> UnsupportedValue:
    return no_room(type_name, "it has more digits after the point than its type")
