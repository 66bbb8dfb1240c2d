"""Which segments nobody needs any more.

A segment may go when it is older than the retention time and every consumer has applied all of it. The newest segment
never goes, and what goes is always the oldest part, so the journal has no holes.
"""

from __future__ import annotations

import time
from itertools import pairwise

from pgtide.journal.consumers import Consumers
from pgtide.journal.layout import JournalDirectory
from pgtide.lsn import LSN


def removable_segments(directory: JournalDirectory, retention_seconds: float) -> list[LSN]:
    """Start LSNs of the segments that may go, oldest first."""
    slowest = Consumers(directory).slowest_lsn()
    limit = time.time() - retention_seconds
    removable = []
    for lsn, following in pairwise(directory.segment_lsns()):
        if slowest is None or following > slowest or directory.segment(lsn).stat().st_mtime > limit:
            break
        removable.append(lsn)
    return removable
