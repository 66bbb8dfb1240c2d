"""What the engine under the Delta sink has trouble with, and the sink must not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pgtide.config import DeltaSink as DeltaConfig
from pgtide.lsn import LSN
from pgtide.reading.changes import CREATE, DELETE, UPDATE, Changes, empty
from pgtide.reading.compact import compact
from pgtide.schema import Column, Table, TableName
from pgtide.sinks.delta import DeltaSink

INT4, TEXT, DATE, TIMESTAMPTZ = 23, 25, 1082, 1184


def sink_at(path: Path) -> DeltaSink:
    return DeltaSink(DeltaConfig.model_validate({"type": "delta", "path": str(path)}), "lake")


def changes_of(table: Table, ops: list[int], columns: dict[str, Any], **more: Any) -> Changes:
    count = len(ops)
    zeros = np.zeros(count, dtype=np.int64)
    return replace(
        empty(table),
        op=np.array(ops, dtype=np.uint8),
        columns=columns,
        commit_lsn=zeros.astype(np.uint64),
        ordinal=np.arange(count),
        xid=zeros,
        committed_at_us=zeros,
        **more,
    )


@pytest.mark.parametrize("name", ["plain", "a/b", "a#b", ".x", "a%20b", 'quo"te', "Größe", "a~b", "with space"])
def test_a_table_of_any_name_is_written_to_a_directory_of_its_own(tmp_path: Path, name: str) -> None:
    table = Table(1, TableName("public", name), (Column("id", INT4, key=True),), key=("id",))
    sink = sink_at(tmp_path)
    sink.apply(compact(changes_of(table, [CREATE], {"id": pa.array([1], pa.int32())})), LSN(5))
    assert sink_at(tmp_path).applied_lsn(table.name) == 5
    assert sink.path(table.name).parent == tmp_path / "public"


@pytest.mark.parametrize(
    ("oid", "arrow", "integer"), [(DATE, pa.date32(), pa.int32()), (TIMESTAMPTZ, pa.timestamp("us", "UTC"), pa.int64())]
)
def test_infinite_and_ancient_moments_are_written_merged_and_read(
    tmp_path: Path, oid: int, arrow: Any, integer: Any
) -> None:
    table = Table(1, TableName("public", "t"), (Column("id", INT4, key=True), Column("at", oid)), key=("id",))
    limits = np.iinfo(integer.to_pandas_dtype())
    moments = [int(limits.max), int(limits.min), -2_440_588, 0]
    sink = sink_at(tmp_path)
    for position in (5, 6):
        columns = {"id": pa.array(range(4), pa.int32()), "at": pa.array(moments, integer).view(arrow)}
        sink.apply(compact(changes_of(table, [CREATE] * 4, columns)), LSN(position))
    found = DeltaTable(str(sink.path(table.name))).to_pyarrow_dataset().to_table().sort_by("id")
    assert found.column("at").combine_chunks().view(integer).to_pylist() == moments


def test_rows_without_a_key_are_found_again_in_files_that_a_merge_wrote(tmp_path: Path) -> None:
    table = Table(1, TableName("public", "log"), (Column("line", TEXT, key=True),), replica_identity="f")
    sink = sink_at(tmp_path)
    hashes = [os.urandom(16) for _ in range(200)]
    lines = [f"line {index}" for index in range(200)]

    def apply(op: int, rows: range, position: int) -> None:
        columns = {"line": pa.array([lines[row] for row in rows])}
        more = {"row_hash": pa.array([hashes[row] for row in rows], pa.binary())}
        sink.apply(compact(changes_of(table, [op] * len(rows), columns, **more)), LSN(position))

    apply(CREATE, range(200), 1)
    for position, start in enumerate((0, 50, 100), start=2):
        apply(DELETE, range(start, start + 50), position)
    left: list[Any] = DeltaTable(str(sink.path(table.name))).to_pyarrow_table().column("line").to_pylist()
    assert sorted(left) == sorted(lines[150:])


def test_a_moved_row_finds_its_values_by_a_text_key_in_files_that_a_merge_wrote(tmp_path: Path) -> None:
    columns = (Column("id", TEXT, key=True), Column("n", INT4), Column("body", TEXT))
    table = Table(1, TableName("public", "docs"), columns, key=("id",))
    sink = sink_at(tmp_path)
    rows = {
        "id": pa.array([f"key {index}" for index in range(100)]),
        "n": pa.array(range(100), pa.int32()),
        "body": pa.array([f"body {index}" for index in range(100)]),
    }
    for position in (1, 2, 3):
        sink.apply(compact(changes_of(table, [CREATE] * 100, rows)), LSN(position))
    moved = changes_of(
        table,
        [UPDATE],
        {"id": pa.array(["new"]), "n": pa.array([7], pa.int32()), "body": pa.nulls(1, pa.string())},
        unchanged={"body": np.array([True])},
        key_changed=np.array([True]),
        old_key={"id": pa.array(["key 42"])},
    )
    sink.apply(compact(moved), LSN(4))
    found = {row["id"]: row for row in DeltaTable(str(sink.path(table.name))).to_pyarrow_table().to_pylist()}
    assert found["new"] == {"id": "new", "n": 7, "body": "body 42"}
    assert "key 42" not in found
