from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.columns import BINARY, NULL, TEXT, ColumnSlices, tuples, walk_copy_tuples, walk_stream_tuples
from pgtide.errors import ProtocolError
from tests.columns.building import (
    FOREIGN,
    UNCHANGED,
    Block,
    Cell,
    Text,
    Unchanged,
    block_of,
    copy_tuple,
    stream_tuple,
    unhurried,
)

Walk = Callable[..., tuple[list[ColumnSlices], Any]]

COLUMNS = 3
stream_cells = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=9), st.binary().map(Text))
stream_rows = st.lists(st.lists(stream_cells, min_size=COLUMNS, max_size=COLUMNS), max_size=9)
copy_cells = st.one_of(st.none(), st.binary(max_size=9))
copy_rows = st.lists(st.lists(copy_cells, min_size=COLUMNS, max_size=COLUMNS), max_size=9)


def cells(block: Block, slices: list[ColumnSlices]) -> list[list[Cell]]:
    """What the slices say, as rows of cells."""
    data = block.buffer.tobytes()

    def cell(column: ColumnSlices, row: int) -> Cell:
        value = data[column.start[row] : column.start[row] + column.length[row]]
        state = column.state[row]
        if state in (NULL, tuples.UNCHANGED):
            assert value == b""
            return None if state == NULL else UNCHANGED
        return value if state == BINARY else Text(value)

    return [[cell(column, row) for column in slices] for row in range(block.starts.size)]


@unhurried
@given(stream_rows)
def test_a_streamed_tuple_gives_back_the_cells_that_were_put_in(rows: list[list[Cell]]) -> None:
    block = block_of([stream_tuple(row) for row in rows])
    slices, after = walk_stream_tuples(*block, COLUMNS)
    assert cells(block, slices) == rows
    assert after.tolist() == block.ends.tolist()


@unhurried
@given(copy_rows)
def test_a_copied_tuple_gives_back_the_cells_that_were_put_in(rows: list[list[bytes | None]]) -> None:
    block = block_of([copy_tuple(row) for row in rows])
    slices, after = walk_copy_tuples(*block, COLUMNS)
    assert cells(block, slices) == rows
    assert after.tolist() == block.ends.tolist()


@unhurried
@given(stream_rows)
def test_starts_ascend_within_a_column_with_or_without_values(rows: list[list[Cell]]) -> None:
    block = block_of([stream_tuple(row) for row in rows])
    for column in walk_stream_tuples(*block, COLUMNS)[0]:
        assert (np.diff(column.start) > 0).all()
        assert (column.start[1:] >= (column.start + column.length)[:-1]).all()


def test_the_position_after_a_tuple_is_where_the_next_one_in_the_frame_begins() -> None:
    old: list[Cell] = [b"1", None]
    new: list[Cell] = [b"2", Text(b"two")]
    frame = stream_tuple(old) + b"N" + stream_tuple(new)
    block = block_of([frame, frame])
    _, after = walk_stream_tuples(*block, 2)
    assert block.buffer[after].tobytes() == b"NN"
    slices, last = walk_stream_tuples(block.buffer, after + 1, block.ends, 2)
    assert cells(block, slices) == [new, new]
    assert last.tolist() == block.ends.tolist()


@pytest.mark.parametrize("walk", [walk_stream_tuples, walk_copy_tuples])
def test_no_rows_give_empty_slices_for_each_column(walk: Walk) -> None:
    nothing = np.empty(0, np.int64)
    for buffer in (np.empty(0, np.uint8), np.zeros(8, np.uint8)):
        slices, after = walk(buffer, nothing, nothing, COLUMNS)
        assert [column.state.size for column in slices] == [0] * COLUMNS
        assert after.size == 0


@pytest.mark.parametrize(("walk", "data"), [(walk_stream_tuples, stream_tuple([])), (walk_copy_tuples, copy_tuple([]))])
def test_a_table_without_columns_has_tuples_of_two_bytes(walk: Walk, data: bytes) -> None:
    block = block_of([data, data])
    slices, after = walk(*block, 0)
    assert slices == []
    assert after.tolist() == block.ends.tolist()


def test_a_buffer_shorter_than_a_length_can_hold_a_null() -> None:
    buffer = np.frombuffer(stream_tuple([None]), np.uint8)
    slices, _ = walk_stream_tuples(buffer, np.array([0]), np.array([3]), 1)
    assert slices[0].state.tolist() == [NULL]


STREAMED = stream_tuple([b"12345678", None, Text(b"abc"), UNCHANGED, b""])
COPIED = copy_tuple([b"12345678", None, b"abc", None, b""])


@pytest.mark.parametrize(("walk", "whole"), [(walk_stream_tuples, STREAMED), (walk_copy_tuples, COPIED)])
@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_tuple_cut_at_any_byte_is_refused(walk: Walk, whole: bytes, neighbours: int) -> None:
    for size in range(len(whole)):
        cut = block_of([whole] * neighbours + [whole[:size]])
        with pytest.raises(ProtocolError):
            walk(*cut, 5)
        # The same with nothing behind the cut, so that reading on would leave the buffer.
        bare = cut._replace(buffer=cut.buffer[: -len(FOREIGN)])
        with pytest.raises(ProtocolError):
            walk(*bare, 5)


