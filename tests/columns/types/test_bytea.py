from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.errors import UnsupportedValue
from tests.columns.building import Text, decoded, unhurried


@unhurried
@given(st.lists(st.none() | st.binary()))
def test_bytes_are_given_back_as_they_were(values: list[bytes | None]) -> None:
    array = decoded(values, 17)
    assert array.type == pa.binary()
    assert array.to_pylist() == values


def test_escaped_bytes_are_not_mistaken_for_bytes() -> None:
    with pytest.raises(UnsupportedValue, match="arrived as text"):
        decoded([Text(b"\\x00")], 17)
