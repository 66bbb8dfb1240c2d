"""Delta tables, one for each source table, at `<path>/<schema>/<table>`.

Written by deltalake, the Rust engine: no JVM jars. A batch is one commit: a merge, an append, or an overwrite after a
truncate. The batch's end position goes into the same commit as Delta's application transaction, which is how a batch
that comes again is recognised.

A table without a key has one column more, a digest of the whole row: it is how a row is found again.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.table import TableMerger

from pgtide.columns import arrow_schema
from pgtide.config import DeltaSink as DeltaConfig
from pgtide.errors import SinkError
from pgtide.lsn import LSN, ZERO
from pgtide.reading.changes import Array, compute, key_codes
from pgtide.reading.compact import ROW_HASH, Compacted
from pgtide.schema import Table, TableName
from pgtide.sinks.base import Sink

# Merges leave small files behind; past this many they are put together.
_FILES_BEFORE_COMPACTION = 64
_MAINTENANCE_SECONDS = 300.0
# About 260,000 years: as far as the engine's calendar reaches to either side.
_CALENDAR_DAYS = 95_000_000


class DeltaSink(Sink):
    """A directory of Delta tables."""

    def __init__(self, config: DeltaConfig, pipeline: str) -> None:
        self._root = Path(config.path)
        self._vacuum_hours = math.ceil(config.vacuum_after / 3600)
        self._application = f"pgtide:{pipeline}"
        self._tables: dict[TableName, DeltaTable] = {}
        self._maintained_at = time.monotonic()

    def path(self, table: TableName) -> Path:
        return self._root / _directory_name(table.schema) / _directory_name(table.name)

    def applied_lsn(self, table: TableName) -> LSN:
        target = self._open(table)
        version = None if target is None else target.transaction_version(self._application)
        return ZERO if version is None else LSN(version)

    def apply(self, compacted: Compacted, upto: LSN, *, step: int = 0, last: bool = True) -> None:
        name = compacted.table.name
        application = self._application if last else f"{self._application}:{step}"
        target = self._open(name)
        if target is not None and (target.transaction_version(application) or 0) >= upto:
            return
        commit = CommitProperties(app_transactions=[Transaction(application, upto)])
        try:
            if target is None:
                target = self._create(compacted.table)
            _require_same_table(target, compacted.table)
            _evolve(target, compacted.table)
            _write(target, compacted, commit)
        except DeltaError as error:
            raise SinkError(
                f"cannot write Delta table {self.path(name)}",
                detail=type(error).__name__,
                hint="is another program writing this table? pgtide must be its only writer",
            ) from error
        except OSError as error:
            raise SinkError(
                f"cannot write Delta table {self.path(name)}",
                detail=error.strerror or type(error).__name__,
                hint="check that the disk has room and that this user may write there; then run the command again",
            ) from error

    def require_writable(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._root):
                pass
        except OSError as error:
            raise SinkError(
                f"cannot write to the lake at {self._root}",
                detail=error.strerror,
                hint="choose a directory that this user may write to: sink.path",
            ) from None

    def in_use(self) -> bool:
        logs = self._root.glob("*/*/_delta_log")
        return any(_copied_oid(DeltaTable(str(log.parent))) is not None for log in logs)

    def maintain(self) -> None:
        """Put small files together and remove those that nobody needs any more."""
        if time.monotonic() - self._maintained_at < _MAINTENANCE_SECONDS:
            return
        self._maintained_at = time.monotonic()
        for target in self._tables.values():
            if len(target.file_uris()) > _FILES_BEFORE_COMPACTION:
                target.optimize.compact()
            target.vacuum(retention_hours=self._vacuum_hours, dry_run=False, enforce_retention_duration=False)

    def _open(self, name: TableName) -> DeltaTable | None:
        if name in self._tables:
            return self._tables[name]
        path = str(self.path(name))
        if not DeltaTable.is_deltatable(path):
            return None
        self._tables[name] = DeltaTable(path)
        return self._tables[name]

    def _create(self, table: Table) -> DeltaTable:
        _require_distinct_names(table)
        path = self.path(table.name)
        path.mkdir(parents=True, exist_ok=True)
        schema = target_schema(table)
        self._tables[table.name] = DeltaTable.create(
            str(path),
            schema,
            description=f"copy of {table.name}, table {table.oid}, kept by pgtide",
            configuration=_configuration(schema),
        )
        return self._tables[table.name]


def _copied_oid(target: DeltaTable) -> int | None:
    """Which table of the source this is a copy of; None if pgtide did not make it."""
    match = re.search(r"table (\d+), kept by pgtide$", target.metadata().description or "")
    return int(match[1]) if match else None


def _require_same_table(target: DeltaTable, table: Table) -> None:
    """A table that was dropped and created again is another one: its copy must not mix with the old one's rows."""
    if _copied_oid(target) != table.oid:
        raise SinkError(
            f"table {table.name} is not the one that its copy was made from",
            detail="it was dropped and created again, or the directory holds a Delta table of somebody else's",
            hint="copy again: stop pgtide, remove the journal and the sink's tables, run `pgtide destroy`, "
            "`pgtide init` and `pgtide run`",
        )


