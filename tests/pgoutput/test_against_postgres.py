"""pgoutput as Postgres itself speaks it, in every protocol version.

Each test makes changes, reads them from a slot with each set of options and asserts the messages. Reading
peeks, so that all versions are compared on the same log, and checks each message's bytes on the way: what
was parsed must build again to what the server sent.
"""

from __future__ import annotations

import select
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, TypeVar

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import ExecStatus, PGconn

from pgtide.embedded.postgres import EmbeddedPostgres
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
    MessageParser,
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
    Streaming,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Text,
    Truncate,
    Type,
    Update,
    XLogData,
    build_copy_data,
    build_message,
    parse_copy_data,
    timestamp_to_datetime,
)
from tests.fixtures.waiting import wait_until

M = TypeVar("M")

SLOT = "the_slot"
ROWS = 2_000  # of some 150 bytes: several times the 64 kB from which a transaction is streamed


@dataclass(frozen=True)
class Options:
    """What is asked of pgoutput."""

    version: int
    streaming: Streaming = "off"
    binary: bool = False
    two_phase: bool = False

    def __str__(self) -> str:
        parts = [f"v{self.version}", self.streaming, "binary" * self.binary, "two_phase" * self.two_phase]
        return "-".join(filter(None, parts))

    def pairs(self) -> dict[str, str]:
        pairs = {"proto_version": str(self.version), "publication_names": "everything", "messages": "true"}
        if self.streaming != "off":
            pairs["streaming"] = self.streaming
        if self.binary:
            pairs["binary"] = "true"
        if self.two_phase:
            pairs["two_phase"] = "true"
        return pairs

    def parser(self) -> MessageParser:
        return MessageParser(protocol_version=self.version, streaming=self.streaming)


EVERY_VERSION = [
    Options(1),
    Options(2),
    Options(3),
    Options(4),
    Options(1, binary=True),
    Options(2, "on", binary=True),
    Options(3, "on", two_phase=True),
    Options(4, "parallel", binary=True, two_phase=True),
]
STREAMING = [Options(2, "on"), Options(3, "on", binary=True), Options(4, "on"), Options(4, "parallel", binary=True)]


@dataclass(frozen=True)
class Source:
    """A database with a publication of all tables and a slot."""

    dsn: str
    connection: psycopg.Connection

    def run(self, *statements: LiteralString) -> None:
        """Run the statements in one transaction."""
        with self.connection.transaction():
            for statement in statements:
                self.connection.execute(statement)

    def one(self, query: LiteralString) -> Any:
        row = self.connection.execute(query).fetchone()
        assert row is not None
        return row[0]

    def frames(self, options: Options, *, immediately: bool = False) -> list[bytes]:
        """All that the slot holds, with streaming as early as it can be, or from the first change on."""
        flat = [part for pair in options.pairs().items() for part in pair]
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("set logical_decoding_work_mem = '64kB'")
            if immediately:
                connection.execute("set debug_logical_replication_streaming = 'immediate'")
            rows = connection.execute(
                "select data from pg_logical_slot_peek_binary_changes(%s, null, null, variadic %s::text[])",
                [SLOT, flat],
                binary=True,
            ).fetchall()
        return [row[0] for row in rows]

    def messages(self, options: Options, *, immediately: bool = False) -> list[AnyMessage]:
        parser = options.parser()
        return [parsed(parser, frame) for frame in self.frames(options, immediately=immediately)]

    def forget(self) -> None:
        """Move the slot behind all that was done so far."""
        self.connection.execute("select pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", [SLOT])


def parsed(parser: MessageParser, frame: bytes) -> AnyMessage:
    message = parser.parse(frame)
    assert build_message(message) == frame
    return message


@contextmanager
def source_of(dsn: str, *, two_phase: bool) -> Iterator[Source]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create publication everything for all tables")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", [SLOT, two_phase])
        yield Source(dsn, connection)


@pytest.fixture
def source(database: str) -> Iterator[Source]:
    with source_of(database, two_phase=True) as source:
        yield source


@pytest.fixture(scope="module")
def two_phase_server() -> Iterator[EmbeddedPostgres]:
    """A server that can prepare transactions."""
    with EmbeddedPostgres(18, settings={"max_prepared_transactions": "10"}, durable=False) as server:
        yield server


