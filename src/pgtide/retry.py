"""What to do about an error: try again, or stop.

One table decides, from the kind of error. Keep it narrow: only what passes by itself is tried again; everything
else stops with its own hint, because repeating it would hide it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum

from pgtide.errors import JournalFull, PgtideError, SourceUnreachable


class Verdict(Enum):
    """RETRY: the cause passes by itself. STOP: somebody has to act."""

    RETRY = "retry"
    STOP = "stop"


# The server restarts, fails over, or the network drops; a disk is given room again. Nothing is lost meanwhile,
# because nothing was acknowledged that is not in the journal.
_RETRIED: tuple[type[PgtideError], ...] = (SourceUnreachable, JournalFull)


def verdict(error: BaseException) -> Verdict:
    """Whether this error is worth another try."""
    return Verdict.RETRY if isinstance(error, _RETRIED) else Verdict.STOP


def backoff(first_seconds: float = 0.1, limit_seconds: float = 5.0) -> Iterator[float]:
    """Waiting times that double up to a limit, spread a little so that many clients do not knock together."""
    seconds = first_seconds
    while True:
        yield seconds * random.uniform(0.8, 1.2)  # noqa: S311
        seconds = min(seconds * 2, limit_seconds)