def target_schema(table: Table) -> pa.Schema:
    """The Delta table's columns."""
    schema = arrow_schema(table)
    return schema.append(pa.field(ROW_HASH, pa.binary())) if table.keyless else schema


def _require_distinct_names(table: Table) -> None:
    """Delta takes names that differ only in case for the same."""
    seen: dict[str, str] = {}
    for name in target_schema(table).names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise SinkError(
                f"table {table.name} cannot be kept as a Delta table",
                detail=f"columns {other!r} and {name!r} differ only in case, which Delta does not allow",
                hint=f'rename one of them, or leave the table out: tables: ["!{table.name}"]',
            )


def _write(target: DeltaTable, compacted: Compacted, commit: CommitProperties) -> None:
    """One commit for the whole batch, whatever it holds."""
    schema = _schema(target)
    version = target.version()
    if compacted.table.keyless:
        _write_multiset(target, compacted, schema, commit)
    elif compacted.truncated:
        write_deltalake(target, _rows(compacted.upserts.columns, schema), mode="overwrite", commit_properties=commit)
    elif not compacted.delete_count and not target.file_uris():
        write_deltalake(target, _rows(compacted.upserts.columns, schema), mode="append", commit_properties=commit)
    else:
        _merge(target, compacted, schema, commit)
    if target.version() == version:
        # A merge that finds nothing to do makes no commit, but the position must be kept.
        write_deltalake(target, schema.empty_table(), mode="append", commit_properties=commit)


def _merge(target: DeltaTable, compacted: Compacted, schema: pa.Schema, commit: CommitProperties) -> None:
    """Upsert and delete by key.

    The source's columns have names of our own (`v0`, `u0`, …), so that no column name of a user's can get in the way.
    """
    table = compacted.table
    columns, unchanged = _fill_moved(target, compacted)
    names = [name for name in schema.names if name in columns]
    upserts, deletes = compacted.upsert_count, compacted.delete_count
    source: dict[str, Array] = {}
    updates: dict[str, str] = {}
    for index, name in enumerate(names):
        deleted = compacted.deleted.get(name, pa.nulls(deletes, columns[name].type))
        source[f"v{index}"] = pa.chunked_array([columns[name], deleted.cast(columns[name].type)])
        updates[_quoted(name)] = f"source.v{index}"
        if name in unchanged:
            source[f"u{index}"] = pa.array(np.concatenate((unchanged[name], np.zeros(deletes, dtype=bool))))
            updates[_quoted(name)] = f"case when source.u{index} then target.{_quoted(name)} else source.v{index} end"
    source["gone"] = pa.array(np.arange(upserts + deletes) >= upserts)
    inserts = {_quoted(name): f"source.v{index}" for index, name in enumerate(names)}
    matched = " and ".join(f"target.{_quoted(name)} = source.v{names.index(name)}" for name in table.key)
    prunable = all(_prunable(source[f"v{names.index(name)}"]) for name in table.key)
    (
        _merger(target, pa.table(source), matched, commit, prunable=prunable)
        .when_matched_delete("source.gone")
        .when_matched_update(updates, "not source.gone")
        .when_not_matched_insert(inserts, "not source.gone")
        .execute()
    )


def _merger(
    target: DeltaTable, source: pa.Table, predicate: str, commit: CommitProperties, *, prunable: bool = True
) -> TableMerger:
    """A merge. If it is `prunable`, the source's keys tell which files need not be read."""
    return target.merge(
        source,
        predicate,
        source_alias="source",
        target_alias="target",
        streamed_exec=not prunable,
        commit_properties=commit,
    )