@contextmanager
def source_on(server: EmbeddedPostgres, *, two_phase: bool) -> Iterator[Source]:
    """A source in a new database, which stays; the slot and prepared transactions go."""
    name = f"prepared_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    with source_of(server.dsn_for(name), two_phase=two_phase) as source:
        yield source
        left = source.connection.execute("select gid from pg_prepared_xacts where database = current_database()")
        for (gid,) in left.fetchall():
            source.connection.execute(sql.SQL("rollback prepared {}").format(gid))
        source.connection.execute("select pg_drop_replication_slot(%s)", [SLOT])


@pytest.fixture
def two_phase_source(two_phase_server: EmbeddedPostgres) -> Iterator[Source]:
    with source_on(two_phase_server, two_phase=True) as source:
        yield source


@pytest.fixture
def one_phase_source(two_phase_server: EmbeddedPostgres) -> Iterator[Source]:
    """A source whose slot does not tell two phases, on a server that has them."""
    with source_on(two_phase_server, two_phase=False) as source:
        yield source


def kinds(messages: Sequence[AnyMessage]) -> list[str]:
    return [type(message).__name__ for message in messages]


def only(kind: type[M], messages: list[AnyMessage]) -> list[M]:
    return [message for message in messages if isinstance(message, kind)]


def contents(messages: list[AnyMessage]) -> list[AnyMessage]:
    """What is left without the borders of transactions."""
    return [message for message in messages if not isinstance(message, Begin | Commit)]


every_version = pytest.mark.parametrize("options", EVERY_VERSION, ids=str)
every_streaming = pytest.mark.parametrize("options", STREAMING, ids=str)


@every_version
def test_a_transaction_has_its_place_and_time_at_both_ends(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key)")
    source.forget()
    source.run("insert into t values (1)")
    xid = source.one("select xmin::text::int from t")
    begin, _, _, commit = source.messages(options)
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert begin.xid == xid
    assert begin.final_lsn == commit.commit_lsn < commit.end_lsn
    assert commit.end_lsn <= LSN.parse(source.one("select pg_current_wal_insert_lsn()::text"))
    assert begin.commit_time == commit.commit_time
    assert abs(datetime.now(UTC) - timestamp_to_datetime(commit.commit_time)) < timedelta(minutes=1)


@every_version
def test_a_relation_tells_columns_types_and_key(source: Source, options: Options) -> None:
    source.run(
        """create type "Mood" as enum ('sad')""",
        "create domain small as int check (value < 10)",
        """create schema "ünder" """,
        """create table "ünder"."T" (id int primary key, name varchar(20), mood "Mood", small small, gone int)""",
        """alter table "ünder"."T" drop column gone""",
    )
    source.run("""insert into "ünder"."T" values (1, 'a', 'sad', 2)""")
    oid = source.one("""select '"ünder"."T"'::regclass::oid::int8""")
    mood = source.one("""select '"Mood"'::regtype::oid::int8""")
    small = source.one("select 'small'::regtype::oid::int8")
    begin, *types, relation, insert, commit = source.messages(options)
    assert (kinds([begin]), kinds([commit])) == (["Begin"], ["Commit"])
    assert types == [Type(mood, "public", "Mood"), Type(small, "pg_catalog", "int4")]
    assert relation == Relation(
        oid,
        "ünder",
        "T",
        "d",
        (
            RelationColumn("id", 23, -1, key=True),
            RelationColumn("name", 1043, 24, key=False),
            RelationColumn("mood", mood, -1, key=False),
            RelationColumn("small", small, -1, key=False),
        ),
    )
    assert isinstance(insert, Insert)
    assert insert.relation_oid == oid


