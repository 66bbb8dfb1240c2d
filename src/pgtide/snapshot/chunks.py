"""Cutting a table into chunks.

A chunk is a range of pages (ctid): it needs no key, reads sequentially, and splits any table evenly. A table without a
key is one chunk, because only one snapshot can tell how often a row is there.

Pure: no I/O.
"""

from __future__ import annotations

from pgtide.snapshot.events import PageRange

PAGE_BYTES = 8192


def plan_chunks(pages: int, size_bytes: int, chunk_bytes: int, *, keyless: bool) -> tuple[PageRange, ...]:
    """Page ranges of about `chunk_bytes` each; the last one is open, because the table may grow.

    `size_bytes` includes TOAST, so a table of long values gets fewer pages in a chunk.
    """
    count = 1 if keyless else max(1, min(pages, -(-size_bytes // chunk_bytes)))
    bounds = [pages * index // count for index in range(count)]
    return tuple(
        PageRange(first, bounds[index + 1] if index + 1 < count else None) for index, first in enumerate(bounds)
    )