def _prunable(column: Array) -> bool:
    """True if the engine can write down the least and the greatest of these values, which it does to find files by
    them: not for lists, nor beyond its calendar, where infinity is."""
    days = pa.types.is_date(column.type)
    if not days and not pa.types.is_timestamp(column.type):
        return not pa.types.is_nested(column.type)
    limit = _CALENDAR_DAYS if days else _CALENDAR_DAYS * 86_400_000_000
    bounds = compute.min_max(column.cast(pa.int32() if days else pa.int64())).as_py()
    return bounds["min"] is None or (bounds["min"] >= -limit and bounds["max"] <= limit)


def _fill_moved(target: DeltaTable, compacted: Compacted) -> tuple[dict[str, Array], dict[str, Any]]:
    """Give rows that moved to another key their unchanged values from the key they had in the target."""
    upserts = compacted.upserts
    columns, unchanged = dict(upserts.columns), dict(upserts.unchanged)
    if not upserts.moved.any():
        return columns, unchanged
    known = _rows_by_key(target, compacted.table, upserts.moved_from, list(unchanged))
    places = _places(upserts.moved_from, known, compacted.table.key)
    count = len(upserts.moved)
    for name, mask in unchanged.items():
        there = np.where(places < 0, -1, count + places)
        rows = np.where(mask & upserts.moved, there, np.arange(count))
        both: Array = pa.concat_arrays([columns[name], known[name].cast(columns[name].type)])
        columns[name] = both.take(pa.array(rows, mask=rows < 0))
        unchanged[name] = mask & ~upserts.moved
    return columns, {name: mask for name, mask in unchanged.items() if mask.any()}


def _rows_by_key(target: DeltaTable, table: Table, keys: dict[str, Array], columns: Sequence[str]) -> dict[str, Array]:
    """Columns of the rows that may have one of these keys: the first column of the key decides."""
    first = keys[table.key[0]].drop_null()
    condition = None if pa.types.is_nested(first.type) else _among(table.key[0], first)
    found = target.to_pyarrow_dataset().to_table(columns=[*table.key, *columns], filter=condition)
    return {name: found.column(name).combine_chunks() for name in found.column_names}


def _places(keys: dict[str, Array], known: dict[str, Array], names: Sequence[str]) -> Any:
    """For each key where it is among the known rows, else -1. Values are not looked at one by one: Python has no room
    for every date."""
    count = len(keys[names[0]])
    codes = np.zeros(count + len(known[names[0]]), dtype=np.int64)
    for name in names:
        column: Array = pa.concat_arrays([keys[name], known[name].cast(keys[name].type)])
        _, codes = np.unique(codes * (len(codes) + 1) + key_codes(column), return_inverse=True)
    place = np.full(int(codes.max()) + 1, -1, dtype=np.int64)
    place[codes[count:]] = np.arange(len(codes) - count)
    return place[codes[:count]]


def _among(name: str, values: Array) -> Any:
    """A condition that the column has one of these values.

    Files that a merge has written store text and bytes as Arrow's view types. Arrow cannot compare those files'
    statistics with plain text or bytes and fails; by way of a cast it does not try.
    """
    return compute.field(name).cast(values.type).isin(values)


def _write_multiset(target: DeltaTable, compacted: Compacted, schema: pa.Schema, commit: CommitProperties) -> None:
    inserts = _rows(compacted.upserts.columns, schema)
    if compacted.truncated:
        write_deltalake(target, inserts, mode="overwrite", commit_properties=commit)
    elif not compacted.delete_count:
        write_deltalake(target, inserts, mode="append", commit_properties=commit)
    else:
        _replace_rows(target, compacted.deleted[ROW_HASH], inserts, commit)