@pytest.mark.parametrize(
    ("setup", "identity", "keys"),
    [
        ("create table t (a int primary key, b int not null)", "d", [True, False]),
        ("create table t (a int, b int not null)", "d", [False, False]),
        ("create table t (a int, b int); alter table t replica identity full", "f", [True, True]),
        ("create table t (a int, b int); alter table t replica identity nothing", "n", [False, False]),
        (
            "create table t (a int, b int not null unique); alter table t replica identity using index t_b_key",
            "i",
            [False, True],
        ),
    ],
)
def test_a_relation_tells_its_replica_identity(
    source: Source, setup: LiteralString, identity: str, keys: list[bool]
) -> None:
    source.run(setup, "insert into t values (1, 2)")
    (relation,) = only(Relation, source.messages(Options(4)))
    assert relation.replica_identity == identity
    assert [column.key for column in relation.columns] == keys


@every_version
def test_values_come_in_the_form_asked_for(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key, name text, raw bytea, gone text, item aclitem)")
    source.run("insert into t values (42, 'né', '\\x00ff', null, 'postgres=r/postgres')")
    (insert,) = only(Insert, source.messages(options))
    item = Text(b"postgres=r/postgres")  # this type has no send function
    if options.binary:
        assert insert.new == (Binary(b"\0\0\0\x2a"), Binary("né".encode()), Binary(b"\0\xff"), NULL, item)
    else:
        assert insert.new == (Text(b"42"), Text("né".encode()), Text(b"\\x00ff"), NULL, item)


@every_version
def test_an_update_has_the_old_key_only_if_it_changed(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key, name text)", "insert into t values (1, 'a')")
    source.forget()
    source.run("update t set name = 'b'", "update t set id = 2")
    one, two = (Binary(b"\0\0\0\1"), Binary(b"\0\0\0\2")) if options.binary else (Text(b"1"), Text(b"2"))
    name = Binary(b"b") if options.binary else Text(b"b")
    relation, *updates = contents(source.messages(options))
    assert isinstance(relation, Relation)
    assert updates == [
        Update(relation.relation_oid, (one, name)),
        Update(relation.relation_oid, (two, name), OldTuple((one, NULL), whole=False)),
    ]


@every_version
def test_a_full_replica_identity_gives_the_whole_old_row(source: Source, options: Options) -> None:
    source.run(
        "create table t (id int, name text)",
        "alter table t replica identity full",
        "insert into t values (1, null)",
    )
    source.forget()
    source.run("update t set name = 'b'", "delete from t")
    one, b = (Binary(b"\0\0\0\1"), Binary(b"b")) if options.binary else (Text(b"1"), Text(b"b"))
    relation, update, delete = contents(source.messages(options))
    assert isinstance(relation, Relation)
    assert update == Update(relation.relation_oid, (one, b), OldTuple((one, NULL), whole=True))
    assert delete == Delete(relation.relation_oid, OldTuple((one, b), whole=True))


@every_version
def test_a_delete_has_the_key_alone(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key, name text)", "insert into t values (1, 'a')")
    source.forget()
    source.run("delete from t")
    relation, delete = contents(source.messages(options))
    assert isinstance(relation, Relation)
    one = Binary(b"\0\0\0\1") if options.binary else Text(b"1")
    assert delete == Delete(relation.relation_oid, OldTuple((one, NULL), whole=False))


LARGE: LiteralString = "(select string_agg(md5(n::text), '') from generate_series(1, 400) n)"


@every_version
@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_toasted_value_that_did_not_change_is_not_sent(source: Source, options: Options, identity: str) -> None:
    source.run(
        "create table t (id int primary key, large text, n int)",
        "alter table t alter large set storage external",
        "alter table t replica identity full" if identity == "full" else "select 1",
        f"insert into t select 1, {LARGE}, 1",
    )
    source.forget()
    source.run("update t set n = 2")
    (update,) = only(Update, source.messages(options))
    assert update.new[1] is UNCHANGED
    if identity == "full":
        assert update.old is not None
        assert update.old.values[1] in (Text(large(source)), Binary(large(source)))


def large(source: Source) -> bytes:
    value: str = source.one("select large from t")
    assert len(value) == 400 * 32
    return value.encode()


@every_version
def test_a_truncate_lists_its_tables_and_options(source: Source, options: Options) -> None:
    source.run(
        "create table parent (id int primary key)",
        "create table child (id int primary key references parent)",
        "create table other (id int primary key)",
    )
    parent, child, other = (
        source.one("select 'parent'::regclass::oid::int8"),
        source.one("select 'child'::regclass::oid::int8"),
        source.one("select 'other'::regclass::oid::int8"),
    )
    source.run("truncate other")
    source.run("truncate parent cascade")
    source.run("truncate parent, child, other restart identity")
    first, second, third = only(Truncate, source.messages(options))
    assert first == Truncate((other,))
    assert second == Truncate((parent, child), cascade=True)
    assert third == Truncate((parent, child, other), restart_identity=True)


