from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.columns import assemble
from pgtide.columns.assemble import copied_slices
from pgtide.columns.gather import Bytes
from pgtide.errors import UnsupportedValue
from tests.columns.building import unhurried

BUFFER = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
slices = st.tuples(st.integers(0, BUFFER.size), st.integers(0, 5)).map(
    lambda each: (each[0], min(each[1], BUFFER.size - each[0]))
)


def copied(pieces: list[tuple[int, int]], buffer: Bytes) -> list[bytes | None]:
    start = np.array([start for start, _ in pieces], np.int64)
    length = np.array([length for _, length in pieces], np.int64)
    array = copied_slices(pa.binary(), buffer, start, length, None)
    array.validate(full=True)
    return array.to_pylist()


@unhurried
@given(st.lists(slices))
def test_slices_are_copied_in_whatever_order_they_are(pieces: list[tuple[int, int]]) -> None:
    whole = BUFFER.tobytes()
    assert copied(pieces, BUFFER) == [whole[start : start + length] for start, length in pieces]


def test_an_array_does_not_refer_to_the_buffer_that_it_came_from() -> None:
    buffer = np.frombuffer(bytearray(b"abcdef"), np.uint8)
    array = copied_slices(pa.binary(), buffer, np.array([0, 4]), np.array([2, 2]), None)
    buffer[:] = 0
    assert array.to_pylist() == [b"ab", b"ef"]


def test_slices_beyond_two_gibibytes_are_copied() -> None:
    # The pages between are never touched, so the buffer costs next to no memory.
    buffer = np.zeros(2**31 + 100, np.uint8)
    buffer[:3] = 1
    buffer[2**31 + 10 : 2**31 + 14] = 2
    assert copied([(0, 3), (5, 0), (2**31 + 10, 4)], buffer) == [b"\1\1\1", b"", b"\2\2\2\2"]


def test_nulls_survive_in_a_large_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "OFFSET_MAX", 10)
    start, length = np.array([0, 5, 20]), np.array([2, 0, 3])
    array = copied_slices(pa.string(), BUFFER, start, length, np.array([True, False, True]))
    assert array.to_pylist() == ["ab", None, "uvw"]


@pytest.mark.parametrize("pieces", [[(0, 6), (6, 6)], [(6, 6), (0, 6)]])
def test_more_data_than_an_array_holds_is_refused(
    pieces: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "OFFSET_MAX", 10)
    with pytest.raises(UnsupportedValue, match="hint: decode fewer rows at a time"):
        copied(pieces, BUFFER)
