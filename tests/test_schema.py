"""Tables as text: what travels in the journal comes back the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.schema import Column, Table, TableName, TypeInfo

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
oids = st.integers(1, 2**32 - 1)
modifiers = st.integers(-(2**31), 2**31 - 1)
columns = st.builds(
    Column, names, oids, modifiers, st.booleans(), st.integers(0, 1600), st.booleans(), names, st.booleans()
)
type_infos = st.builds(TypeInfo, oids, names, st.sampled_from("bcdermpa"), oids, modifiers, oids, st.booleans())
tables = st.builds(
    Table,
    oids,
    st.builds(TableName, names, names),
    st.lists(columns, max_size=5).map(tuple),
    st.lists(names, max_size=3).map(tuple),
    st.sampled_from("dnfi"),
    st.lists(type_infos, max_size=3).map(lambda infos: {each.oid: each for each in infos}),
)


@given(tables)
def test_a_table_comes_back_from_its_text(table):
    text = table.to_json()
    assert Table.from_json(text) == table
    assert Table.from_json(text.encode()) == table


@given(tables)
def test_the_text_is_stable(table):
    text = table.to_json()
    assert Table.from_json(text).to_json() == text
    assert "\n" not in text
    json.loads(text)


def test_the_text_does_not_depend_on_the_order_in_which_types_were_found():
    one, two = TypeInfo(20001, "a", "e"), TypeInfo(20002, "b", "e")
    left = Table(1, TableName("s", "t"), (), types={one.oid: one, two.oid: two})
    right = Table(1, TableName("s", "t"), (), types={two.oid: two, one.oid: one})
    assert left.to_json() == right.to_json()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", TableName("public", "orders")),
        ("sales.orders", TableName("sales", "orders")),
        ("sales.or.ders", TableName("sales", "or.ders")),
        ("Sales.Or ders", TableName("Sales", "Or ders")),
    ],
)
def test_a_table_name_is_schema_and_name(text, name):
    assert TableName.parse(text) == name


def test_a_table_without_a_key_is_keyless():
    assert Table(1, TableName("s", "t"), (Column("a", 23),)).keyless
    assert not Table(1, TableName("s", "t"), (Column("a", 23),), key=("a",)).keyless
    assert Table(1, TableName("s", "t"), (Column("a", 23), Column("b", 25))).column_names == ["a", "b"]