@every_version
def test_a_logical_message_comes_with_its_transaction_or_at_once(source: Source, options: Options) -> None:
    source.run("select pg_logical_emit_message(true, 'app', '\\x00ff'::bytea)")
    with source.connection.transaction(force_rollback=True):
        source.connection.execute("select pg_logical_emit_message(true, 'app', 'lost')")
        source.connection.execute("select pg_logical_emit_message(false, 'app', 'kept', true)")
    begin, inside, commit, outside = source.messages(options)
    assert kinds([begin, commit]) == ["Begin", "Commit"]
    assert isinstance(inside, Message)
    assert (inside.transactional, inside.prefix, inside.content) == (True, "app", b"\0\xff")
    assert isinstance(outside, Message)
    assert (outside.transactional, outside.prefix, outside.content) == (False, "app", b"kept")
    assert inside.lsn < outside.lsn


@contextmanager
def replaying_from(connection: psycopg.Connection, origin: str) -> Iterator[None]:
    """The session's transactions are marked as replicated from the origin, committed there at 0/1234."""
    connection.execute("select pg_replication_origin_create(%s)", [origin])
    connection.execute("select pg_replication_origin_session_setup(%s)", [origin])
    try:
        with connection.transaction():
            connection.execute("select pg_replication_origin_xact_setup('0/1234', now())")
            yield
    finally:
        connection.execute("select pg_replication_origin_session_reset()")
        connection.execute("select pg_replication_origin_drop(%s)", [origin])


@every_version
def test_a_replicated_transaction_names_its_origin(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key)")
    with replaying_from(source.connection, f"east of {source.connection.info.dbname}"):
        source.connection.execute("insert into t values (1)")
    messages = source.messages(options)
    assert kinds(messages) == ["Begin", "Origin", "Relation", "Insert", "Commit"]
    assert messages[1] == Origin(LSN(0x1234), f"east of {source.connection.info.dbname}")


def test_a_changed_table_is_described_again(source: Source) -> None:
    source.run("create table t (id int primary key)")
    source.run("insert into t values (1)")
    source.run("insert into t values (2)")
    source.run("alter table t add note text")
    source.run("insert into t values (3, 'x')")
    messages = source.messages(Options(4))
    assert kinds(contents(messages)) == ["Relation", "Insert", "Insert", "Relation", "Insert"]
    assert [len(relation.columns) for relation in only(Relation, messages)] == [1, 2]


def test_generated_columns_are_left_out(source: Source) -> None:
    source.run("create table t (id int primary key, twice int generated always as (id * 2) stored)")
    source.run("insert into t values (1)")
    (relation,) = only(Relation, source.messages(Options(4)))
    assert [column.name for column in relation.columns] == ["id"]


# Streaming


def transaction_of_every_kind(source: Source) -> None:
    source.run("create type mood as enum ('sad')", "create table t (id int primary key, mood mood)")
    source.run(
        "insert into t values (1, 'sad')",
        "update t set id = 2",
        "select pg_logical_emit_message(true, 'app', 'x')",
        "delete from t",
        "truncate t",
    )


@every_streaming
def test_every_kind_of_change_carries_its_transaction_when_streamed(source: Source, options: Options) -> None:
    transaction_of_every_kind(source)
    messages = source.messages(options, immediately=True)
    borders = only(StreamStart, messages)
    (commit,) = only(StreamCommit, messages)
    assert messages[-1] == commit
    assert {start.xid for start in borders} == {commit.xid}
    assert [start.first_segment for start in borders] == [True] + [False] * (len(borders) - 1)
    assert len(only(StreamStop, messages)) == len(borders)
    changes = [message for message in messages if not isinstance(message, StreamStart | StreamStop | StreamCommit)]
    described = ["Type", "Relation"]  # again before the truncate, which gives the table a new file
    assert kinds(changes) == [*described, "Insert", "Update", "Message", "Delete", *described, "Truncate"]
    assert {getattr(change, "stream_xid", None) for change in changes} == {commit.xid}


