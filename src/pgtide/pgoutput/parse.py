"""Bytes to messages.

One reader for each message, found in a literal table by the message's first byte. A reader knows the order
of its fields; the cursor under it knows the bytes, and is the only place that can run off their end. Whole
messages come in: Postgres frames them, so there is no waiting for more.

The one thing about a message that its bytes do not tell is whether it stands inside a stream block, where
some messages carry a transaction id after their tag. `MessageParser` follows the blocks; nothing else does.

Rules of this file:

1. Bad bytes raise ProtocolError and nothing else. It names message, field and byte offset, and but for an
   unknown tag never shows what was found there: bytes of a broken message may be cell values.
2. No length or count from the wire is trusted before it is compared with the bytes that are there, so
   time and memory are bounded by the size of the message.
3. Nothing is skipped or ignored: unknown flags, kinds and trailing bytes are refused. Hence building what
   was parsed gives the same bytes. (One exception: a namespace spelled pg_catalog, which Postgres itself
   writes as the empty string.)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from struct import Struct, calcsize
from typing import Any, Literal, NamedTuple, TypeAlias

from pgtide.errors import ProtocolError
from pgtide.lsn import LSN
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

Streaming: TypeAlias = Literal["off", "on", "parallel"]
"""The value of pgoutput's option `streaming`."""

NEWEST_PROTOCOL_VERSION = 4
_STREAMING_SINCE: dict[Streaming, int] = {"off": 1, "on": 2, "parallel": 4}

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_LSN_AND_TIME = Struct(">Qq")
_LSN_TIME_XID = Struct(">QqI")
_TWO_LSNS_AND_TIME = Struct(">QQq")
_TWO_LSNS_TIME_XID = Struct(">QQqI")
_TWO_LSNS_TWO_TIMES_XID = Struct(">QQqqI")
_TYPE_AND_MODIFIER = Struct(">Ii")
_TWO_XIDS = Struct(">II")
_LSN = Struct(">Q")

_KEY, _OLD, _NEW = b"KON"
_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"


class _Cursor:
    """A place in the bytes of one message, which moves on as fields are taken."""

    __slots__ = ("data", "message", "offset", "parallel", "stream_xid")

    def __init__(self, data: bytes, message: str) -> None:
        self.data = data
        self.message = message
        self.offset = 1  # after the tag
        self.stream_xid: int | None = None
        self.parallel = False

    def malformed(self, field: str, problem: str, *, at: int | None = None) -> ProtocolError:
        offset = self.offset if at is None else at
        return ProtocolError(
            f"malformed {self.message} message: {field} {problem}",
            detail=f"at byte {offset} of {len(self.data)}",
        )

    def take(self, layout: Struct, *fields: str) -> tuple[Any, ...]:
        """The values of adjacent fields of fixed width; `fields` names them, one for each code of `layout`."""
        start = self.offset
        if len(self.data) - start < layout.size:
            raise self._cut_short(layout, fields)
        self.offset = start + layout.size
        return layout.unpack_from(self.data, start)

    def _cut_short(self, layout: Struct, fields: tuple[str, ...]) -> ProtocolError:
        start = self.offset
        for field, code in zip(fields, layout.format[1:], strict=True):
            end = start + calcsize(">" + code)
            if end > len(self.data):
                return self.malformed(field, "is cut short", at=start)
            start = end
        raise AssertionError("the layout fits")

    def byte(self, field: str) -> int:
        if self.offset >= len(self.data):
            raise self.malformed(field, "is cut short")
        self.offset += 1
        return self.data[self.offset - 1]

    def flags(self, field: str, known: int) -> int:
        """A byte of flags, none of them outside of `known`."""
        flags = self.byte(field)
        if flags & ~known:
            raise self.malformed(field, "has an unknown flag", at=self.offset - 1)
        return flags

    def boolean(self, field: str) -> bool:
        return bool(self.flags(field, 1))

    def string(self, field: str) -> str:
        """UTF-8 up to a zero byte."""
        start = self.offset
        end = self.data.find(b"\0", start)
        if end < 0:
            raise self.malformed(field, "is not terminated")
        text = _decoded(self.data[start:end])
        if text is None:
            raise self.malformed(field, "is not valid UTF-8")
        self.offset = end + 1
        return text

    def namespace(self) -> str:
        # "Namespace (empty string for pg_catalog)."
        return self.string("namespace") or "pg_catalog"

    def count(self, field: str, layout: Struct) -> int:
        """A count or a length, not negative."""
        count: int = self.take(layout, field)[0]
        if count < 0:
            raise self.malformed(field, "is negative", at=self.offset - layout.size)
        return count

    def sized(self, field: str) -> bytes:
        """Bytes behind their length."""
        length = self.count(f"length of {field}", _INT32)
        start = self.offset
        if len(self.data) - start < length:
            raise self.malformed(field, "is cut short")
        self.offset = start + length
        return self.data[start : self.offset]

    def finish(self) -> None:
        if self.offset != len(self.data):
            raise self.malformed("end", "is followed by more bytes")


