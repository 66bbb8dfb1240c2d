from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from pgtide.columns import kernel_for
from pgtide.schema import Column, TypeInfo
from tests.columns.building import numeric_modifier

DOMAIN, ENUM, OTHER, OTHER_ARRAY = 90001, 90002, 90003, 90004

BUILT_INS = {
    16: (1000, pa.bool_()),
    17: (1001, pa.binary()),
    18: (1002, pa.string()),
    19: (1003, pa.string()),
    20: (1016, pa.int64()),
    21: (1005, pa.int16()),
    23: (1007, pa.int32()),
    25: (1009, pa.string()),
    26: (1028, pa.int64()),
    28: (1011, pa.int64()),
    29: (1012, pa.int64()),
    114: (199, pa.string()),
    142: (143, pa.string()),
    700: (1021, pa.float32()),
    701: (1022, pa.float64()),
    1042: (1014, pa.string()),
    1043: (1015, pa.string()),
    1082: (1182, pa.date32()),
    1083: (1183, pa.string()),
    1114: (1115, pa.timestamp("us")),
    1184: (1185, pa.timestamp("us", "UTC")),
    1700: (1231, pa.string()),
    2950: (2951, pa.string()),
    3802: (3807, pa.string()),
}


def arrow_type(oid: int, modifier: int = -1, *types: TypeInfo) -> pa.DataType:
    return kernel_for(Column("value", oid, modifier), {each.oid: each for each in types}).arrow_type


@pytest.mark.parametrize("oid", BUILT_INS)
def test_built_in_types_and_their_arrays_need_no_catalog(oid: int) -> None:
    array_oid, expected = BUILT_INS[oid]
    assert arrow_type(oid) == expected
    assert arrow_type(array_oid) == pa.list_(expected)


def test_what_the_catalog_says_of_a_built_in_type_changes_nothing() -> None:
    assert arrow_type(23, -1, TypeInfo(23, "int4", "b")) == pa.int32()
    assert arrow_type(1007, -1, TypeInfo(1007, "_int4", "a", element=23)) == pa.list_(pa.int32())


def test_a_domain_is_its_base_type_with_the_base_types_modifier() -> None:
    domain = TypeInfo(DOMAIN, "price", "d", base=1700, base_modifier=numeric_modifier(12, 2))
    assert arrow_type(DOMAIN, -1, domain) == pa.decimal128(12, 2)


def test_a_domain_over_a_domain_is_resolved_to_the_end() -> None:
    inner = TypeInfo(DOMAIN, "price", "d", base=1700, base_modifier=numeric_modifier(12, 2))
    outer = TypeInfo(OTHER, "good_price", "d", base=DOMAIN)
    assert arrow_type(OTHER, -1, inner, outer) == pa.decimal128(12, 2)


def test_a_domain_over_an_array_gives_its_modifier_to_the_elements() -> None:
    domain = TypeInfo(DOMAIN, "prices", "d", base=1231, base_modifier=numeric_modifier(12, 2))
    assert arrow_type(DOMAIN, -1, domain) == pa.list_(pa.decimal128(12, 2))


def test_an_array_of_a_domain_is_a_list_of_its_base_type() -> None:
    domain = TypeInfo(DOMAIN, "price", "d", base=1700, base_modifier=numeric_modifier(12, 2))
    array = TypeInfo(OTHER_ARRAY, "_price", "a", element=DOMAIN)
    assert arrow_type(OTHER_ARRAY, -1, domain, array) == pa.list_(pa.decimal128(12, 2))


def test_an_enum_is_a_string_and_an_array_of_it_a_list_of_strings() -> None:
    enum = TypeInfo(ENUM, "mood", "e")
    array = TypeInfo(OTHER_ARRAY, "_mood", "a", element=ENUM)
    assert arrow_type(ENUM, -1, enum) == pa.string()
    assert arrow_type(OTHER_ARRAY, -1, enum, array) == pa.list_(pa.string())


@pytest.mark.parametrize("kind", ["b", "c", "r", "m", "p"])
def test_other_types_are_binary_whatever_their_kind(kind: str) -> None:
    assert arrow_type(OTHER, -1, TypeInfo(OTHER, "other", kind)) == pa.binary()


@pytest.mark.parametrize("kind", ["b", "c", "a"])
def test_types_that_are_only_sent_as_text_are_strings(kind: str) -> None:
    assert arrow_type(OTHER, -1, TypeInfo(OTHER, "other", kind, element=25, binary=False)) == pa.string()


def test_a_type_that_the_catalog_does_not_have_is_binary() -> None:
    assert arrow_type(OTHER) == pa.binary()
    assert arrow_type(DOMAIN, -1, TypeInfo(DOMAIN, "price", "d", base=OTHER)) == pa.binary()


@pytest.mark.parametrize("modifier", range(-1, 4))
def test_a_modifier_without_a_precision_is_none(modifier: int) -> None:
    assert arrow_type(1700, modifier) == pa.string()


@pytest.mark.parametrize("oid", [oid for oid, (array, _) in BUILT_INS.items() for oid in (oid, array)])
def test_kernels_survive_the_way_to_another_process(oid: int) -> None:
    kernel = kernel_for(Column("value", oid), {})
    copy = pickle.loads(pickle.dumps(kernel))
    assert (copy.type_name, copy.arrow_type, copy.width) == (kernel.type_name, kernel.arrow_type, kernel.width)
