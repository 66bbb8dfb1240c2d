"""The table of messages and bytes, in both directions: whole, cut at every byte and with bytes behind."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import tracemalloc
from datetime import UTC, datetime
from typing import Any, get_args

import pytest

import pgtide.pgoutput
from pgtide.errors import ProtocolError
from pgtide.lsn import LSN
from pgtide.pgoutput import (
    AnyMessage,
    Begin,
    Binary,
    Insert,
    Message,
    Origin,
    Relation,
    StreamAbort,
    Text,
    XLogData,
    build_copy_data,
    build_message,
    datetime_to_timestamp,
    parse_copy_data,
    parse_message,
    timestamp_to_datetime,
)

from .cases import CASES, FROM_SERVER, TO_SERVER, Case, EnvelopeCase

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_envelope = pytest.mark.parametrize("case", FROM_SERVER, ids=lambda case: case.name)


def test_the_table_has_every_message() -> None:
    assert {type(case.message) for case in CASES} == set(get_args(AnyMessage))


@each_case
def test_a_message_is_built_as_the_manual_says(case: Case) -> None:
    assert build_message(case.message) == case.data


@each_case
def test_a_message_is_parsed_as_the_manual_says(case: Case) -> None:
    assert parse_message(case.data, **case.options) == case.message
    assert parse_message(memoryview(case.data), **case.options) == case.message


@each_case
def test_a_message_cut_at_any_byte_is_refused(case: Case) -> None:
    for length in range(len(case.data)):
        with pytest.raises(ProtocolError):
            parse_message(case.data[:length], **case.options)


@each_case
def test_a_message_with_bytes_behind_it_is_refused(case: Case) -> None:
    for trailing in (b"\0", b"E", bytes(16)):
        with pytest.raises(ProtocolError):
            parse_message(case.data + trailing, **case.options)


@pytest.mark.parametrize("case", FROM_SERVER + TO_SERVER, ids=lambda case: case.name)
def test_an_envelope_is_built_as_the_manual_says(case: EnvelopeCase) -> None:
    assert build_copy_data(case.envelope) == case.data


@each_envelope
def test_an_envelope_is_parsed_as_the_manual_says(case: EnvelopeCase) -> None:
    assert parse_copy_data(case.data) == case.envelope
    assert parse_copy_data(memoryview(case.data)) == case.envelope


@each_envelope
def test_an_envelope_cut_before_its_payload_is_refused(case: EnvelopeCase) -> None:
    header = 25 if isinstance(case.envelope, XLogData) else len(case.data)
    for length in range(header):
        with pytest.raises(ProtocolError):
            parse_copy_data(case.data[:length])


def test_a_keepalive_with_bytes_behind_it_is_refused() -> None:
    with pytest.raises(ProtocolError, match="end is followed by more bytes"):
        parse_copy_data(FROM_SERVER[-1].data + b"\0")


BAD = [
    ("nothing", "", "empty message", None),
    ("an unknown tag", "7A 00000001", "unknown message tag 0x7a", 0),
    ("a flag that does not exist yet", f"43 01 {'00' * 24}", "Commit message: flags has an unknown flag", 1),
    ("a truncated time", f"42 {'00' * 8} 0000", "Begin message: commit_time is cut short", 9),
    ("a string without end", f"4F {'00' * 8} 6561", "Origin message: name is not terminated", 9),
    ("a name that is not UTF-8", "52 00000001 7300 FF00 64 0000", "name is not valid UTF-8", 7),
    ("an unknown replica identity", "52 00000001 7300 7400 78 0000", "replica_identity is unknown", 9),
    ("less than no columns", "52 00000001 7300 7400 64 FFFF", "number of columns is negative", 10),
    ("an unknown column flag", "52 00000001 7300 7400 64 0001 02", "column flags has an unknown flag", 12),
    ("an insert of an old tuple", "49 00000001 4F 0000", "tuple kind is not a new tuple", 5),
    ("a delete of a new tuple", "44 00000001 4E 0000", "tuple kind is neither", 5),
    ("an update with key and old row", "55 00000001 4B 0000 4F 0000", "tuple kind is not a new", 8),
    ("an unknown column kind", "49 00000001 4E 0001 78", "column kind is unknown", 8),
    ("a negative length", "49 00000001 4E 0001 74 FFFFFFFF", "length of column value is negative", 9),
    ("a value cut short", "49 00000001 4E 0001 74 00000002 61", "column value is cut short", 13),
    ("less than no relations", "54 FFFFFFFF 00", "number of relations is negative", 1),
    ("an unknown truncate option", "54 00000000 04", "options has an unknown flag", 5),
    ("more relations than there are", "54 00000002 00 00000001", "relation_oids are cut short", 6),
    ("negative content", f"4D 00 {'00' * 8} 00 80000000", "length of content is negative", 11),
    ("a segment neither first nor not", "53 00000001 02", "first_segment has an unknown flag", 5),
]


@pytest.mark.parametrize(("data", "message", "offset"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_an_error_names_message_field_and_offset(data: str, message: str, offset: int | None) -> None:
    raw = bytes.fromhex(data)
    with pytest.raises(ProtocolError) as caught:
        parse_message(raw)
    assert message in caught.value.message
    assert caught.value.detail == (None if offset is None else f"at byte {offset} of {len(raw)}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty copy data"),
        (b"z", "unknown copy data tag 0x7a"),
        (b"k" + bytes(16) + b"\2", "reply_requested has an unknown flag"),
    ],
)
def test_a_bad_envelope_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        parse_copy_data(data)


def test_an_error_carries_no_data_even_in_its_context() -> None:
    secret = Relation(1, "s", "secret", "d", ())
    raw = build_message(secret).replace(b"secret", b"secre\xff")
    with pytest.raises(ProtocolError) as caught:
        parse_message(raw)
    assert "secre" not in str(caught.value)
    assert caught.value.__context__ is None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_message_may_be_logged_without_showing_its_data() -> None:
    shown = [
        Insert(1, (Text(b"secret"), Binary(b"secret"))),
        Message(True, LSN(1), "app", b"secret"),
        XLogData(LSN(1), LSN(1), 0, b"secret"),
    ]
    assert "secret" not in repr(shown)
    assert "Text(6 bytes)" in repr(shown)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("52 00000001 7300 7400 64 7FFF", {}),
        ("49 00000001 4E 7FFF", {}),
        ("49 00000001 4E 0001 62 7FFFFFFF 00", {}),
        ("54 7FFFFFFF 00 00000001", {}),
        (f"4D 00 {'00' * 8} 00 7FFFFFFF 00", {}),
        ("54 00000005 7FFFFFFF 00", {"in_stream": True}),
    ],
)
def test_a_great_length_in_a_small_message_costs_nothing(data: str, options: dict[str, Any]) -> None:
    raw = bytes.fromhex(data)
    tracemalloc.start()
    began = time.perf_counter()
    try:
        with pytest.raises(ProtocolError, match="cut short"):
            parse_message(raw, **options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    "message",
    [
        Begin(LSN(2**64), 0, 0),
        Begin(LSN(0), 0, -1),
        Origin(LSN(0), "a\0b"),
        Origin(LSN(0), "\ud800"),
        Relation(1, "s", "t", "x", ()),
        Insert(1, (), stream_xid=2**32),
        StreamAbort(1, 2, LSN(3)),
    ],
)
def test_what_the_wire_has_no_room_for_is_not_built(message: AnyMessage) -> None:
    with pytest.raises(ValueError, match=r"."):
        build_message(message)


def test_an_envelope_that_the_wire_has_no_room_for_is_not_built() -> None:
    with pytest.raises(ValueError, match="XLogData has a value out of range"):
        build_copy_data(XLogData(LSN(2**64), LSN(0), 0, b""))


def test_times_count_from_the_year_2000() -> None:
    assert timestamp_to_datetime(0) == datetime(2000, 1, 1, tzinfo=UTC)
    moment = datetime(2024, 2, 29, 12, 30, 0, 123_456, tzinfo=UTC)
    assert timestamp_to_datetime(datetime_to_timestamp(moment)) == moment
    assert datetime_to_timestamp(datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    with pytest.raises(OverflowError):
        timestamp_to_datetime(2**63 - 1)
    with pytest.raises(TypeError):
        datetime_to_timestamp(datetime(2000, 1, 1))


def test_every_exported_name_is_listed_once_and_exists() -> None:
    names = pgtide.pgoutput.__all__
    assert len(names) == len(set(names))
    modules = {"build", "messages", "parse"}
    public = {name for name in vars(pgtide.pgoutput) if not name.startswith("_")} - modules
    assert public == set(names)


def test_the_package_loads_nothing_but_the_standard_library_and_two_modules_of_ours() -> None:
    script = (
        "import sys, pgtide.pgoutput\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'pgtide'))\n"
        "print(*[name for name in ('numpy', 'pyarrow', 'psycopg', 'pyspark') if name in sys.modules])\n"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    ours, _, third_party = loaded.partition("\n")
    package = [f"pgtide.pgoutput{part}" for part in ("", ".build", ".messages", ".parse")]
    assert ours.split() == ["pgtide", "pgtide.errors", "pgtide.lsn", *package]
    assert third_party.strip() == ""
