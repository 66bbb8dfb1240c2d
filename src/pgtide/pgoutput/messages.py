"""What pgoutput can say: one noun for each message of protocol versions 1 to 4, and the envelope around it.

The words and the order of the fields are those of the manual's "Logical Replication Message Formats" and
"Streaming Replication Protocol". These are values: they hold what stood on the wire and nothing that must
be looked up, so a tuple has no column names and a column no type. How they are read is in `parse`, how
they are written in `build`.

A change of a streamed transaction names the (sub)transaction that made it in `stream_xid`; everywhere
else that field is None. Times are microseconds since 2000-01-01 UTC, as Postgres counts them.

Invariant: messages are immutable and compare by content, and the repr of one shows no cell value, no
content of a logical decoding message and no payload, so that a message may stand in a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Literal, TypeAlias

from pgtide.lsn import LSN

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def timestamp_to_datetime(microseconds: int) -> datetime:
    """The time in UTC. Raises OverflowError outside the years 1 to 9999, which Postgres's range exceeds."""
    return EPOCH + timedelta(microseconds=microseconds)


def datetime_to_timestamp(moment: datetime) -> int:
    """Microseconds since 2000-01-01 UTC. Raises TypeError for a time without a zone."""
    return (moment - EPOCH) // _MICROSECOND


# Tuples


class Absent(Enum):
    """A column without a value in this tuple: it is null, or a TOASTed value that did not change."""

    NULL = "n"
    UNCHANGED = "u"


NULL: Final = Absent.NULL
UNCHANGED: Final = Absent.UNCHANGED


@dataclass(frozen=True, slots=True, repr=False)
class Text:
    """A value in its type's text form, in the client encoding."""

    data: bytes

    def __repr__(self) -> str:
        return f"Text({len(self.data)} bytes)"


@dataclass(frozen=True, slots=True, repr=False)
class Binary:
    """A value as its type's send function gave it."""

    data: bytes

    def __repr__(self) -> str:
        return f"Binary({len(self.data)} bytes)"


ColumnValue: TypeAlias = Literal[Absent.NULL, Absent.UNCHANGED] | Text | Binary
TupleData: TypeAlias = tuple[ColumnValue, ...]


@dataclass(frozen=True, slots=True)
class OldTuple:
    """The row before a change.

    `whole` is true for a table with REPLICA IDENTITY FULL. Otherwise the tuple holds the key alone: it
    still has one entry for each column, and those outside the key are NULL whatever the row had there.
    """

    values: TupleData
    whole: bool


# Transactions


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins. `final_lsn` is where its commit record stands."""

    final_lsn: LSN
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is complete. `end_lsn` is the first byte after its commit record."""

    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came here by replication from `name`, where it was committed at `origin_lsn`."""

    origin_lsn: LSN
    name: str


# Relations and types


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One published column. `key`: part of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The shape of a table, sent before its first change and again after it may have changed.

    `replica_identity` is pg_class.relreplident: d(efault), n(othing), f(ull) or i(ndex).
    """

    relation_oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in. For a domain it is the name of the base type."""

    type_oid: int
    namespace: str
    name: str
    stream_xid: int | None = None


# Changes


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_oid: int
    new: TupleData
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old` is there when the key changed, or always with REPLICA IDENTITY FULL."""

    relation_oid: int
    new: TupleData
    old: OldTuple | None = None
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone."""

    relation_oid: int
    old: OldTuple
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by one command; those reached by CASCADE are listed too, if they are published."""

    relation_oids: tuple[int, ...]
    cascade: bool = False
    restart_identity: bool = False
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """What pg_logical_emit_message wrote.

    One that is not transactional arrives as soon as it is decoded, outside of any transaction, and stays
    even if the transaction that wrote it rolls back.
    """

    transactional: bool
    lsn: LSN
    prefix: str
    content: bytes = field(repr=False)
    stream_xid: int | None = None


# Streamed transactions (protocol version 2)


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A block of changes of an unfinished transaction follows, up to StreamStop."""

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The block ends; others, or whole transactions, may follow before the next one."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """A streamed transaction is committed."""

    xid: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A streamed transaction is rolled back, or its subtransaction `subxid` if that is not `xid`.

    `abort_lsn` and `abort_time` are sent with parallel streaming (protocol version 4) and are None without.
    """

    xid: int
    subxid: int
    abort_lsn: LSN | None = None
    abort_time: int | None = None


# Two-phase transactions (protocol version 3, or any version from a slot that was made with two_phase)


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """A transaction that ends in Prepare begins. `prepare_lsn` is where its prepare record stands."""

    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """The transaction is complete and prepared: whether it counts is told later."""

    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """A prepared transaction is committed."""

    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """A prepared transaction is rolled back."""

    prepare_end_lsn: LSN
    rollback_end_lsn: LSN
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """A streamed transaction is complete and prepared."""

    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


Change: TypeAlias = Insert | Update | Delete | Truncate
AnyMessage: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Change
    | Message
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)


# The envelope: what CopyData carries while a slot is read


@dataclass(frozen=True, slots=True)
class XLogData:
    """One pgoutput message, still as bytes. `wal_end` is the server's end of the log when it sent this."""

    start_lsn: LSN
    wal_end: LSN
    send_time: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PrimaryKeepalive:
    """The server is alive, has nothing up to `wal_end`, and may ask for an answer before it hangs up."""

    wal_end: LSN
    send_time: int
    reply_requested: bool


@dataclass(frozen=True, slots=True)
class StandbyStatusUpdate:
    """Our answer: the first byte not yet written, not yet flushed and not yet applied here.

    The server may forget its log before `flush_lsn`: what is acknowledged must be on disk.
    """

    write_lsn: LSN
    flush_lsn: LSN
    apply_lsn: LSN
    send_time: int
    reply_requested: bool = False


CopyData: TypeAlias = XLogData | PrimaryKeepalive