@pytest.mark.parametrize(("walk", "whole"), [(walk_stream_tuples, STREAMED), (walk_copy_tuples, COPIED)])
def test_a_tuple_that_needs_bytes_behind_its_end_is_refused(walk: Walk, whole: bytes) -> None:
    block = block_of([whole, whole])
    for missing in range(1, len(whole) + 1):
        with pytest.raises(ProtocolError):
            walk(block.buffer, block.starts, block.ends - missing, 5)


@pytest.mark.parametrize(("walk", "whole"), [(walk_stream_tuples, STREAMED), (walk_copy_tuples, COPIED)])
def test_positions_outside_the_buffer_are_refused(walk: Walk, whole: bytes) -> None:
    buffer = np.frombuffer(whole, np.uint8)
    size = buffer.size
    for start, end in [(-1, size), (0, size + 1), (size, size), (size + 5, size), (0, 1), (-size, size)]:
        with pytest.raises(ProtocolError):
            walk(buffer, np.array([start]), np.array([end]), 5)


@pytest.mark.parametrize(("walk", "whole"), [(walk_stream_tuples, STREAMED), (walk_copy_tuples, COPIED)])
@pytest.mark.parametrize("count", [0, 4, 6])
def test_another_number_of_columns_is_refused(walk: Walk, whole: bytes, count: int) -> None:
    with pytest.raises(ProtocolError, match=f"another number of columns.*\n.*{count} columns expected"):
        walk(*block_of([whole]), count)


def test_a_kind_that_is_not_in_the_protocol_is_refused() -> None:
    for kind in set(range(256)) - set(b"nutb"):
        data = struct.pack(">h", 2) + b"n" + bytes([kind]) + struct.pack(">i", 0)
        with pytest.raises(ProtocolError, match=r"unknown kind\ndetail: column 1, in a block of 2 rows"):
            walk_stream_tuples(*block_of([stream_tuple([None, None]), data]), 2)


@pytest.mark.parametrize("length", [-1, -2, -5, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("kind", [b"t", b"b"])
def test_a_streamed_value_of_impossible_length_is_refused(length: int, kind: bytes) -> None:
    data = struct.pack(">h", 1) + kind + struct.pack(">i", length) + b"12345678"
    with pytest.raises(ProtocolError, match="column 0, in a block of 2 rows"):
        walk_stream_tuples(*block_of([stream_tuple([b"1"]), data]), 1)


@pytest.mark.parametrize("length", [-2, -5, -(2**31), 2**31 - 1])
def test_a_copied_value_of_impossible_length_is_refused(length: int) -> None:
    data = struct.pack(">hi", 1, length) + b"12345678"
    with pytest.raises(ProtocolError, match="column 0, in a block of 2 rows"):
        walk_copy_tuples(*block_of([copy_tuple([None]), data]), 1)


def test_an_error_does_not_contain_data() -> None:
    data = stream_tuple([b"secret", Text(b"secret")])
    with pytest.raises(ProtocolError) as error:
        walk_stream_tuples(*block_of([data[:-1]]), 2)
    assert "secret" not in str(error.value)


def reference_walk(data: bytes, *, copied: bool) -> tuple[list[Cell], int] | None:
    """One tuple read in the plainest way; None if it is malformed."""
    try:
        (count,) = struct.unpack_from(">h", data)
        position, row = 2, list[Cell]()
        for _ in range(count):
            kind = "b" if copied else chr(data[position])
            position += not copied
            if kind in "nu":
                row.append(None if kind == "n" else Unchanged.UNCHANGED)
                continue
            (length,) = struct.unpack_from(">i", data, position)
            position += 4
            if copied and length == -1:
                row.append(None)
                continue
            value = data[position : position + length]
            if kind not in "tb" or length < 0 or len(value) < length:
                return None
            row.append(value if kind == "b" else Text(value))
            position += length
    except (struct.error, IndexError):
        return None
    return row, position


@unhurried
@given(st.data(), st.booleans())
def test_bytes_changed_at_random_are_read_as_a_plain_reader_reads_them(data: Any, copied: bool) -> None:
    changed = bytearray(COPIED if copied else STREAMED)
    interesting = st.sampled_from([0, 1, 2, 5, 127, 128, 255, *b"nutb"]) | st.integers(0, 255)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(2, len(changed) - 1))] = data.draw(interesting)
    block = block_of([bytes(changed)])
    expected = reference_walk(bytes(changed), copied=copied)
    walk = walk_copy_tuples if copied else walk_stream_tuples
    if expected is None:
        with pytest.raises(ProtocolError):
            walk(*block, 5)
    else:
        slices, after = walk(*block, 5)
        assert (cells(block, slices)[0], int(after[0] - block.starts[0])) == expected


def test_states_are_the_numbers_that_readers_rely_on() -> None:
    assert (NULL, BINARY, TEXT, tuples.UNCHANGED) == (0, 1, 2, 3)
