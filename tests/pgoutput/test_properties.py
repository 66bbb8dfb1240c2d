"""What must hold for every message and for any bytes."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.errors import ProtocolError
from pgtide.pgoutput import (
    AnyMessage,
    CopyData,
    build_copy_data,
    build_message,
    parse_copy_data,
    parse_message,
)

from . import strategies

TAGS = b"BCORYIUDTMSEcAbPKrp"

unhurried = settings(deadline=None)  # how long one example takes is up to the machine


def test_there_is_a_strategy_for_every_message() -> None:
    assert set(strategies.OUTSIDE) | set(strategies.INSIDE) == set(get_args(AnyMessage))


@pytest.mark.parametrize("kind", strategies.OUTSIDE, ids=lambda kind: kind.__name__)
@unhurried
@given(data=st.data())
def test_what_is_built_outside_of_a_stream_is_parsed_back(kind: type[AnyMessage], data: st.DataObject) -> None:
    message = data.draw(strategies.OUTSIDE[kind])
    assert parse_message(build_message(message)) == message


@pytest.mark.parametrize("kind", strategies.INSIDE, ids=lambda kind: kind.__name__)
@unhurried
@given(data=st.data())
def test_what_is_built_inside_of_a_stream_is_parsed_back(kind: type[AnyMessage], data: st.DataObject) -> None:
    message = data.draw(strategies.INSIDE[kind])
    assert parse_message(build_message(message), in_stream=True) == message


@unhurried
@given(strategies.PARALLEL_ABORT)
def test_an_abort_of_parallel_streaming_is_parsed_back(message: AnyMessage) -> None:
    assert parse_message(build_message(message), streaming="parallel") == message


@unhurried
@given(strategies.envelopes)
def test_an_envelope_that_is_built_is_parsed_back(envelope: CopyData) -> None:
    assert parse_copy_data(build_copy_data(envelope)) == envelope


def refused_or_rebuilt(data: bytes, **options: Any) -> None:
    """Bytes are refused with a ProtocolError, or read so completely that they can be built again."""
    try:
        message = parse_message(data, **options)
    except ProtocolError:
        return
    assert build_message(message) == data


@unhurried
@given(st.binary(max_size=200), st.booleans(), st.sampled_from(["off", "on", "parallel"]))
def test_any_bytes_are_refused_or_rebuilt(data: bytes, in_stream: bool, streaming: str) -> None:
    refused_or_rebuilt(data, in_stream=in_stream, streaming=streaming)


@unhurried
@given(st.sampled_from(TAGS), st.binary(max_size=200), st.booleans())
def test_any_bytes_behind_a_known_tag_are_refused_or_rebuilt(tag: int, data: bytes, in_stream: bool) -> None:
    refused_or_rebuilt(bytes([tag]) + data, in_stream=in_stream)


@unhurried
@given(strategies.messages(), st.data())
def test_a_message_with_a_changed_byte_is_refused_or_rebuilt(
    case: tuple[AnyMessage, dict[str, Any]], data: st.DataObject
) -> None:
    message, options = case
    raw = bytearray(build_message(message))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    refused_or_rebuilt(bytes(raw), **options)


@unhurried
@given(strategies.messages(), st.data(), st.binary(max_size=5))
def test_a_message_with_a_piece_replaced_is_refused_or_rebuilt(
    case: tuple[AnyMessage, dict[str, Any]], data: st.DataObject, piece: bytes
) -> None:
    message, options = case
    raw = build_message(message)
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    refused_or_rebuilt(raw[:start] + piece + raw[end:], **options)


@unhurried
@given(strategies.messages())
def test_a_message_read_in_the_wrong_place_is_refused_or_rebuilt(
    case: tuple[AnyMessage, dict[str, Any]],
) -> None:
    message, options = case
    wrong = {"in_stream": not options.get("in_stream", False), "streaming": "parallel"}
    refused_or_rebuilt(build_message(message), **wrong)


@unhurried
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"k" + rest))
def test_any_copy_data_is_refused_or_rebuilt(data: bytes) -> None:
    try:
        envelope = parse_copy_data(data)
    except ProtocolError:
        return
    assert build_copy_data(envelope) == data
