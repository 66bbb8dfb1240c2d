"""What a verification says, to people and as JSON."""

from __future__ import annotations

import json
from typing import Any

from pgtide.schema import TableName
from pgtide.verify import TableResult, VerifyResult


def table(**counts: Any) -> TableResult:
    none = {"missing": 0, "extra": 0, "different": 0, "undecided": 0, "rounds": 0, "seconds": 0.1234, "sink_rows": 0}
    return TableResult(TableName("public", "orders"), **{"rows": 0, **none, **counts})


def test_the_summary_is_one_line_of_a_fixed_form() -> None:
    equal = VerifyResult("lake", tuple(table(rows=rows) for rows in (213_000, 455, 0, 0, 0, 0)), 1.0)
    assert equal.summary == "verified: 6 tables, 213,455 rows, 0 differences"
    unequal = VerifyResult("lake", (table(rows=1_000_000, missing=1_000, extra=200, different=34, undecided=7),), 1.0)
    assert unequal.summary == "verified: 1 tables, 1,000,000 rows, 1,234 differences"


def test_undecided_rows_are_shown_and_are_no_differences() -> None:
    result = VerifyResult("lake", (table(rows=10, undecided=2),), 1.0)
    assert result.equal
    assert result.undecided == 2
    assert result.tables[0].status == "undecided"
    assert str(result.tables[0]) == "public.orders: 10 rows, 2 undecided: changed all the while"


def test_the_status_names_the_worst_that_was_found() -> None:
    assert table().status == "equal"
    assert table(different=1, undecided=1).status == "different"
    assert str(table(rows=3)) == "public.orders: 3 rows, equal"
    assert str(table(rows=3, missing=1, examples=("ab",))) == (
        "public.orders: 3 rows, 1 missing in the sink (md5 of keys: ab)"
    )


def test_the_document_is_json_and_complete() -> None:
    result = VerifyResult("lake", (table(rows=3, sink_rows=2, missing=1, rounds=3, examples=("ab",)),), 1.23456)
    document = json.loads(json.dumps(result.to_json()))
    assert document == {
        "pipeline": "lake",
        "equal": False,
        "rows": 3,
        "differences": 1,
        "undecided": 0,
        "seconds": 1.235,
        "tables": [
            {
                "table": "public.orders",
                "status": "different",
                "rows": 3,
                "sink_rows": 2,
                "differences": 1,
                "missing": 1,
                "extra": 0,
                "different": 0,
                "undecided": 0,
                "example_key_digests": ["ab"],
                "rounds": 3,
                "seconds": 0.123,
            }
        ],
    }
