"""Values of every type, cut at each byte and changed at random.

Whatever the bytes, a kernel gives a well-formed array of its type or one of the two errors that are
meant for it, and nothing else: no other exception, no read outside the buffer, no malformed array.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.errors import ProtocolError, UnsupportedValue
from pgtide.schema import TypeInfo
from tests.columns.building import Cell, Text, array_bytes, decoded, numeric_bytes, numeric_modifier, unhurried

TYPES = {90001: TypeInfo(90001, "mood", "e"), 90002: TypeInfo(90002, "_mood", "a", element=90001)}
INT4, INT8 = struct.pack(">i", 42), struct.pack(">q", 42)
UUID = uuid.UUID(int=2**100).bytes
NUMBER = numeric_bytes("12345678.25")

# (type, modifier): a good value
GOOD: dict[tuple[int, int], bytes] = {
    (16, -1): b"\1",
    (17, -1): b"\xff\x00",
    (18, -1): b"c",
    (20, -1): INT8,
    (21, -1): INT4[2:],
    (23, -1): INT4,
    (25, -1): "zwölf 🐘".encode(),
    (26, -1): INT4,
    (700, -1): struct.pack(">f", 1.5),
    (701, -1): struct.pack(">d", 1.5),
    (1082, -1): INT4,
    (1083, -1): INT8,
    (1114, -1): INT8,
    (1184, -1): INT8,
    (1700, -1): NUMBER,
    (1700, numeric_modifier(12, 2)): NUMBER,
    (1700, numeric_modifier(30, 2)): numeric_bytes("1234567890123456789012345678.25"),
    (1700, numeric_modifier(38, 20)): numeric_bytes("0.12345678901234567890"),
    (1700, numeric_modifier(100, 2)): NUMBER,
    (2950, -1): UUID,
    (3802, -1): b'\x01{"a": 1}',
    (1000, -1): array_bytes([b"\1", None]),
    (1007, -1): array_bytes([INT4, INT4]),
    (1009, -1): array_bytes([b"one", None, b"three"]),
    (1231, numeric_modifier(12, 2)): array_bytes([NUMBER, None]),
    (2951, -1): array_bytes([UUID, UUID]),
    (3807, -1): array_bytes([b"\x01[]"]),
    (90001, -1): b"happy",
    (90002, -1): array_bytes([b"happy", None]),
    (99999, -1): b"whatever",
}
# Types for which any bytes will do, or any bytes of UTF-8.
ANY_LENGTH = {17, 25, 90001, 99999}

good_values = pytest.mark.parametrize(("type_oid", "modifier"), GOOD)


def decoded_or_refused(cells: list[Cell], type_oid: int, modifier: int) -> pa.Array[Any] | None:
    """The column, which `decoded` checks to be well-formed; None if it was refused as it should."""
    try:
        return decoded(cells, type_oid, modifier, TYPES)
    except (ProtocolError, UnsupportedValue):
        return None


@good_values
def test_a_good_value_is_read(type_oid: int, modifier: int) -> None:
    assert decoded([GOOD[type_oid, modifier], None], type_oid, modifier, TYPES).null_count == 1


@good_values
def test_a_value_cut_at_any_byte_is_refused(type_oid: int, modifier: int) -> None:
    good = GOOD[type_oid, modifier]
    for size in range(len(good)):
        array = decoded_or_refused([good, good[:size], None, good], type_oid, modifier)
        # A shorter text or jsonb is a text or jsonb again, if no character was cut.
        assert array is None or type_oid in ANY_LENGTH or (type_oid == 3802 and size > 0)


@good_values
def test_a_value_with_a_byte_too_many_is_refused(type_oid: int, modifier: int) -> None:
    good = GOOD[type_oid, modifier]
    array = decoded_or_refused([good, good + b"\0"], type_oid, modifier)
    assert array is None or type_oid in ANY_LENGTH or type_oid == 3802


interesting_bytes = st.sampled_from([0, 1, 2, 0x27, 0x40, 0x7F, 0x80, 0xC0, 0xFF]) | st.integers(0, 255)


@good_values
@settings(unhurried, max_examples=60)
@given(data=st.data())
def test_a_value_changed_at_random_is_read_or_refused(type_oid: int, modifier: int, data: Any) -> None:
    good = GOOD[type_oid, modifier]
    cells: list[Cell] = [good]
    for _ in range(data.draw(st.integers(1, 3))):
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(interesting_bytes)
        cells += [bytes(changed), data.draw(st.sampled_from([None, good]))]
    decoded_or_refused(cells, type_oid, modifier)


@good_values
@settings(unhurried, max_examples=60)
@given(st.lists(st.none() | st.binary(max_size=40) | st.binary(max_size=8).map(Text)))
def test_any_bytes_at_all_are_read_or_refused(type_oid: int, modifier: int, cells: list[Cell]) -> None:
    decoded_or_refused(cells, type_oid, modifier)
