"""Waiting until a pipeline has passed the present.

Everything that a session can see has its commit record before the WAL position that it reads next. A pipeline that
has applied that position has applied all of it. A barrier message follows, so that even in an idle database there
is a transaction for the pipeline to come to.
"""

from __future__ import annotations

import time
import uuid

from pgtide.config import Config
from pgtide.errors import VerifyError
from pgtide.journal import Consumers, JournalDirectory
from pgtide.lsn import LSN, ZERO
from pgtide.postgres.connection import Connection
from pgtide.postgres.control import current_lsn, emit
from pgtide.snapshot.events import Barrier, dump_event

_POLL_SECONDS = 0.05


class Passing:
    """Waits for one pipeline."""

    def __init__(self, connection: Connection, config: Config, pipeline: str, timeout_seconds: float) -> None:
        self._connection = connection
        self._slot = config.source.slot
        self._consumers = Consumers(JournalDirectory(config.journal.path))
        self._pipeline = pipeline
        self._timeout_seconds = timeout_seconds

    def wait(self) -> None:
        """Return when the pipeline has applied all that is visible now.

        However far behind it is, it is waited for as long as it moves; raises VerifyError once it stands still.
        """
        target = current_lsn(self._connection)
        emit(self._connection, self._slot, dump_event(Barrier(uuid.uuid4().hex[:12])))
        reached = self._applied()
        moved_at = time.monotonic()
        while reached < target:
            if time.monotonic() - moved_at > self._timeout_seconds:
                raise self._stuck(reached, target)
            time.sleep(_POLL_SECONDS)
            now_at = self._applied()
            if now_at > reached:
                reached, moved_at = now_at, time.monotonic()

    def _applied(self) -> LSN:
        consumer = self._consumers.load(self._pipeline)
        return ZERO if consumer is None else consumer.applied_lsn

    def _stuck(self, reached: LSN, target: LSN) -> VerifyError:
        found = f"it has applied up to {reached}" if reached else "it has applied nothing yet"
        return VerifyError(
            f"pipeline {self._pipeline!r} has not moved for {self._timeout_seconds:g} seconds",
            detail=f"{found}; verification waits until it has applied {target}",
            hint="is `pgtide run` running? it must be, and on this journal; if it only needs longer, give it more time",
        )