def _decoded(raw: bytes) -> str | None:
    """The text, or None if it is none. A UnicodeDecodeError would carry the bytes along with our error."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


# Transactions


def _begin(cursor: _Cursor) -> Begin:
    final_lsn, commit_time, xid = cursor.take(_LSN_TIME_XID, "final_lsn", "commit_time", "xid")
    return Begin(LSN(final_lsn), commit_time, xid)


def _commit(cursor: _Cursor) -> Commit:
    cursor.flags("flags", 0)  # "Flags; currently unused."
    commit_lsn, end_lsn, commit_time = cursor.take(_TWO_LSNS_AND_TIME, "commit_lsn", "end_lsn", "commit_time")
    return Commit(LSN(commit_lsn), LSN(end_lsn), commit_time)


def _origin(cursor: _Cursor) -> Origin:
    (origin_lsn,) = cursor.take(_LSN, "origin_lsn")
    return Origin(LSN(origin_lsn), cursor.string("name"))


# Relations and types


def _relation(cursor: _Cursor) -> Relation:
    (relation_oid,) = cursor.take(_UINT32, "relation_oid")
    namespace, name = cursor.namespace(), cursor.string("name")
    replica_identity = cursor.byte("replica_identity")
    if replica_identity not in b"dnfi":
        raise cursor.malformed("replica_identity", "is unknown", at=cursor.offset - 1)
    count = cursor.count("number of columns", _INT16)
    columns = tuple([_relation_column(cursor) for _ in range(count)])
    return Relation(relation_oid, namespace, name, chr(replica_identity), columns, cursor.stream_xid)


def _relation_column(cursor: _Cursor) -> RelationColumn:
    key = cursor.boolean("column flags")
    name = cursor.string("column name")
    type_oid, type_modifier = cursor.take(_TYPE_AND_MODIFIER, "column type_oid", "column type_modifier")
    return RelationColumn(name, type_oid, type_modifier, key)


def _type(cursor: _Cursor) -> Type:
    (type_oid,) = cursor.take(_UINT32, "type_oid")
    return Type(type_oid, cursor.namespace(), cursor.string("name"), cursor.stream_xid)


# Changes


def _tuple_data(cursor: _Cursor) -> TupleData:
    count = cursor.count("number of columns", _INT16)
    return tuple([_column_value(cursor) for _ in range(count)])


def _column_value(cursor: _Cursor) -> ColumnValue:
    kind = cursor.byte("column kind")
    if kind == _BINARY:
        return Binary(cursor.sized("column value"))
    if kind == _TEXT:
        return Text(cursor.sized("column value"))
    if kind == _NULL:
        return NULL
    if kind == _UNCHANGED:
        return UNCHANGED
    raise cursor.malformed("column kind", "is unknown", at=cursor.offset - 1)


def _insert(cursor: _Cursor) -> Insert:
    (relation_oid,) = cursor.take(_UINT32, "relation_oid")
    if cursor.byte("tuple kind") != _NEW:
        raise cursor.malformed("tuple kind", "is not a new tuple", at=cursor.offset - 1)
    return Insert(relation_oid, _tuple_data(cursor), cursor.stream_xid)


def _update(cursor: _Cursor) -> Update:
    (relation_oid,) = cursor.take(_UINT32, "relation_oid")
    kind = cursor.byte("tuple kind")
    old = None
    # "The Update message may contain either a 'K' message part or an 'O' message part or neither of them,
    # but never both of them."
    if kind in (_KEY, _OLD):
        old = OldTuple(_tuple_data(cursor), whole=kind == _OLD)
        kind = cursor.byte("tuple kind")
    if kind != _NEW:
        raise cursor.malformed("tuple kind", "is not a new tuple", at=cursor.offset - 1)
    return Update(relation_oid, _tuple_data(cursor), old, cursor.stream_xid)


def _delete(cursor: _Cursor) -> Delete:
    (relation_oid,) = cursor.take(_UINT32, "relation_oid")
    kind = cursor.byte("tuple kind")
    if kind not in (_KEY, _OLD):
        raise cursor.malformed("tuple kind", "is neither a key nor an old tuple", at=cursor.offset - 1)
    return Delete(relation_oid, OldTuple(_tuple_data(cursor), whole=kind == _OLD), cursor.stream_xid)


def _truncate(cursor: _Cursor) -> Truncate:
    count = cursor.count("number of relations", _INT32)
    # "Option bits for TRUNCATE: 1 for CASCADE, 2 for RESTART IDENTITY"
    flags = cursor.flags("options", 3)
    if len(cursor.data) - cursor.offset < count * _UINT32.size:
        raise cursor.malformed("relation_oids", "are cut short")
    relation_oids = tuple([cursor.take(_UINT32, "relation_oids")[0] for _ in range(count)])
    return Truncate(relation_oids, bool(flags & 1), bool(flags & 2), cursor.stream_xid)


def _message(cursor: _Cursor) -> Message:
    transactional = cursor.boolean("flags")
    (lsn,) = cursor.take(_LSN, "lsn")
    prefix = cursor.string("prefix")
    return Message(transactional, LSN(lsn), prefix, cursor.sized("content"), cursor.stream_xid)


# Streamed transactions


def _stream_start(cursor: _Cursor) -> StreamStart:
    (xid,) = cursor.take(_UINT32, "xid")
    return StreamStart(xid, cursor.boolean("first_segment"))


def _stream_stop(cursor: _Cursor) -> StreamStop:
    return StreamStop()


def _stream_commit(cursor: _Cursor) -> StreamCommit:
    (xid,) = cursor.take(_UINT32, "xid")
    commit = _commit(cursor)
    return StreamCommit(xid, commit.commit_lsn, commit.end_lsn, commit.commit_time)


def _stream_abort(cursor: _Cursor) -> StreamAbort:
    xid, subxid = cursor.take(_TWO_XIDS, "xid", "subxid")
    if not cursor.parallel:
        return StreamAbort(xid, subxid)
    # "This field is available since protocol version 4": only when streaming is set to parallel.
    abort_lsn, abort_time = cursor.take(_LSN_AND_TIME, "abort_lsn", "abort_time")
    return StreamAbort(xid, subxid, LSN(abort_lsn), abort_time)


# Two-phase transactions


def _prepared(cursor: _Cursor, which: str) -> tuple[LSN, LSN, int, int, str]:
    """The fields that the messages of a two-phase transaction share; `which`: prepare or commit."""
    lsn, end_lsn, time, xid = cursor.take(_TWO_LSNS_TIME_XID, f"{which}_lsn", "end_lsn", f"{which}_time", "xid")
    return LSN(lsn), LSN(end_lsn), time, xid, cursor.string("gid")


def _begin_prepare(cursor: _Cursor) -> BeginPrepare:
    return BeginPrepare(*_prepared(cursor, "prepare"))


def _prepare(cursor: _Cursor) -> Prepare:
    cursor.flags("flags", 0)
    return Prepare(*_prepared(cursor, "prepare"))


def _commit_prepared(cursor: _Cursor) -> CommitPrepared:
    cursor.flags("flags", 0)
    return CommitPrepared(*_prepared(cursor, "commit"))


def _rollback_prepared(cursor: _Cursor) -> RollbackPrepared:
    cursor.flags("flags", 0)
    fields = ("prepare_end_lsn", "rollback_end_lsn", "prepare_time", "rollback_time", "xid")
    prepare_end, rollback_end, prepared, rolled_back, xid = cursor.take(_TWO_LSNS_TWO_TIMES_XID, *fields)
    gid = cursor.string("gid")
    return RollbackPrepared(LSN(prepare_end), LSN(rollback_end), prepared, rolled_back, xid, gid)


def _stream_prepare(cursor: _Cursor) -> StreamPrepare:
    cursor.flags("flags", 0)
    return StreamPrepare(*_prepared(cursor, "prepare"))


# Dispatch


class _Place(Enum):
    """Where a message may stand with respect to stream blocks."""

    OUTSIDE = auto()
    INSIDE = auto()
    BOTH = auto()
    BOTH_WITH_XID = auto()  # the same message, with a transaction id after the tag when inside


class _Form(NamedTuple):
    """A message's reader, where it may stand, and whether it comes with streaming only."""

    read: Callable[[_Cursor], AnyMessage]
    name: str
    place: _Place
    streaming: bool = False


