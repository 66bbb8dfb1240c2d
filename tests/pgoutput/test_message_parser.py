"""The one state of the protocol: whether a stream block is open, and what may stand where."""

from __future__ import annotations

import pytest

from pgtide.errors import ProtocolError
from pgtide.lsn import LSN
from pgtide.pgoutput import (
    AnyMessage,
    Begin,
    BeginPrepare,
    Commit,
    Insert,
    MessageParser,
    Origin,
    StreamAbort,
    StreamCommit,
    Streaming,
    StreamPrepare,
    StreamStart,
    StreamStop,
    build_message,
)

from . import strategies
from .cases import CASES, Case

BEGIN = build_message(Begin(LSN(1), 0, 7))
STREAM_PREPARE = StreamPrepare(LSN(1), LSN(2), 0, 7, "g")
OUTSIDE_ONLY = [case for case in CASES if type(case.message) not in strategies.INSIDE]


def parser_of(streaming: Streaming) -> MessageParser:
    return MessageParser(protocol_version=4, streaming=streaming)


def parse_all(parser: MessageParser, messages: list[AnyMessage]) -> list[AnyMessage]:
    return [parser.parse(build_message(message)) for message in messages]


def test_messages_carry_a_transaction_id_in_blocks_only() -> None:
    messages: list[AnyMessage] = [
        StreamStart(7, first_segment=True),
        Origin(LSN(1), "east"),
        Insert(1, (), stream_xid=7),
        Insert(1, (), stream_xid=8),
        StreamStop(),
        Begin(LSN(1), 0, 9),
        Insert(1, ()),
        Commit(LSN(1), LSN(2), 0),
        StreamStart(7, first_segment=False),
        Insert(1, (), stream_xid=7),
        StreamStop(),
        StreamAbort(7, 8),
        StreamCommit(7, LSN(1), LSN(2), 0),
    ]
    assert parse_all(parser_of("on"), messages) == messages


def test_the_open_block_is_known_by_its_transaction() -> None:
    parser = parser_of("on")
    states = [parser.stream_xid]
    messages: list[AnyMessage] = [StreamStart(7, first_segment=True), Insert(1, (), stream_xid=8), StreamStop()]
    for message in messages:
        parser.parse(build_message(message))
        states.append(parser.stream_xid)
    assert states == [None, 7, 7, None]


@pytest.mark.parametrize("inside", [False, True])
def test_a_message_that_is_refused_leaves_the_state_as_it_was(inside: bool) -> None:
    parser = parser_of("on")
    parse_all(parser, [StreamStart(7, first_segment=True)] if inside else [])
    before = parser.stream_xid
    bad = [b"", b"z", b"S\0", b"E\0", b"S" + bytes(6), b"S" + bytes(5) if inside else b"E"]
    for data in bad:
        with pytest.raises(ProtocolError):
            parser.parse(data)
        assert parser.stream_xid == before


@pytest.mark.parametrize("case", OUTSIDE_ONLY, ids=lambda case: case.name)
def test_what_stands_between_blocks_is_refused_inside_one(case: Case) -> None:
    parser = parser_of("on")
    parse_all(parser, [StreamStart(7, first_segment=True)])
    name = type(case.message).__name__
    with pytest.raises(ProtocolError, match=f"unexpected {name} message inside a stream"):
        parser.parse(case.data)


def test_a_block_that_did_not_begin_does_not_end() -> None:
    with pytest.raises(ProtocolError, match="unexpected StreamStop message outside a stream"):
        parser_of("on").parse(b"E")


def test_an_abort_has_lsn_and_time_with_parallel_streaming_only() -> None:
    short, long = StreamAbort(7, 8), StreamAbort(7, 8, LSN(9), 10)
    assert parser_of("on").parse(build_message(short)) == short
    assert parser_of("parallel").parse(build_message(long)) == long
    with pytest.raises(ProtocolError, match="end is followed by more bytes"):
        parser_of("on").parse(build_message(long))
    with pytest.raises(ProtocolError, match="abort_lsn is cut short"):
        parser_of("parallel").parse(build_message(short))


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "message",
    [StreamStart(7, first_segment=True), StreamCommit(7, LSN(1), LSN(2), 0), StreamAbort(7, 7), STREAM_PREPARE],
    ids=lambda message: type(message).__name__,
)
def test_streaming_that_was_not_asked_for_is_refused(version: int, message: AnyMessage) -> None:
    with pytest.raises(ProtocolError, match="streaming was not asked for"):
        MessageParser(protocol_version=version).parse(build_message(message))


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_prepared_transaction_is_read_in_every_version_because_the_slot_decides(version: int) -> None:
    message = BeginPrepare(LSN(1), LSN(2), 0, 7, "g")
    assert MessageParser(protocol_version=version).parse(build_message(message)) == message


@pytest.mark.parametrize(("version", "streaming"), [(0, "off"), (5, "off"), (1, "on"), (3, "parallel"), (4, "yes")])
def test_options_that_a_server_would_refuse_are_refused(version: int, streaming: Streaming) -> None:
    with pytest.raises(ValueError, match=r"protocol version|streaming"):
        MessageParser(protocol_version=version, streaming=streaming)


def test_a_parser_begins_outside_of_any_block() -> None:
    for version in (1, 2, 3, 4):
        assert MessageParser(protocol_version=version).parse(BEGIN) == Begin(LSN(1), 0, 7)
