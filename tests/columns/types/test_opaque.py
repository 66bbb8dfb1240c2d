from __future__ import annotations

import pyarrow as pa

from pgtide.schema import TypeInfo
from tests.columns.building import Cell, Text, decoded

POINT = 600


def test_a_type_that_nobody_knows_keeps_the_bytes_of_either_form() -> None:
    cells: list[Cell] = [b"\0\xff", None, Text(b"(1,2)"), b""]
    array = decoded(cells, POINT)
    assert array.type == pa.binary()
    assert array.to_pylist() == [b"\0\xff", None, b"(1,2)", b""]


def test_a_known_type_without_a_kernel_keeps_the_bytes_as_sent() -> None:
    array = decoded([b"\0\xff"], POINT, types={POINT: TypeInfo(POINT, "point", "b")})
    assert array.type == pa.binary()
    assert array.to_pylist() == [b"\0\xff"]


def test_a_type_without_a_binary_form_is_text() -> None:
    types = {1033: TypeInfo(1033, "aclitem", "b", binary=False)}
    array = decoded([Text(b"=r/postgres"), None], 1033, types=types)
    assert array.type == pa.string()
    assert array.to_pylist() == ["=r/postgres", None]