# There is no protocol version in this table. Streaming needs version 2, and parallel streaming 4, to be
# asked for. The two-phase messages belong to version 3, but a slot that was made with two_phase sends them
# whatever version is asked for.
_FORMS: dict[int, _Form] = {
    ord("B"): _Form(_begin, "Begin", _Place.OUTSIDE),
    ord("C"): _Form(_commit, "Commit", _Place.OUTSIDE),
    ord("O"): _Form(_origin, "Origin", _Place.BOTH),
    ord("R"): _Form(_relation, "Relation", _Place.BOTH_WITH_XID),
    ord("Y"): _Form(_type, "Type", _Place.BOTH_WITH_XID),
    ord("I"): _Form(_insert, "Insert", _Place.BOTH_WITH_XID),
    ord("U"): _Form(_update, "Update", _Place.BOTH_WITH_XID),
    ord("D"): _Form(_delete, "Delete", _Place.BOTH_WITH_XID),
    ord("T"): _Form(_truncate, "Truncate", _Place.BOTH_WITH_XID),
    ord("M"): _Form(_message, "Message", _Place.BOTH_WITH_XID),
    ord("S"): _Form(_stream_start, "StreamStart", _Place.OUTSIDE, streaming=True),
    ord("E"): _Form(_stream_stop, "StreamStop", _Place.INSIDE, streaming=True),
    ord("c"): _Form(_stream_commit, "StreamCommit", _Place.OUTSIDE, streaming=True),
    ord("A"): _Form(_stream_abort, "StreamAbort", _Place.OUTSIDE, streaming=True),
    ord("b"): _Form(_begin_prepare, "BeginPrepare", _Place.OUTSIDE),
    ord("P"): _Form(_prepare, "Prepare", _Place.OUTSIDE),
    ord("K"): _Form(_commit_prepared, "CommitPrepared", _Place.OUTSIDE),
    ord("r"): _Form(_rollback_prepared, "RollbackPrepared", _Place.OUTSIDE),
    ord("p"): _Form(_stream_prepare, "StreamPrepare", _Place.OUTSIDE, streaming=True),
}


