"""The workload: customers, clerks and the warehouse, all at once.

A number of writers, each a thread with a connection of its own, run transactions of random kinds against the shop
(`transactions.py`) until they are told to stop. Whatever happens to the server, they connect again and go on. A
transaction that loses against another (a deadlock, a row that somebody else changed) is tried again.

Invariant: only what has committed is counted as changed. A commit whose answer was lost with the connection is not.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psycopg
from psycopg import IsolationLevel
from psycopg import errors as pg

from pgtide.demo.transactions import BULK_ROWS, KINDS, Kind, Till
from pgtide.errors import PgtideError
from pgtide.postgres.connection import Connection, source_errors, translate
from pgtide.retry import backoff

# Two writers were in each other's way: the same transaction will do the next time.
_CONFLICTS = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation, pg.ForeignKeyViolation)
_CONFLICTS_MAX = 10
# Every fourth writer works under repeatable read, which is where serialization failures come from.
_STRICT_WRITER = 4
# A writer that waits for a lock when the end has come is given this long, then its statement is cancelled.
_STOP_SECONDS = 1.0
# How far writers may fall behind their rate and still make up for it.
_ARREARS_SECONDS = 1.0


@dataclass(frozen=True)
class Counts:
    """What the writers have done so far.

    `transactions` have committed and changed `rows` rows between them; `rolled_back` were rolled back on purpose.
    `retried` lost against another writer and ran again. `by_kind` counts the finished ones of each kind, those rolled
    back too.
    """

    transactions: int
    rolled_back: int
    rows: int
    retried: int
    reconnects: int
    by_kind: dict[str, int]


class Workload:
    """Writers at work on the shop at `dsn`, from `start` to `stop`, or for as long as the `with` block lasts.

    With `rate_per_second` they change about that many rows a second between them, else as many as they can. With a
    `seed` each writer's choices are the same in every run, though not their interleaving.
    """

    def __init__(
        self, dsn: str, *, writers: int = 4, seed: int | None = None, rate_per_second: float | None = None
    ) -> None:
        self._dsn = dsn
        self._seed = random.SystemRandom().getrandbits(64) if seed is None else seed
        self._pace = _Pace(rate_per_second)
        self._ledger = _Ledger()
        self._stopping = threading.Event()
        self._writers = [
            _Writer(dsn, index, random.Random(f"{self._seed}/{index}"), self._pace, self._ledger, self._stopping)
            for index in range(writers)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What failed in the block is the story; a writer's failure would only hide it.
        with contextlib.suppress(PgtideError) if error is not None else contextlib.nullcontext():
            self.stop()

    @property
    def counts(self) -> Counts:
        return self._ledger.counts()

    @property
    def transactions(self) -> int:
        return self.counts.transactions

    @property
    def rolled_back(self) -> int:
        return self.counts.rolled_back

    @property
    def rows(self) -> int:
        """How many rows have been changed so far."""
        return self.counts.rows

    @property
    def running(self) -> bool:
        """Whether every writer is at work. False before the start, after the stop, and when one has failed."""
        return all(writer.is_alive() for writer in self._writers) and not self._stopping.is_set()

    def start(self) -> None:
        """Set the writers to work. Raises SourceError if there is no shop to work on. Can be done once."""
        with source_errors(), psycopg.connect(self._dsn) as connection:
            Till.open(connection, random.Random(self._seed))
        self._pace.start()
        for writer in self._writers:
            writer.start()

    def stop(self) -> None:
        """End all writers and wait for them: what they were at is committed or rolled back. May be called again.

        Raises what made a writer fail, if one did: anything but a conflict or a server that was away.
        """
        self._stopping.set()
        started = [writer for writer in self._writers if writer.ident is not None]
        deadline = time.monotonic() + _STOP_SECONDS
        for writer in started:
            writer.join(max(deadline - time.monotonic(), 0))
        for writer in started:
            writer.cancel()
            writer.join()
        for writer in started:
            if writer.failure is not None:
                raise translate(writer.failure) from writer.failure


class _Writer(threading.Thread):
    """Runs transactions until told to stop; `failure` is what ended it before."""

    def __init__(
        self,
        dsn: str,
        index: int,
        chance: random.Random,
        pace: _Pace,
        ledger: _Ledger,
        stopping: threading.Event,
    ) -> None:
        super().__init__(name=f"shop-writer-{index}", daemon=True)
        strict = index % _STRICT_WRITER == _STRICT_WRITER - 1
        self._isolation = IsolationLevel.REPEATABLE_READ if strict else IsolationLevel.READ_COMMITTED
        self._dsn = dsn
        self._chance = chance
        self._pace = pace
        self._ledger = ledger
        self._stopping = stopping
        self._connection: Connection | None = None
        self.failure: psycopg.Error | None = None

    def run(self) -> None:
        delays = backoff(0.05, 1.0)
        while not self._stopping.is_set():
            before = self._ledger.finished
            try:
                self._session()
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if self._stopping.is_set():
                    return
                if self._ledger.finished > before:
                    delays = backoff(0.05, 1.0)
                self._ledger.reconnected()
                self._stopping.wait(next(delays))
            except psycopg.Error as error:
                self.failure = error
                self._stopping.set()

    def cancel(self) -> None:
        """Interrupt what this writer waits for, if it waits."""
        connection = self._connection
        if self.is_alive() and connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_STOP_SECONDS)

    def _session(self) -> None:
        """One connection, from connect to loss or stop."""
        with psycopg.connect(self._dsn, application_name="pgtide workload", connect_timeout=5) as connection:
            self._connection = connection
            connection.isolation_level = self._isolation
            till = Till.open(connection, self._chance, self._pace.bulk_rows)
            connection.rollback()
            weights = [kind.weight for kind in KINDS]
            while self._pace.wait(self._stopping):
                (kind,) = self._chance.choices(KINDS, weights)
                self._finish(till, kind)

    def _finish(self, till: Till, kind: Kind) -> None:
        """Run one transaction, again if it loses against another writer. One that keeps losing is given up."""
        for _ in range(_CONFLICTS_MAX):
            try:
                rows = kind.run(till)
                till.connection.rollback() if kind.rolled_back else till.connection.commit()
            except _CONFLICTS:
                till.connection.rollback()
                self._ledger.retried()
                continue
            self._pace.done(0 if kind.rolled_back else rows)
            self._ledger.finish(kind, rows)
            return


class _Pace:
    """Holds all writers together to a rate: each transaction moves on the time at which the next may begin."""

    def __init__(self, rate_per_second: float | None) -> None:
        self._seconds_per_row = 0.0 if rate_per_second is None else 1 / rate_per_second
        # No single statement may be worth more than half a second of the rate.
        self.bulk_rows = BULK_ROWS if rate_per_second is None else min(BULK_ROWS, max(int(rate_per_second / 2), 2))
        self._lock = threading.Lock()
        self._due = 0.0

    def start(self) -> None:
        self._due = time.monotonic()

    def wait(self, stopping: threading.Event) -> bool:
        """Wait until the next transaction may begin; false if the end has come instead."""
        while self._seconds_per_row and not stopping.is_set():
            early = self._due - time.monotonic()
            if early <= 0:
                break
            stopping.wait(early)
        return not stopping.is_set()

    def done(self, rows: int) -> None:
        with self._lock:
            earliest = time.monotonic() - _ARREARS_SECONDS
            self._due = max(self._due, earliest) + rows * self._seconds_per_row


class _Ledger:
    """Counts for all writers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_kind: Counter[str] = Counter({kind.name: 0 for kind in KINDS})
        self._transactions = self._rolled_back = self._rows = self._retried = self._reconnects = 0

    @property
    def finished(self) -> int:
        return self._transactions + self._rolled_back

    def finish(self, kind: Kind, rows: int) -> None:
        with self._lock:
            self._by_kind[kind.name] += 1
            self._transactions += not kind.rolled_back
            self._rolled_back += kind.rolled_back
            self._rows += 0 if kind.rolled_back else rows

    def retried(self) -> None:
        with self._lock:
            self._retried += 1

    def reconnected(self) -> None:
        with self._lock:
            self._reconnects += 1

    def counts(self) -> Counts:
        with self._lock:
            return Counts(
                self._transactions,
                self._rolled_back,
                self._rows,
                self._retried,
                self._reconnects,
                dict(self._by_kind),
            )
