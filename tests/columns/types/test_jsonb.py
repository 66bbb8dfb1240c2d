from __future__ import annotations

import pytest

from pgtide.errors import ProtocolError
from tests.columns.building import Cell, Text, decoded


def test_jsonb_loses_its_version_byte() -> None:
    array = decoded([b'\x01{"a": [1, {"b": null}]}', None, b"\x01[]"], 3802)
    assert array.to_pylist() == ['{"a": [1, {"b": null}]}', None, "[]"]


def test_jsonb_as_text_has_no_version_byte_to_lose() -> None:
    cells: list[Cell] = [b"\x01true", Text(b"1"), None, Text(b"null")]
    assert decoded(cells, 3802).to_pylist() == ["true", "1", None, "null"]


@pytest.mark.parametrize("value", [b"", b"\x02{}", b"{}", b"\0{}"])
def test_jsonb_of_another_version_is_refused(value: bytes) -> None:
    with pytest.raises(ProtocolError, match="version 1"):
        decoded([b"\x01{}", value], 3802)
