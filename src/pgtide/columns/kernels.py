"""The one table from a type to the kernel that reads it.

Types built into Postgres have fixed OIDs (src/include/catalog/pg_type.dat), so their kernels and those
of their arrays are found without asking the source. All others are resolved by what pg_type says of
them: a domain is its base type, an enum is text, an array is a list of its element. A type that is in
neither comes as text if Postgres can only send it as text, else as the bytes that were sent: never an
error.

Invariant: a column's Arrow type follows from the column and its types alone, so every block of a
table version has the same schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from pgtide.columns.kernel import Kernel
from pgtide.columns.types import (
    arrays,
    boolean,
    bytea,
    floats,
    integers,
    jsonb,
    numeric,
    opaque,
    temporal,
    text,
    uuid,
)
from pgtide.schema import Column, TypeInfo

__all__ = ["Kernel", "kernel_for"]


class _BuiltIn(NamedTuple):
    oid: int
    array_oid: int
    type_name: str
    kernel: Callable[[str, int], Kernel]


_BUILT_INS = (
    _BuiltIn(16, 1000, "bool", boolean.kernel),
    _BuiltIn(17, 1001, "bytea", bytea.kernel),
    _BuiltIn(18, 1002, '"char"', text.kernel),
    _BuiltIn(19, 1003, "name", text.kernel),
    _BuiltIn(20, 1016, "int8", integers.kernel),
    _BuiltIn(21, 1005, "int2", integers.kernel),
    _BuiltIn(23, 1007, "int4", integers.kernel),
    _BuiltIn(25, 1009, "text", text.kernel),
    _BuiltIn(26, 1028, "oid", integers.kernel),
    _BuiltIn(28, 1011, "xid", integers.kernel),
    _BuiltIn(29, 1012, "cid", integers.kernel),
    _BuiltIn(114, 199, "json", text.kernel),
    _BuiltIn(142, 143, "xml", text.kernel),
    _BuiltIn(700, 1021, "float4", floats.kernel),
    _BuiltIn(701, 1022, "float8", floats.kernel),
    _BuiltIn(1042, 1014, "bpchar", text.kernel),
    _BuiltIn(1043, 1015, "varchar", text.kernel),
    _BuiltIn(1082, 1182, "date", temporal.kernel),
    _BuiltIn(1083, 1183, "time", temporal.kernel),
    _BuiltIn(1114, 1115, "timestamp", temporal.kernel),
    _BuiltIn(1184, 1185, "timestamptz", temporal.kernel),
    _BuiltIn(1700, 1231, "numeric", numeric.kernel),
    _BuiltIn(2950, 2951, "uuid", uuid.kernel),
    _BuiltIn(3802, 3807, "jsonb", jsonb.kernel),
)

_BY_OID = {each.oid: each for each in _BUILT_INS}
_BY_ARRAY_OID = {each.array_oid: each for each in _BUILT_INS}

# Types of extensions have no fixed OID, so the ones that are read like text are known by name.
_TEXT_LIKE_NAMES = frozenset({"citext"})


def kernel_for(column: Column, types: Mapping[int, TypeInfo]) -> Kernel:
    """The kernel for a column. `types` has what pg_type says of types that are not built in."""
    return _resolve(column.type_oid, column.type_modifier, types)


def _resolve(oid: int, modifier: int, types: Mapping[int, TypeInfo]) -> Kernel:
    built_in = _built_in(oid, modifier)
    if built_in is not None:
        return built_in
    info = types.get(oid)
    if info is None:
        return opaque.kernel(f"with oid {oid}", modifier)
    if info.kind == "d":
        return _resolve(info.base, info.base_modifier, types)
    if not info.binary or info.kind == "e" or info.name in _TEXT_LIKE_NAMES:
        return text.kernel(info.name, modifier)
    if info.kind == "a":
        # The modifier of an array column is that of its elements: numeric(12,2)[].
        element = _resolve(info.element, modifier, types)
        return arrays.kernel(f"{element.type_name}[]", element)
    return opaque.kernel(info.name, modifier)


@lru_cache(maxsize=1024)
def _built_in(oid: int, modifier: int) -> Kernel | None:
    if oid in _BY_OID:
        _, _, type_name, kernel = _BY_OID[oid]
        return kernel(type_name, modifier)
    if oid in _BY_ARRAY_OID:
        _, _, type_name, kernel = _BY_ARRAY_OID[oid]
        element = kernel(type_name, modifier)
        return arrays.kernel(f"{element.type_name}[]", element)
    return None
