from __future__ import annotations

import pytest

from pgtide.errors import ProtocolError
from tests.columns.building import decoded


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64, 1000])
def test_booleans_are_packed_in_order(rows: int) -> None:
    values = [row % 3 == 0 for row in range(rows)]
    assert decoded([bytes([value]) for value in values], 16).to_pylist() == values


def test_a_null_boolean_is_null() -> None:
    assert decoded([b"\1", None, b"\0"], 16).to_pylist() == [True, None, False]


def test_a_byte_that_is_no_truth_value_is_refused() -> None:
    with pytest.raises(ProtocolError, match="neither 0 nor 1"):
        decoded([b"\1", b"\2"], 16)
