"""Messages to bytes: the mirror of `parse`.

pgtide sends one of these, the status update; the rest is what a server would send, for tests, benches and
schedules that have none. One builder for each message, found in a literal table by the message's class,
each beside the layout that the manual gives. Layouts are written out here again rather than shared with
`parse`, so that each file proves the other.

Invariant: `parse_message(build_message(m)) == m`, given what the bytes do not tell (see `parse`). What the
wire has no room for raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error as StructError
from struct import pack
from typing import Any, NamedTuple

from pgtide.pgoutput.messages import (
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
    StandbyStatusUpdate,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
    XLogData,
)

_NO_FLAGS = b"\0"


def _string(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("a string with a zero character has no wire form")
    return text.encode("utf-8") + b"\0"


def _namespace(namespace: str) -> bytes:
    return _string("" if namespace == "pg_catalog" else namespace)


def _sized(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


# Transactions


def _begin(message: Begin) -> bytes:
    return pack(">QqI", message.final_lsn, message.commit_time, message.xid)


def _commit(message: Commit | StreamCommit) -> bytes:
    return _NO_FLAGS + pack(">QQq", message.commit_lsn, message.end_lsn, message.commit_time)


def _origin(message: Origin) -> bytes:
    return pack(">Q", message.origin_lsn) + _string(message.name)


# Relations and types


def _relation(message: Relation) -> bytes:
    if message.replica_identity not in ("d", "n", "f", "i"):
        raise ValueError("a replica identity is one of d, n, f and i")
    return b"".join(
        [
            pack(">I", message.relation_oid),
            _namespace(message.namespace),
            _string(message.name),
            message.replica_identity.encode(),
            pack(">h", len(message.columns)),
            *map(_relation_column, message.columns),
        ]
    )


def _relation_column(column: RelationColumn) -> bytes:
    return pack(">?", column.key) + _string(column.name) + pack(">Ii", column.type_oid, column.type_modifier)


def _type(message: Type) -> bytes:
    return pack(">I", message.type_oid) + _namespace(message.namespace) + _string(message.name)


# Changes


def _tuple_data(values: TupleData) -> bytes:
    return pack(">h", len(values)) + b"".join(map(_column_value, values))


def _column_value(value: ColumnValue) -> bytes:
    if value is NULL:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    return (b"b" if isinstance(value, Binary) else b"t") + _sized(value.data)


def _new(values: TupleData) -> bytes:
    return b"N" + _tuple_data(values)


def _old(old: OldTuple) -> bytes:
    return (b"O" if old.whole else b"K") + _tuple_data(old.values)


def _insert(message: Insert) -> bytes:
    return pack(">I", message.relation_oid) + _new(message.new)


def _update(message: Update) -> bytes:
    old = b"" if message.old is None else _old(message.old)
    return pack(">I", message.relation_oid) + old + _new(message.new)


def _delete(message: Delete) -> bytes:
    return pack(">I", message.relation_oid) + _old(message.old)


def _truncate(message: Truncate) -> bytes:
    options = 1 * message.cascade | 2 * message.restart_identity
    count = len(message.relation_oids)
    return pack(">iB", count, options) + pack(f">{count}I", *message.relation_oids)


def _message(message: Message) -> bytes:
    return pack(">?Q", message.transactional, message.lsn) + _string(message.prefix) + _sized(message.content)


# Streamed transactions


def _stream_start(message: StreamStart) -> bytes:
    return pack(">I?", message.xid, message.first_segment)


def _stream_stop(message: StreamStop) -> bytes:
    return b""


def _stream_commit(message: StreamCommit) -> bytes:
    return pack(">I", message.xid) + _commit(message)


def _stream_abort(message: StreamAbort) -> bytes:
    xids = pack(">II", message.xid, message.subxid)
    if message.abort_lsn is None and message.abort_time is None:
        return xids
    if message.abort_lsn is None or message.abort_time is None:
        raise ValueError("an abort has both an LSN and a time, or neither")
    return xids + pack(">Qq", message.abort_lsn, message.abort_time)


# Two-phase transactions


def _begin_prepare(message: BeginPrepare | Prepare | StreamPrepare) -> bytes:
    fixed = pack(">QQqI", message.prepare_lsn, message.end_lsn, message.prepare_time, message.xid)
    return fixed + _string(message.gid)


def _prepare(message: Prepare | StreamPrepare) -> bytes:
    return _NO_FLAGS + _begin_prepare(message)


def _commit_prepared(message: CommitPrepared) -> bytes:
    fixed = pack(">QQqI", message.commit_lsn, message.end_lsn, message.commit_time, message.xid)
    return _NO_FLAGS + fixed + _string(message.gid)


def _rollback_prepared(message: RollbackPrepared) -> bytes:
    lsns = pack(">QQ", message.prepare_end_lsn, message.rollback_end_lsn)
    times_and_xid = pack(">qqI", message.prepare_time, message.rollback_time, message.xid)
    return _NO_FLAGS + lsns + times_and_xid + _string(message.gid)


# The envelope


def _xlog_data(envelope: XLogData) -> bytes:
    return pack(">QQq", envelope.start_lsn, envelope.wal_end, envelope.send_time) + envelope.payload


def _primary_keepalive(envelope: PrimaryKeepalive) -> bytes:
    return pack(">Qq?", envelope.wal_end, envelope.send_time, envelope.reply_requested)


def _standby_status_update(envelope: StandbyStatusUpdate) -> bytes:
    lsns = pack(">QQQ", envelope.write_lsn, envelope.flush_lsn, envelope.apply_lsn)
    return lsns + pack(">q?", envelope.send_time, envelope.reply_requested)


# Dispatch


class _Form(NamedTuple):
    tag: bytes
    build: Callable[[Any], bytes]


_MESSAGES: dict[type[AnyMessage], _Form] = {
    Begin: _Form(b"B", _begin),
    Commit: _Form(b"C", _commit),
    Origin: _Form(b"O", _origin),
    Relation: _Form(b"R", _relation),
    Type: _Form(b"Y", _type),
    Insert: _Form(b"I", _insert),
    Update: _Form(b"U", _update),
    Delete: _Form(b"D", _delete),
    Truncate: _Form(b"T", _truncate),
    Message: _Form(b"M", _message),
    StreamStart: _Form(b"S", _stream_start),
    StreamStop: _Form(b"E", _stream_stop),
    StreamCommit: _Form(b"c", _stream_commit),
    StreamAbort: _Form(b"A", _stream_abort),
    BeginPrepare: _Form(b"b", _begin_prepare),
    Prepare: _Form(b"P", _prepare),
    CommitPrepared: _Form(b"K", _commit_prepared),
    RollbackPrepared: _Form(b"r", _rollback_prepared),
    StreamPrepare: _Form(b"p", _prepare),
}

_COPY_DATA: dict[type[CopyData | StandbyStatusUpdate], _Form] = {
    XLogData: _Form(b"w", _xlog_data),
    PrimaryKeepalive: _Form(b"k", _primary_keepalive),
    StandbyStatusUpdate: _Form(b"r", _standby_status_update),
}


def build_message(message: AnyMessage) -> bytes:
    """One pgoutput message. Raises ValueError for a value that the wire has no room for."""
    stream_xid: int | None = getattr(message, "stream_xid", None)
    form = _MESSAGES[type(message)]
    try:
        leading = b"" if stream_xid is None else pack(">I", stream_xid)
        return form.tag + leading + form.build(message)
    except StructError as error:
        raise ValueError(f"{type(message).__name__} has a value out of range: {error}") from None


def build_copy_data(envelope: CopyData | StandbyStatusUpdate) -> bytes:
    """The content of one CopyData message. Raises ValueError for a value that the wire has no room for."""
    form = _COPY_DATA[type(envelope)]
    try:
        return form.tag + form.build(envelope)
    except StructError as error:
        raise ValueError(f"{type(envelope).__name__} has a value out of range: {error}") from None
