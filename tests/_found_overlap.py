"""A batch that begins before the sink's position but ends behind it is applied on top of what it already has.

It comes when a pipeline's checkpoint is lost or removed while its sink and journal stay: the query then begins again
at the journal's start. `Sink.apply` is told where a batch ends, not where it begins, so it cannot see the overlap.
"""

from __future__ import annotations

from collections import Counter

from pgtide.errors import SinkError
from pgtide.lsn import LSN
from pgtide.reading.changes import CREATE, UPDATE
from pgtide.reading.compact import compact
from tests.reading.model import Change
from tests.reading.test_compact import multiset_changes
from tests.sinks.test_delta import batch, multiset, read, sink_at


def test_rows_without_a_key_are_not_inserted_twice(tmp_path):
    sink = sink_at(tmp_path)
    sink.apply(compact(multiset_changes([(0, 1)])), LSN(100))
    try:
        sink.apply(compact(multiset_changes([(0, 1), (0, 2)])), LSN(200))
    except SinkError:
        return
    assert multiset(sink) == Counter({1: 1, 2: 1})


def test_a_row_that_moved_keeps_its_long_values(tmp_path):
    sink = sink_at(tmp_path)
    moved = Change(UPDATE, (2,), (2, ..., "new"), (1,))
    sink.apply(batch(Change(CREATE, (1,), (1, "a", "b"))), LSN(100))
    sink.apply(batch(moved), LSN(200))
    try:
        sink.apply(batch(moved, Change(UPDATE, (2,), (3, ..., ...))), LSN(300))
    except SinkError:
        return
    assert read(sink) == {(2,): (3, "a", "new")}