@every_streaming
def test_a_streamed_change_says_the_same_as_one_that_is_not(source: Source, options: Options) -> None:
    transaction_of_every_kind(source)
    plain = contents(source.messages(Options(options.version, binary=options.binary)))
    unlike = StreamStart | StreamStop | StreamCommit
    streamed = [each for each in source.messages(options, immediately=True) if not isinstance(each, unlike)]
    assert [without_xid(message) for message in streamed] == plain


def without_xid(message: AnyMessage) -> AnyMessage:
    """The message as it would be outside of a stream: its bytes without the four behind the tag."""
    data = build_message(message)
    return MessageParser(protocol_version=4).parse(data[:1] + data[5:])


@every_streaming
def test_an_origin_in_a_stream_carries_no_transaction(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key)")
    origin = f"west of {source.connection.info.dbname}"
    with replaying_from(source.connection, origin):
        source.connection.execute("insert into t values (1)")
        source.connection.execute("insert into t values (2)")
    messages = source.messages(options, immediately=True)
    assert kinds(messages[:3]) == ["StreamStart", "Origin", "Relation"]
    (told,) = only(Origin, messages)
    assert told.name == origin


def insert_many(connection: psycopg.Connection, first: int) -> None:
    connection.execute(
        "insert into t select n, repeat('x', 100) from generate_series(%s::int, %s::int) n",
        [first, first + ROWS - 1],
    )


@every_streaming
def test_what_is_left_of_a_streamed_transaction_is_what_is_in_the_table(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key, filler text)")
    with source.connection.transaction():
        insert_many(source.connection, 1)
        with source.connection.transaction(force_rollback=True):
            insert_many(source.connection, 10_001)
        with source.connection.transaction():
            insert_many(source.connection, 20_001)
    messages = source.messages(options)
    assert messages == [message for message in messages if not isinstance(message, Begin | Commit)]
    (commit,) = only(StreamCommit, messages)
    aborted = {abort.subxid for abort in only(StreamAbort, messages)}
    assert all(abort.xid == commit.xid != abort.subxid for abort in only(StreamAbort, messages))
    left = [insert for insert in only(Insert, messages) if insert.stream_xid not in aborted]
    assert len(left) == source.one("select count(*) from t") == 2 * ROWS
    assert len({insert.stream_xid for insert in left}) == 2  # the transaction itself and what it released


@pytest.mark.parametrize("options", [Options(1), Options(2), Options(4)], ids=str)
def test_a_large_transaction_comes_whole_without_streaming(source: Source, options: Options) -> None:
    source.run("create table t (id int primary key, filler text)")
    with source.connection.transaction():
        insert_many(source.connection, 1)
    assert Counter(kinds(source.messages(options))) == {"Begin": 1, "Relation": 1, "Insert": ROWS, "Commit": 1}


# Two-phase commit


TWO_PHASE = [Options(3, two_phase=True), Options(4, two_phase=True, binary=True)]
ONE_PHASE = [Options(1), Options(2, "on"), Options(3), Options(4, "parallel")]


def prepare(source: Source, gid: LiteralString) -> None:
    connection = source.connection
    connection.execute("begin")
    connection.execute("insert into t values (1)")
    connection.execute(f"prepare transaction '{gid}'")


@pytest.mark.parametrize("options", TWO_PHASE, ids=str)
def test_a_prepared_transaction_is_told_in_two_phases(two_phase_source: Source, options: Options) -> None:
    source = two_phase_source
    source.run("create table t (id int primary key)")
    prepare(source, "the gid")
    source.connection.execute("commit prepared 'the gid'")
    begin, relation, insert, prepared, commit = source.messages(options)
    assert kinds([relation, insert]) == ["Relation", "Insert"]
    assert isinstance(begin, BeginPrepare)
    assert isinstance(prepared, Prepare)
    assert isinstance(commit, CommitPrepared)
    assert begin.gid == prepared.gid == commit.gid == "the gid"
    assert begin.xid == prepared.xid == commit.xid
    assert (begin.prepare_lsn, begin.end_lsn) == (prepared.prepare_lsn, prepared.end_lsn)
    assert begin.prepare_lsn < begin.end_lsn <= commit.commit_lsn < commit.end_lsn
    assert begin.prepare_time == prepared.prepare_time <= commit.commit_time


