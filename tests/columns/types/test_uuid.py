from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.errors import ProtocolError
from tests.columns.building import Text, decoded, unhurried


@unhurried
@given(st.lists(st.none() | st.uuids()))
def test_uuids_are_printed_in_lower_case_with_dashes(values: list[uuid.UUID | None]) -> None:
    array = decoded([None if value is None else value.bytes for value in values], 2950)
    assert array.to_pylist() == [None if value is None else str(value) for value in values]


def test_a_uuid_as_text_is_the_same_uuid() -> None:
    value = uuid.UUID(int=0xABCDEF)
    assert decoded([value.bytes, Text(str(value).encode())], 2950).to_pylist() == [str(value)] * 2


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_uuid_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="uuid"):
        decoded([b"\0" * length], 2950)
