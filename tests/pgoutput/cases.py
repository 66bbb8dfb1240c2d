"""One table of messages and their bytes, which drives the builder and the parser.

The bytes are written by hand from the manual's "Logical Replication Message Formats", one field to a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pgtide.lsn import LSN
from pgtide.pgoutput import (
    NULL,
    UNCHANGED,
    AnyMessage,
    Begin,
    BeginPrepare,
    Binary,
    Commit,
    CommitPrepared,
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
    Text,
    Truncate,
    Type,
    Update,
    XLogData,
)

LSN_1 = LSN.parse("16/B374D848")
LSN_2 = LSN.parse("16/B374D880")
WIRE_1 = "00000016B374D848"
WIRE_2 = "00000016B374D880"
TIME = 1_000_000
TIME_WIRE = "00000000000F4240"


@dataclass(frozen=True)
class Case:
    """A message, its bytes in hex, and what `parse_message` must be told to read them."""

    name: str
    message: AnyMessage
    hex: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)


IN_STREAM: dict[str, Any] = {"in_stream": True}
ID = RelationColumn("id", 23, -1, key=True)
NAME = RelationColumn("né", 1043, 24, key=False)

CASES = [
    Case("begin", Begin(LSN_1, TIME, 731), f"42 {WIRE_1} {TIME_WIRE} 000002DB"),
    Case(
        "begin at the ends of the ranges",
        Begin(LSN(2**64 - 1), -(2**63), 2**32 - 1),
        "42 FFFFFFFFFFFFFFFF 8000000000000000 FFFFFFFF",
    ),
    Case("commit", Commit(LSN_1, LSN_2, TIME), f"43 00 {WIRE_1} {WIRE_2} {TIME_WIRE}"),
    Case("origin", Origin(LSN_1, "east"), f"4F {WIRE_1} 6561737400"),
    Case("origin in a stream", Origin(LSN_1, "east"), f"4F {WIRE_1} 6561737400", IN_STREAM),
    Case(
        "relation",
        Relation(16385, "public", "t", "d", (ID, NAME)),
        "52 00004001 7075626C696300 7400 64 0002 01 696400 00000017 FFFFFFFF 00 6EC3A900 00000413 00000018",
    ),
    Case("relation without columns", Relation(1, "s", "t", "n", ()), "52 00000001 7300 7400 6E 0000"),
    Case("relation of pg_catalog", Relation(1, "pg_catalog", "t", "f", ()), "52 00000001 00 7400 66 0000"),
    Case(
        "relation in a stream",
        Relation(1, "s", "t", "i", (ID,), stream_xid=5),
        "52 00000005 00000001 7300 7400 69 0001 01 696400 00000017 FFFFFFFF",
        IN_STREAM,
    ),
    Case("type", Type(16390, "public", "mood"), "59 00004006 7075626C696300 6D6F6F6400"),
    Case("type of pg_catalog", Type(16390, "pg_catalog", "x"), "59 00004006 00 7800"),
    Case("type in a stream", Type(7, "s", "m", stream_xid=5), "59 00000005 00000007 7300 6D00", IN_STREAM),
    Case(
        "insert",
        Insert(16385, (Text(b"42"), NULL, Binary(b"\0\0\0\x2a"), UNCHANGED, Text(b""))),
        "49 00004001 4E 0005 74 00000002 3432 6E 62 00000004 0000002A 75 74 00000000",
    ),
    Case("insert without columns", Insert(1, ()), "49 00000001 4E 0000"),
    Case("insert in a stream", Insert(1, (NULL,), stream_xid=5), "49 00000005 00000001 4E 0001 6E", IN_STREAM),
    Case("update", Update(1, (Text(b"a"),)), "55 00000001 4E 0001 74 00000001 61"),
    Case(
        "update of the key",
        Update(1, (Text(b"b"), UNCHANGED), OldTuple((Text(b"a"), NULL), whole=False)),
        "55 00000001 4B 0002 74 00000001 61 6E 4E 0002 74 00000001 62 75",
    ),
    Case(
        "update with the whole old row",
        Update(1, (Binary(b"b"),), OldTuple((Binary(b"a"),), whole=True)),
        "55 00000001 4F 0001 62 00000001 61 4E 0001 62 00000001 62",
    ),
    Case(
        "update in a stream",
        Update(1, (NULL,), OldTuple((NULL,), whole=False), stream_xid=5),
        "55 00000005 00000001 4B 0001 6E 4E 0001 6E",
        IN_STREAM,
    ),
    Case(
        "delete by key",
        Delete(1, OldTuple((Text(b"a"), NULL), whole=False)),
        "44 00000001 4B 0002 74 00000001 61 6E",
    ),
    Case("delete of a whole row", Delete(1, OldTuple((NULL,), whole=True)), "44 00000001 4F 0001 6E"),
    Case(
        "delete in a stream",
        Delete(1, OldTuple((NULL,), whole=True), stream_xid=5),
        "44 00000005 00000001 4F 0001 6E",
        IN_STREAM,
    ),
    Case("truncate", Truncate((1, 2)), "54 00000002 00 00000001 00000002"),
    Case("truncate cascade", Truncate((1,), cascade=True), "54 00000001 01 00000001"),
    Case(
        "truncate cascade restart identity",
        Truncate((1,), cascade=True, restart_identity=True),
        "54 00000001 03 00000001",
    ),
    Case(
        "truncate in a stream",
        Truncate((1,), restart_identity=True, stream_xid=5),
        "54 00000005 00000001 02 00000001",
        IN_STREAM,
    ),
    Case(
        "message",
        Message(True, LSN_1, "app", b"\0\xff"),
        f"4D 01 {WIRE_1} 61707000 00000002 00FF",
    ),
    Case("message, not transactional", Message(False, LSN_1, "", b""), f"4D 00 {WIRE_1} 00 00000000"),
    Case(
        "message in a stream",
        Message(True, LSN_1, "a", b"b", stream_xid=5),
        f"4D 00000005 01 {WIRE_1} 6100 00000001 62",
        IN_STREAM,
    ),
    Case("stream start", StreamStart(731, first_segment=True), "53 000002DB 01"),
    Case("stream start, again", StreamStart(731, first_segment=False), "53 000002DB 00"),
    Case("stream stop", StreamStop(), "45", IN_STREAM),
    Case(
        "stream commit",
        StreamCommit(731, LSN_1, LSN_2, TIME),
        f"63 000002DB 00 {WIRE_1} {WIRE_2} {TIME_WIRE}",
    ),
    Case("stream abort", StreamAbort(731, 733), "41 000002DB 000002DD"),
    Case(
        "stream abort, parallel",
        StreamAbort(731, 733, LSN_1, TIME),
        f"41 000002DB 000002DD {WIRE_1} {TIME_WIRE}",
        {"streaming": "parallel"},
    ),
    Case(
        "begin prepare",
        BeginPrepare(LSN_1, LSN_2, TIME, 731, "g1"),
        f"62 {WIRE_1} {WIRE_2} {TIME_WIRE} 000002DB 673100",
    ),
    Case(
        "prepare",
        Prepare(LSN_1, LSN_2, TIME, 731, "g1"),
        f"50 00 {WIRE_1} {WIRE_2} {TIME_WIRE} 000002DB 673100",
    ),
    Case(
        "commit prepared",
        CommitPrepared(LSN_1, LSN_2, TIME, 731, "g1"),
        f"4B 00 {WIRE_1} {WIRE_2} {TIME_WIRE} 000002DB 673100",
    ),
    Case(
        "rollback prepared",
        RollbackPrepared(LSN_1, LSN_2, TIME, TIME + 1, 731, "g1"),
        f"72 00 {WIRE_1} {WIRE_2} {TIME_WIRE} 00000000000F4241 000002DB 673100",
    ),
    Case(
        "stream prepare",
        StreamPrepare(LSN_1, LSN_2, TIME, 731, "g1"),
        f"70 00 {WIRE_1} {WIRE_2} {TIME_WIRE} 000002DB 673100",
    ),
]


class EnvelopeCase(NamedTuple):
    """The content of a CopyData message and its bytes in hex."""

    name: str
    envelope: XLogData | PrimaryKeepalive | StandbyStatusUpdate
    hex: str

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.hex)


FROM_SERVER = [
    EnvelopeCase("xlog data", XLogData(LSN_1, LSN_2, TIME, b"E"), f"77 {WIRE_1} {WIRE_2} {TIME_WIRE} 45"),
    EnvelopeCase("xlog data, empty", XLogData(LSN_1, LSN_2, TIME, b""), f"77 {WIRE_1} {WIRE_2} {TIME_WIRE}"),
    EnvelopeCase("keepalive", PrimaryKeepalive(LSN_1, TIME, False), f"6B {WIRE_1} {TIME_WIRE} 00"),
    EnvelopeCase("keepalive, urgent", PrimaryKeepalive(LSN_1, TIME, True), f"6B {WIRE_1} {TIME_WIRE} 01"),
]

TO_SERVER = [
    EnvelopeCase(
        "status update",
        StandbyStatusUpdate(LSN_2, LSN_1, LSN(0), TIME),
        f"72 {WIRE_2} {WIRE_1} 0000000000000000 {TIME_WIRE} 00",
    ),
    EnvelopeCase(
        "status update with a request for a reply",
        StandbyStatusUpdate(LSN_1, LSN_1, LSN_1, TIME, reply_requested=True),
        f"72 {WIRE_1} {WIRE_1} {WIRE_1} {TIME_WIRE} 01",
    ),
]
