"""What snapshots say in the journal, and how a table is cut into chunks."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.errors import ProtocolError
from pgtide.snapshot.chunks import plan_chunks
from pgtide.snapshot.events import (
    Barrier,
    ChunkCopied,
    Event,
    PageRange,
    SnapshotDone,
    SnapshotStarted,
    dump_event,
    load_event,
)
from pgtide.snapshot.visibility import Visibility

EVENTS: list[Event] = [
    SnapshotStarted("abc", 'public.we"ird ñ', 20001, 5, (PageRange(0, 10), PageRange(10, None)), 1000),
    SnapshotStarted("abc", "public.t", 20001, 5, (), 0),
    ChunkCopied("abc", "public.t", 20001, 0, "chunks/abc/1.chunk", 10, 500, "10:20:11,12"),
    ChunkCopied("abc", "public.t", 20001, -1, "chunks/abc/1.chunk", 0, 0, "10:10:"),
    SnapshotDone("abc", "public.t", 20001, 10),
    Barrier("xyz"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_comes_back(event):
    document = dump_event(event)
    content = json.dumps(document, separators=(",", ":")).encode()
    again = load_event(content)
    assert again == event
    assert type(again) is type(event)


def test_a_chunk_says_what_it_saw():
    chunk = ChunkCopied("abc", "public.t", 20001, 0, "x", 1, 1, "10:20:11,12")
    assert chunk.visibility == Visibility(10, 20, (11, 12))


@pytest.mark.parametrize("content", [b'{"kind":"later","x":1}', b'{"kind":"","a":[]}'])
def test_a_kind_that_a_newer_version_writes_is_passed_over(content):
    assert load_event(content) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b'"chunk"',
        b"null",
        b"{}",
        b'{"kind":"barrier"}',
        b'{"kind":"barrier","id":"x","more":1}',
        b'{"kind":"start","snapshot":"a"}',
        b'{"kind":"start","chunks":5}',
        b'{"kind":"start","chunks":[{"first":1}]}',
        b'{"kind":["barrier"],"id":"x"}',
        b'{"kind":{"a":1}}',
        b'{"kind":"chunk"}',
    ],
)
def test_a_message_of_ours_that_cannot_be_read_is_an_error(content):
    with pytest.raises(ProtocolError):
        load_event(content)


@given(st.integers(0, 10_000), st.integers(0, 10**9), st.integers(8192, 10**8))
def test_chunks_cover_every_page_once_and_the_last_one_is_open(pages, size_bytes, chunk_bytes):
    chunks = plan_chunks(pages, size_bytes, chunk_bytes, keyless=False)
    assert chunks[0].first == 0
    assert chunks[-1].end is None
    for chunk, following in pairwise(chunks):
        assert chunk.end == following.first
        assert chunk.first < following.first
    assert len(chunks) <= max(1, pages)
    assert len(chunks) <= -(-size_bytes // chunk_bytes) or len(chunks) == 1


def test_chunks_are_about_as_large_as_asked():
    assert len(plan_chunks(1000, 1000 * 8192, 100 * 8192, keyless=False)) == 10
    # Long values lie in TOAST: fewer pages make a chunk.
    assert len(plan_chunks(10, 1000 * 8192, 100 * 8192, keyless=False)) == 10


def test_a_table_without_a_key_is_one_chunk():
    assert plan_chunks(1000, 10**9, 8192, keyless=True) == (PageRange(0, None),)
    assert plan_chunks(0, 0, 8192, keyless=False) == (PageRange(0, None),)