@pytest.mark.parametrize("options", TWO_PHASE, ids=str)
def test_a_prepared_transaction_can_be_rolled_back(two_phase_source: Source, options: Options) -> None:
    source = two_phase_source
    source.run("create table t (id int primary key)")
    prepare(source, "g")
    (prepared,) = only(Prepare, source.messages(options))
    source.connection.execute("rollback prepared 'g'")
    *_, rollback = source.messages(options)
    assert isinstance(rollback, RollbackPrepared)
    assert (rollback.xid, rollback.gid) == (prepared.xid, "g")
    assert (rollback.prepare_end_lsn, rollback.prepare_time) == (prepared.end_lsn, prepared.prepare_time)
    assert rollback.prepare_end_lsn < rollback.rollback_end_lsn
    assert rollback.prepare_time <= rollback.rollback_time


@pytest.mark.parametrize("options", ONE_PHASE, ids=str)
def test_a_prepared_transaction_is_told_at_its_commit_if_not_asked_for(
    one_phase_source: Source, options: Options
) -> None:
    source = one_phase_source
    source.run("create table t (id int primary key)")
    prepare(source, "g")
    assert source.messages(options) == []
    source.connection.execute("commit prepared 'g'")
    assert kinds(source.messages(options)) == ["Begin", "Relation", "Insert", "Commit"]


@pytest.mark.parametrize("options", ONE_PHASE, ids=str)
def test_a_slot_made_for_two_phases_tells_them_in_every_version(two_phase_source: Source, options: Options) -> None:
    source = two_phase_source
    source.run("create table t (id int primary key)")
    prepare(source, "g")
    assert kinds(source.messages(options)) == ["BeginPrepare", "Relation", "Insert", "Prepare"]


@pytest.mark.parametrize("options", [Options(3, "on", two_phase=True), Options(4, "parallel", two_phase=True)], ids=str)
def test_a_streamed_transaction_can_be_prepared(two_phase_source: Source, options: Options) -> None:
    source = two_phase_source
    source.run("create table t (id int primary key)")
    prepare(source, "g")
    source.connection.execute("commit prepared 'g'")
    messages = source.messages(options, immediately=True)
    *stream, prepared, commit = messages
    assert kinds(stream) == ["StreamStart", "Relation", "Insert", "StreamStop"]
    assert isinstance(prepared, StreamPrepare)
    assert isinstance(commit, CommitPrepared)
    assert (prepared.gid, prepared.xid) == (commit.gid, commit.xid)
    assert only(StreamStart, messages) == [StreamStart(commit.xid, first_segment=True)]


# The envelope, on a replication connection


