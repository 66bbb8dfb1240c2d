"""What a real Postgres sent, as reading gives it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from pgtide.config import Config
from pgtide.journal import JournalDirectory
from pgtide.reading.changes import Changes
from pgtide.reading.plan import JournalView, RangePlan
from pgtide.reading.read import read_changes
from pgtide.schema import TableName


class Told(NamedTuple):
    """A change as people write it: `...` for a value that was not sent."""

    op: str
    row: tuple[Any, ...]
    old_key: tuple[Any, ...] | None = None


def plan_all(config: Config) -> RangePlan:
    view = JournalView(JournalDirectory(config.journal.path))
    return view.plan(view.reader.start_lsn(), view.end())


def captured_changes(config: Config, name: str) -> list[Changes]:
    """All changes of a table in the journal, a run for each version of it."""
    plan = plan_all(config)
    wanted = TableName.parse(name)
    for oid, planned in plan.tables.items():
        if plan.known[oid].name == wanted:
            return read_changes(planned)
    return []


def captured(config: Config, name: str) -> list[Told]:
    return [told for run in captured_changes(config, name) for told in told_by(run)]


def told_by(changes: Changes) -> list[Told]:
    columns = {name: plain_values(column) for name, column in changes.columns.items()}
    old = {name: plain_values(column) for name, column in changes.old_key.items()}
    found = []
    for index, op in enumerate(changes.op.tolist()):
        row = tuple(
            ... if name in changes.unchanged and changes.unchanged[name][index] else values[index]
            for name, values in columns.items()
        )
        moved = changes.key_changed is not None and changes.key_changed[index]
        old_key = tuple(old[name][index] for name in changes.table.key) if moved else None
        found.append(Told(chr(op), row, old_key))
    return found


def plain_values(column: Any) -> list[Any]:
    """Days and microseconds instead of dates and times: Python's reach from the year 1 to 9999 only."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    values: list[Any] = column.to_pylist()
    return values
