from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.errors import UnsupportedValue
from pgtide.schema import TypeInfo
from tests.columns.building import UNCHANGED, Cell, Text, decoded, unhurried

TEXT_OIDS = [19, 25, 114, 142, 1042, 1043]


@unhurried
@given(st.lists(st.none() | st.text(st.characters(codec="utf-8"))))
def test_text_is_given_back_as_it_was(values: list[str | None]) -> None:
    cells = [None if value is None else value.encode() for value in values]
    assert decoded(cells, 25).to_pylist() == values


@pytest.mark.parametrize("oid", TEXT_OIDS)
def test_text_like_types_are_strings_in_either_form(oid: int) -> None:
    cells: list[Cell] = [b"one", None, Text("zwölf 🐘".encode()), UNCHANGED, b"", Text(b"")]
    array = decoded(cells, oid)
    assert array.type == pa.string()
    assert array.to_pylist() == ["one", None, "zwölf 🐘", None, "", ""]


def test_an_enum_is_a_string() -> None:
    types = {90001: TypeInfo(90001, "mood", "e")}
    assert decoded([b"happy", None], 90001, types=types).to_pylist() == ["happy", None]


def test_citext_is_known_by_its_name() -> None:
    types = {90001: TypeInfo(90001, "citext", "b")}
    assert decoded([b"Case"], 90001, types=types).to_pylist() == ["Case"]


def test_a_single_byte_is_printed_as_postgres_prints_it() -> None:
    array = decoded([b"a", b"\0", None, b"\x80", b"\xff", b"~", Text(b"b")], 18)
    assert array.to_pylist() == ["a", "", None, "\\200", "\\377", "~", "b"]


@pytest.mark.parametrize("form", [bytes, Text])
def test_text_that_is_not_utf8_is_refused_without_quoting_it(form: type[bytes] | type[Text]) -> None:
    with pytest.raises(UnsupportedValue) as error:
        decoded([b"fine", form(b"secret\xff")], 25)
    assert "UTF-8" in error.value.message
    assert "secret" not in str(error.value)
    assert error.value.__suppress_context__


def test_a_character_split_over_two_values_is_refused() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    with pytest.raises(UnsupportedValue):
        decoded([first, second], 25)