class Replication:
    """A replication connection that collects messages as they arrive."""

    def __init__(self, dsn: str, options: Options) -> None:
        self.connection = PGconn.connect(f"{dsn}?replication=database".encode())
        assert self.connection.status == 0, self.connection.error_message
        self._execute("set logical_decoding_work_mem = '64kB'")
        pairs = ", ".join(f"{name} '{value}'" for name, value in options.pairs().items())
        result = self._execute(f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 ({pairs})")
        assert result == ExecStatus.COPY_BOTH, self.connection.error_message
        self.parser = options.parser()
        self.messages: list[AnyMessage] = []
        self.frames: list[XLogData] = []
        self.keepalives: list[PrimaryKeepalive] = []

    def _execute(self, command: str) -> int:
        return self.connection.exec_(command.encode()).status

    def wait_until(self, condition: Callable[[], object]) -> None:
        def received() -> object:
            self._receive()
            return condition()

        wait_until(received, describe=lambda: Counter(kinds(self.messages)))

    def _receive(self) -> None:
        select.select([self.connection.socket], [], [], 0.1)
        self.connection.consume_input()
        while True:
            size, data = self.connection.get_copy_data(1)
            if size <= 0:
                return
            self._take(bytes(data))

    def _take(self, data: bytes) -> None:
        envelope = parse_copy_data(data)
        assert build_copy_data(envelope) == data
        if isinstance(envelope, PrimaryKeepalive):
            self.keepalives.append(envelope)
        else:
            self.frames.append(envelope)
            self.messages.append(parsed(self.parser, envelope.payload))

    def answer(self, lsn: LSN) -> None:
        """Acknowledge all before the LSN, and ask for a keepalive."""
        update = StandbyStatusUpdate(lsn, lsn, lsn, send_time=0, reply_requested=True)
        self.connection.put_copy_data(build_copy_data(update))
        assert self.connection.flush() == 0


@pytest.fixture
def replicate(source: Source) -> Iterator[Callable[[Options], Replication]]:
    opened: list[Replication] = []

    def start(options: Options) -> Replication:
        opened.append(Replication(source.dsn, options))
        return opened[-1]

    yield start
    for replication in opened:
        replication.connection.finish()


def test_a_status_update_moves_the_slot_and_asks_for_a_keepalive(
    source: Source, replicate: Callable[[Options], Replication]
) -> None:
    source.run("create table t (id int primary key)")
    replication = replicate(Options(1))
    source.run("insert into t values (1)")
    replication.wait_until(lambda: only(Commit, replication.messages))
    (commit,) = only(Commit, replication.messages)
    replication.keepalives.clear()
    replication.answer(commit.end_lsn)
    replication.wait_until(lambda: replication.keepalives)
    assert not replication.keepalives[0].reply_requested
    assert replication.keepalives[0].wal_end >= commit.end_lsn
    age = datetime.now(UTC) - timestamp_to_datetime(replication.keepalives[0].send_time)
    assert abs(age) < timedelta(minutes=1)
    confirmed = source.one("select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'the_slot'")
    assert LSN.parse(confirmed) == commit.end_lsn


def test_an_envelope_tells_where_its_message_stands(
    source: Source, replicate: Callable[[Options], Replication]
) -> None:
    source.run("create table t (id int primary key)")
    source.run("insert into t values (1)")
    replication = replicate(Options(1))
    replication.wait_until(lambda: only(Commit, replication.messages))
    starts = dict(zip(kinds(replication.messages), [frame.start_lsn for frame in replication.frames], strict=True))
    begin, commit = replication.messages[0], replication.messages[-1]
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert starts["Relation"] == 0  # a message that no log record stands for
    assert 0 < starts["Begin"] <= starts["Insert"] < begin.final_lsn
    assert starts["Commit"] == commit.end_lsn


@every_streaming
def test_a_streamed_transaction_and_a_part_of_it_can_be_aborted(
    source: Source, replicate: Callable[[Options], Replication], options: Options
) -> None:
    source.run("create table t (id int primary key, filler text)")
    replication = replicate(options)
    arrived = replication.messages

    def streamed(xids: int) -> Callable[[], bool]:
        return lambda: len({insert.stream_xid for insert in only(Insert, arrived)}) == xids

    with source.connection.transaction(force_rollback=True):
        insert_many(source.connection, 1)
        replication.wait_until(streamed(1))
        with source.connection.transaction(force_rollback=True):
            insert_many(source.connection, 10_001)
            replication.wait_until(streamed(2))
        insert_many(source.connection, 20_001)
        replication.wait_until(lambda: only(StreamAbort, arrived))
    source.run("insert into t values (0, '')")
    replication.wait_until(lambda: only(Commit, arrived))

    part, whole = only(StreamAbort, arrived)
    xid = only(StreamStart, arrived)[0].xid
    assert part.xid == whole.xid == whole.subxid == xid != part.subxid
    assert {insert.stream_xid for insert in only(Insert, arrived)} == {xid, part.subxid, None}
    for abort in (part, whole):
        assert (abort.abort_lsn is not None) == (abort.abort_time is not None) == (options.streaming == "parallel")
    if part.abort_lsn is not None and whole.abort_lsn is not None and whole.abort_time is not None:
        assert part.abort_lsn < whole.abort_lsn
        age = datetime.now(UTC) - timestamp_to_datetime(whole.abort_time)
        assert abs(age) < timedelta(minutes=1)