def _replace_rows(target: DeltaTable, removed: Array, inserts: pa.Table, commit: CommitProperties) -> None:
    """Remove each of these rows once, where several may be equal: take out all equal ones, put the rest back.

    In the merge's source a row with `match` takes equal rows out; one without goes in, because null matches nothing.
    """
    touched = compute.unique(removed)
    found = target.to_pyarrow_dataset().to_table(filter=_among(ROW_HASH, touched))
    rows = pa.concat_tables([_surviving(found, removed), inserts.select(found.column_names)])
    marks = len(touched)
    source: dict[str, Array] = {
        f"v{index}": pa.chunked_array([*column.chunks, pa.nulls(marks, column.type)])
        for index, column in enumerate(rows.columns)
    }
    source["match"] = pa.concat_arrays([pa.nulls(len(rows), touched.type), touched])
    values = {_quoted(name): f"source.v{index}" for index, name in enumerate(rows.column_names)}
    predicate = f"target.{_quoted(ROW_HASH)} = source.match"
    (
        _merger(target, pa.table(source), predicate, commit)
        .when_matched_delete()
        .when_not_matched_insert(values, "source.match is null")
        .execute()
    )


def _surviving(found: pa.Table, removed: Array) -> pa.Table:
    """The rows of `found` less one for each entry of `removed`."""
    left: dict[Any, int] = {}
    for digest in removed.to_pylist():
        left[digest] = left.get(digest, 0) + 1
    kept = []
    for row, digest in enumerate(found.column(ROW_HASH).to_pylist()):
        if left.get(digest, 0):
            left[digest] -= 1
        else:
            kept.append(row)
    return found.take(pa.array(kept, pa.int64()))


def _rows(columns: dict[str, Array], schema: pa.Schema) -> pa.Table:
    """Columns as a table of the target's schema; a column that the source dropped is null."""
    count = len(next(iter(columns.values()))) if columns else 0
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _evolve(target: DeltaTable, table: Table) -> None:
    """Follow the one change of a table that needs nothing but a new column; stop at any other."""
    if table.keyless != (ROW_HASH in _schema(target).names):
        raise _altered(table, [f"the key ({', '.join(table.key) or 'there is none any more'})"])
    have = {field.name: field.type for field in _schema(target)}
    want = target_schema(table)
    added = [field for field in want if field.name not in have]
    dropped = sorted(set(have) - set(want.names))
    changed = [field.name for field in want if field.name in have and not _same_type(have[field.name], field.type)]
    if changed or (added and dropped):
        raise _altered(table, changed or [*dropped, *(field.name for field in added)])
    if added:
        filled = [column.name for column in table.columns if column.name not in have and _fills_old_rows(column)]
        if filled:
            raise _altered(table, filled)
        target.alter.add_columns([Field.from_arrow(field) for field in added])


def _fills_old_rows(column: Any) -> bool:
    """A column that came with a default (or must not be null) has given old rows values that no change tells."""
    return bool(column.has_default or column.not_null)


def _same_type(left: pa.DataType, right: pa.DataType) -> bool:
    if pa.types.is_list(left) and pa.types.is_list(right):
        return _same_type(left.value_type, right.value_type)
    return left.equals(right)


def _altered(table: Table, columns: Sequence[str]) -> SinkError:
    return SinkError(
        f"table {table.name} was altered in a way that its copy cannot follow",
        detail=f"columns concerned: {', '.join(columns)}",
        hint="copy again: stop pgtide, remove the journal and the sink's tables, run `pgtide destroy`, `pgtide init` "
        "and `pgtide run`",
    )


def _schema(target: DeltaTable) -> pa.Schema:
    exported: Any = target.schema().to_arrow()
    return pa.schema(exported)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _directory_name(name: str) -> str:
    """A name that is one path component, whatever characters it has; ordinary names stay as they are.

    Not percent-encoding: a table's path is taken for a URL and decoded.
    """
    safe = "".join(char if char.isalnum() or char in "_-. " else _escaped(char) for char in name)
    return _escaped(safe[0]) + safe[1:] if safe.startswith(".") or safe == "_delta_log" else safe


def _escaped(char: str) -> str:
    return "".join(f"~{byte:02X}" for byte in char.encode())


def _configuration(schema: pa.Schema) -> dict[str, str]:
    """Keep statistics of every column but dates and times: for those past year 9999, BC or infinity they cannot be
    written or read."""
    if not any(pa.types.is_temporal(field.type) for field in schema):
        return {}
    plain = [
        field.name for field in schema if not pa.types.is_temporal(field.type) and not pa.types.is_nested(field.type)
    ]
    columns = ",".join("`" + name.replace("`", "``") + "`" for name in plain)
    return {"delta.dataSkippingStatsColumns": columns} if columns else {"delta.dataSkippingNumIndexedCols": "0"}