def parse_message(data: bytes | memoryview, *, in_stream: bool = False, streaming: Streaming = "on") -> AnyMessage:
    """Read one whole pgoutput message. Raises ProtocolError for anything else.

    `in_stream` says that the message stands between StreamStart and StreamStop. `streaming` is what was
    asked of the server, and a message that this does not allow is refused. Who reads a sequence of
    messages wants a `MessageParser`.
    """
    data = bytes(data)
    form = _form_of(data)
    if form.streaming and streaming == "off":
        raise ProtocolError(f"unexpected {form.name} message: streaming was not asked for")
    if form.place is (_Place.OUTSIDE if in_stream else _Place.INSIDE):
        raise ProtocolError(f"unexpected {form.name} message {'inside' if in_stream else 'outside'} a stream")
    cursor = _Cursor(data, form.name)
    cursor.parallel = streaming == "parallel"
    if in_stream and form.place is _Place.BOTH_WITH_XID:
        (cursor.stream_xid,) = cursor.take(_UINT32, "stream_xid")
    message = form.read(cursor)
    cursor.finish()
    return message


def _form_of(data: bytes) -> _Form:
    if not data:
        raise ProtocolError("empty message")
    form = _FORMS.get(data[0])
    if form is None:
        raise ProtocolError(f"unknown message tag 0x{data[0]:02x}", detail=f"at byte 0 of {len(data)}")
    return form


