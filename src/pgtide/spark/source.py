"""The `pgtide` data source: the journal as a Spark DataFrame, streaming or not.

    spark.readStream.format("pgtide").option("journal", "./journal").option("table", "public.orders").load()

Options
    journal              directory of the journal (required)
    table                schema.table: the table's own columns, then the metadata columns below
    startingPosition     `earliest` (default), `latest`, or an LSN: changes committed after it
    maxBytesPerTrigger   about how much of the journal one micro-batch takes at most

Metadata columns: `_op` (c u d r t), `_commit_lsn`, `_ordinal`, `_xid`, `_committed_at`, `_unchanged` (names of columns
whose value was not sent because it did not change), `_old_key` (the key before an update that changed it, else null).

Inside Spark a position is an offset: the commit LSN of the last transaction that a batch has. Partitions are planned
from block headers and read by tasks without any state, so a batch that is run again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pgtide.columns import arrow_schema
from pgtide.errors import ConfigError
from pgtide.journal import JournalDirectory
from pgtide.lsn import LSN
from pgtide.reading.changes import Array, Changes
from pgtide.reading.plan import JournalView, TableRange
from pgtide.reading.read import read_changes
from pgtide.schema import Table, TableName
from pgtide.spark.batches import COMPACTED_SCHEMA, Selection, compacted_batches, split_tasks

_METADATA: list[Any] = [
    pa.field("_op", pa.string()),
    pa.field("_commit_lsn", pa.string()),
    pa.field("_ordinal", pa.int64()),
    pa.field("_xid", pa.int64()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
    pa.field("_unchanged", pa.list_(pa.string())),
]


class PgtideSource(DataSource):
    """Spark's entry to the journal."""

    @classmethod
    def name(cls) -> str:
        return "pgtide"

    def schema(self) -> StructType:
        return from_arrow_schema(self._arrow_schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(dict(self.options), self._arrow_schema())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(dict(self.options), self._arrow_schema())

    def _arrow_schema(self) -> pa.Schema:
        options = _Options(self.options)
        if options.compacted:
            return COMPACTED_SCHEMA
        return changes_schema(_find_table(options.view(), options.table))


class _Options:
    """The options of a read, checked."""

    def __init__(self, options: Any) -> None:
        self._options = {key.lower(): value for key, value in dict(options).items()}
        known = {"journal", "table", "startingposition", "maxbytespertrigger", "compacted", "path"}
        unknown = sorted(set(self._options) - known)
        if unknown:
            raise ConfigError(f"unknown option of the pgtide source: {', '.join(unknown)}")

    @property
    def compacted(self) -> Selection | None:
        """Set by pipelines: batches of folded changes of many tables."""
        text = self._options.get("compacted")
        return Selection.load(text) if text else None

    @property
    def table(self) -> TableName:
        if "table" not in self._options:
            raise ConfigError("the pgtide source needs option `table`", hint='.option("table", "public.orders")')
        return TableName.parse(self._options["table"])

    @property
    def max_bytes(self) -> int | None:
        text = self._options.get("maxbytespertrigger")
        return int(text) if text else None

    def view(self) -> JournalView:
        path = self._options.get("journal") or self._options.get("path")
        if not path:
            raise ConfigError("the pgtide source needs option `journal`", hint='.option("journal", "./journal")')
        return JournalView(JournalDirectory(path))

    def start(self, view: JournalView) -> LSN:
        text = self._options.get("startingposition", "earliest")
        if text == "earliest":
            return view.reader.start_lsn()
        return view.end() if text == "latest" else LSN.parse(text)


class _RangePartition(InputPartition):
    """One task's work."""

    def __init__(self, ranges: Sequence[TableRange], after: LSN, upto: LSN) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.after = after
        self.upto = upto


class _Reading:
    """What batch and streaming reads share: planning on the driver, reading in tasks."""

    def __init__(self, options: dict[str, Any], schema: pa.Schema) -> None:
        self._raw_options = options
        self._schema = schema

    @property
    def _options(self) -> _Options:
        return _Options(self._raw_options)

    def _plan(self, view: JournalView, after: LSN, upto: LSN) -> list[InputPartition]:
        selection = self._options.compacted
        plan = view.plan(after, upto)
        if selection is not None:
            chosen = [each for oid, each in plan.tables.items() if selection.selects(plan.known[oid].name)]
            return [_RangePartition(ranges, after, upto) for ranges in split_tasks(chosen) or [[]]]
        wanted = self._options.table
        return [
            _RangePartition([each], after, upto) for oid, each in plan.tables.items() if plan.known[oid].name == wanted
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _RangePartition)
        if self._options.compacted is not None:
            yield from compacted_batches(partition.ranges, partition.after, partition.upto)
            return
        for planned in partition.ranges:
            for changes in read_changes(planned):
                if len(changes):
                    yield from changes_table(changes, self._schema).to_batches(max_chunksize=100_000)


class _BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        view = self._options.view()
        return self._plan(view, self._options.start(view), view.end())


class _StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"lsn": commit LSN}`. Planning state is an index that can be rebuilt at any time."""

    def __init__(self, options: dict[str, Any], schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._view: JournalView | None = None
        self._target: LSN | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}

    def initialOffset(self) -> dict[str, Any]:
        return _offset(self._options.start(self._journal()))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        view = self._journal()
        after = _lsn(start)
        end = view.end()
        if end <= after:
            return start
        reached = view.limit(after, limit.max_bytes) if isinstance(limit, ReadMaxBytes) else end
        if self._target is not None:
            reached = min(reached, self._target)
        return _offset(max(reached, after))

    def reportLatestOffset(self) -> dict[str, Any]:
        return _offset(self._journal().end())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._journal().end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after, upto = _lsn(start), _lsn(end)
        if upto <= after:
            return []
        view = self._journal()
        view.forget_before(after)
        return self._plan(view, after, upto)

    def _journal(self) -> JournalView:
        if self._view is None:
            self._view = self._options.view()
        return self._view


def changes_schema(table: Table) -> pa.Schema:
    """The table's columns, then the metadata columns."""
    columns: list[Any] = list(arrow_schema(table))
    key = [column for column in columns if column.name in table.key]
    old_key: list[Any] = [pa.field("_old_key", pa.struct(key))] if key else []
    return pa.schema([*columns, *_METADATA, *old_key])


def changes_table(changes: Changes, schema: pa.Schema) -> pa.Table:
    """Changes as a table of `schema`; columns that this version of the table lacks are null."""
    count = len(changes)
    values: dict[str, Array] = dict(changes.columns)
    values["_op"] = _pick([chr(op) for op in range(128)], changes.op)
    values["_commit_lsn"] = _lsn_text(changes.commit_lsn)
    values["_ordinal"] = pa.array(changes.ordinal)
    values["_xid"] = pa.array(changes.xid)
    values["_committed_at"] = pa.array(changes.committed_at_us).cast(pa.timestamp("us", "UTC"))
    values["_unchanged"] = _names_where(changes.unchanged, count)
    if changes.key_changed is not None:
        fields = [schema.field("_old_key").type.field(index) for index in range(len(changes.table.key))]
        arrays = [changes.old_key[field.name].cast(field.type) for field in fields]
        values["_old_key"] = pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~changes.key_changed))
    arrays = [values[f.name] if f.name in values else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _lsn_text(lsns: Any) -> Array:
    """LSNs as text; few distinct ones stand for many rows."""
    distinct, inverse = np.unique(lsns, return_inverse=True)
    return _pick([str(LSN(int(lsn))) for lsn in distinct], inverse)


def _names_where(masks: Any, count: int) -> Array:
    """For each row the names whose mask is set."""
    names = list(masks)
    matrix = np.stack([masks[name] for name in names], axis=1) if names else np.zeros((count, 0), dtype=bool)
    offsets: Array = pa.array(np.concatenate(([0], np.cumsum(matrix.sum(axis=1)))), pa.int32())
    return pa.ListArray.from_arrays(offsets, _pick(names, np.nonzero(matrix)[1]))


def _pick(texts: list[str], which: Any) -> Array:
    indices: Array = pa.array(which)
    return pa.array(texts, pa.string()).take(indices)


def _find_table(view: JournalView, name: TableName) -> Table:
    """The newest description of a table that the journal has."""
    known = view.plan(view.reader.start_lsn(), view.end()).known.values()
    for table in known:
        if table.name == name:
            return table
    raise ConfigError(
        f"the journal has no table {name}",
        detail=f"it has {', '.join(sorted(str(table.name) for table in known)) or 'none yet'}",
        hint="a table is known from its first change or from its snapshot on",
    )


def _offset(lsn: LSN) -> dict[str, Any]:
    return {"lsn": str(lsn)}


def _lsn(offset: dict[str, Any]) -> LSN:
    return LSN.parse(offset["lsn"])
