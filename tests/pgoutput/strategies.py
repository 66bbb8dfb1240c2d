"""Hypothesis strategies for every message of pgoutput and for its envelope."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pgtide.lsn import LSN
from pgtide.pgoutput import (
    NULL,
    UNCHANGED,
    AnyMessage,
    Begin,
    BeginPrepare,
    Binary,
    ColumnValue,
    Commit,
    CommitPrepared,
    CopyData,
    Delete,
    Insert,
    Message,
    OldTuple,
    Origin,
    Prepare,
    PrimaryKeepalive,
    Relation,
    RelationColumn,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Text,
    Truncate,
    TupleData,
    Type,
    Update,
    XLogData,
)

uint32 = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1).map(LSN)
times = st.integers(-(2**63), 2**63 - 1)
modifiers = st.integers(-(2**31), 2**31 - 1)
strings = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
# The empty namespace is how pg_catalog is written, so no namespace is empty.
namespaces = strings.filter(bool) | st.just("pg_catalog")
contents = st.binary(max_size=40)
flags = st.booleans()

values: st.SearchStrategy[ColumnValue] = st.one_of(
    st.just(NULL), st.just(UNCHANGED), st.builds(Text, contents), st.builds(Binary, contents)
)
tuples: st.SearchStrategy[TupleData] = st.lists(values, max_size=6).map(tuple)
old_tuples = st.builds(OldTuple, tuples, flags)
relation_columns = st.lists(st.builds(RelationColumn, strings, uint32, modifiers, flags), max_size=6).map(tuple)
prepared = (lsns, lsns, times, uint32, strings)

PLAIN: dict[type[AnyMessage], st.SearchStrategy[AnyMessage]] = {
    Begin: st.builds(Begin, lsns, times, uint32),
    Commit: st.builds(Commit, lsns, lsns, times),
    Origin: st.builds(Origin, lsns, strings),
    StreamStart: st.builds(StreamStart, uint32, flags),
    StreamCommit: st.builds(StreamCommit, uint32, lsns, lsns, times),
    StreamAbort: st.builds(StreamAbort, uint32, uint32),
    BeginPrepare: st.builds(BeginPrepare, *prepared),
    Prepare: st.builds(Prepare, *prepared),
    CommitPrepared: st.builds(CommitPrepared, *prepared),
    RollbackPrepared: st.builds(RollbackPrepared, lsns, lsns, times, times, uint32, strings),
    StreamPrepare: st.builds(StreamPrepare, *prepared),
}


def _with_xid(xids: st.SearchStrategy[int | None]) -> dict[type[AnyMessage], st.SearchStrategy[AnyMessage]]:
    oids = st.lists(uint32, max_size=5).map(tuple)
    return {
        Relation: st.builds(Relation, uint32, namespaces, strings, st.sampled_from("dnfi"), relation_columns, xids),
        Type: st.builds(Type, uint32, namespaces, strings, xids),
        Insert: st.builds(Insert, uint32, tuples, xids),
        Update: st.builds(Update, uint32, tuples, st.none() | old_tuples, xids),
        Delete: st.builds(Delete, uint32, old_tuples, xids),
        Truncate: st.builds(Truncate, oids, flags, flags, xids),
        Message: st.builds(Message, flags, lsns, strings, contents, xids),
    }


OUTSIDE = PLAIN | _with_xid(st.none())
"""By class: what may stand outside of stream blocks, with streaming that is not parallel."""

INSIDE = _with_xid(uint32) | {Origin: PLAIN[Origin], StreamStop: st.just(StreamStop())}
"""By class: what may stand inside of a stream block."""

PARALLEL_ABORT = st.builds(StreamAbort, uint32, uint32, lsns, times)


def messages() -> st.SearchStrategy[tuple[AnyMessage, dict[str, Any]]]:
    """Any message, with what `parse_message` must be told to read it."""
    return st.one_of(
        *[st.tuples(each, st.just({"in_stream": False})) for each in OUTSIDE.values()],
        *[st.tuples(each, st.just({"in_stream": True})) for each in INSIDE.values()],
        st.tuples(PARALLEL_ABORT, st.just({"streaming": "parallel"})),
    )


envelopes: st.SearchStrategy[CopyData] = st.one_of(
    st.builds(XLogData, lsns, lsns, times, contents), st.builds(PrimaryKeepalive, lsns, times, flags)
)