class MessageParser:
    """Reads the messages of one replication connection, in order.

    It holds all that a message's meaning owes to those before it: whether a stream block is open. A message
    that is refused leaves that as it was. A new connection begins outside of any block and so takes a new
    parser.
    """

    def __init__(self, *, protocol_version: int, streaming: Streaming = "off") -> None:
        """Raises ValueError for options that a server would refuse."""
        if not 1 <= protocol_version <= NEWEST_PROTOCOL_VERSION:
            raise ValueError(f"protocol version {protocol_version} is not in 1..{NEWEST_PROTOCOL_VERSION}")
        needed = _STREAMING_SINCE.get(streaming)
        if needed is None:
            raise ValueError(f"streaming is one of {', '.join(_STREAMING_SINCE)}, not {streaming!r}")
        if protocol_version < needed:
            raise ValueError(f"streaming {streaming} needs protocol version {needed}, not {protocol_version}")
        self.protocol_version = protocol_version
        self.streaming: Streaming = streaming
        self._stream_xid: int | None = None

    @property
    def stream_xid(self) -> int | None:
        """The top-level transaction of the open stream block, or None outside of blocks."""
        return self._stream_xid

    def parse(self, data: bytes | memoryview) -> AnyMessage:
        """Read the next message. Raises ProtocolError if it is malformed or may not stand here."""
        message = parse_message(
            data,
            in_stream=self._stream_xid is not None,
            streaming=self.streaming,
        )
        if isinstance(message, StreamStart):
            self._stream_xid = message.xid
        elif isinstance(message, StreamStop):
            self._stream_xid = None
        return message


# The envelope


def _xlog_data(cursor: _Cursor) -> XLogData:
    start_lsn, wal_end, send_time = cursor.take(_TWO_LSNS_AND_TIME, "start_lsn", "wal_end", "send_time")
    payload = cursor.data[cursor.offset :]
    cursor.offset = len(cursor.data)
    return XLogData(LSN(start_lsn), LSN(wal_end), send_time, payload)


def _primary_keepalive(cursor: _Cursor) -> PrimaryKeepalive:
    wal_end, send_time = cursor.take(_LSN_AND_TIME, "wal_end", "send_time")
    return PrimaryKeepalive(LSN(wal_end), send_time, cursor.boolean("reply_requested"))


def parse_copy_data(data: bytes | memoryview) -> CopyData:
    """Read the content of one CopyData message from the server. Raises ProtocolError for anything else."""
    data = bytes(data)
    tag = data[:1]
    envelope: CopyData
    if tag == b"w":
        cursor = _Cursor(data, "XLogData")
        envelope = _xlog_data(cursor)
    elif tag == b"k":
        cursor = _Cursor(data, "PrimaryKeepalive")
        envelope = _primary_keepalive(cursor)
    elif data:
        raise ProtocolError(f"unknown copy data tag 0x{data[0]:02x}", detail=f"at byte 0 of {len(data)}")
    else:
        raise ProtocolError("empty copy data")
    cursor.finish()
    return envelope
