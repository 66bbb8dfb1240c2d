"""Capture against pg_recvlogical: how close is it to the limit of any reader of a slot?

pg_recvlogical writes what it receives to /dev/null; capture frames it, checks it, writes it to a journal and syncs
that. Both read the same WAL with the same options, each time from a new copy of a slot that was made before the load.
They take turns, and the median of three counts, so that a slow moment of the machine does not favour one.

Capture can be the faster one. The walsender sends every message by itself, and waking a reader costs it: pg_recvlogical
sleeps as soon as it has caught up and was woken 40,000 to 200,000 times for a million changes, capture, busy with what
it has, fewer than 10,000 times; the walsender spent 2.6 to 6.0 s in the kernel with the first, 1.6 to 2.0 s with it.

The clock of capture runs from the moment when it streams until the journal has synced the end of the load; that of
pg_recvlogical covers its whole run, whose start takes a hundredth of a second.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import psycopg
from psycopg import sql

from bench import Figure
from pgtide.capture.process import CaptureProcess
from pgtide.config import Config
from pgtide.embedded.postgres import EmbeddedPostgres
from pgtide.journal import JournalDirectory, JournalReader
from pgtide.lsn import LSN
from pgtide.postgres.catalog import one
from pgtide.postgres.connection import Connection

_RUNS = 3
_POLL_SECONDS = 0.01
_GIVE_UP_SECONDS = 300.0

# Checkpoints come when we ask for them, between the runs.
_SETTINGS = {"max_wal_size": "16GB", "checkpoint_timeout": "1h"}

# Ten columns of the usual types, about 200 bytes a change.
_TABLE = """
create table measured (
    id bigint primary key, number int, name text, filler text, amount numeric(12,2),
    at timestamptz, flag bool, token uuid, document jsonb, ratio float8
);
create publication measured for table measured;
create procedure fill(first bigint, rows bigint, rows_per_transaction bigint) language plpgsql as $$
begin
    for start in first .. first + rows - 1 by rows_per_transaction loop
        insert into measured
        select n, mod(n, 1000), 'name ' || n, repeat('x', 40), n * 0.01, now(), mod(n, 2) = 0, gen_random_uuid(),
               jsonb_build_object('k', n), n * 1.5
        from generate_series(start, start + rows_per_transaction - 1) n;
        commit;
    end loop;
end $$;
"""


@dataclass(frozen=True)
class Scenario:
    rows: int
    rows_per_transaction: int

    @property
    def name(self) -> str:
        return f"{self.rows:,} inserts by {self.rows_per_transaction:,}"


_SCENARIOS = (Scenario(1_000_000, 100_000), Scenario(500_000, 20), Scenario(100_000, 1))


@dataclass(frozen=True)
class _Run:
    seconds: float
    cpu_seconds: float
    rss_bytes: int


def measure() -> list[Figure]:
    """All scenarios, on one server."""
    figures = []
    with EmbeddedPostgres(18, _SETTINGS) as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(_TABLE)
        first = 0
        for scenario in _SCENARIOS:
            figures += _measure(server, connection, scenario, first)
            first += scenario.rows
    return figures


def _measure(server: EmbeddedPostgres, connection: Connection, scenario: Scenario, first: int) -> list[Figure]:
    with _slot(connection, "base", "select pg_create_logical_replication_slot('base', 'pgoutput')"):
        end = _load(connection, scenario, first)
        received, captured = [], []
        for _ in range(_RUNS):
            with _copied_slot(connection, "received"):
                received.append(_receive(server, "received", end))
            with _copied_slot(connection, "captured"):
                captured.append(_capture(server, "captured", end))
    return _figures(scenario, received, captured)


def _figures(scenario: Scenario, received: list[float], captured: list[_Run]) -> list[Figure]:
    limit = median(received)
    seconds = median(run.seconds for run in captured)

    def figure(measure: str, value: float, unit: str = "", runs: Iterable[float] = ()) -> Figure:
        return Figure("capture", scenario.name, measure, value, unit, tuple(runs))

    return [
        figure("pg_recvlogical to /dev/null", limit, "s", received),
        figure("capture into a synced journal", seconds, "s", [run.seconds for run in captured]),
        figure("capture into a synced journal", scenario.rows / seconds, "changes/s"),
        figure("pg_recvlogical / capture, 1 = as fast", limit / seconds),
        figure("CPU of the capture process", median(run.cpu_seconds for run in captured), "s"),
        figure("peak RSS of the capture process", max(run.rss_bytes for run in captured) / 2**20, "MiB"),
    ]


def _load(connection: Connection, scenario: Scenario, first: int) -> LSN:
    """Write the WAL to be read; gives an LSN in the transaction that ends it."""
    # Only the loading: how durable the source's commits are makes no difference to a reader afterwards.
    connection.execute("set synchronous_commit = off")
    connection.execute("call fill(%s, %s, %s)", [first, scenario.rows, scenario.rows_per_transaction])
    connection.execute("reset synchronous_commit")
    (end,) = one(connection, "select pg_logical_emit_message(true, 'bench', 'end')::text")
    # Something after the end, or pg_recvlogical would learn only from the next keepalive that it is past it.
    connection.execute("select pg_logical_emit_message(true, 'bench', 'past the end')")
    return LSN.parse(end)


def _receive(server: EmbeddedPostgres, slot: str, end: LSN) -> float:
    options = {"proto_version": "1", "publication_names": "measured", "binary": "true", "messages": "true"}
    command = [str(server.bin("pg_recvlogical")), "-d", server.dsn, "-S", slot, "--start", "-f", "/dev/null"]
    command += ["-E", str(end), "--no-loop", *(f"--option={name}={value}" for name, value in options.items())]
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def _capture(server: EmbeddedPostgres, slot: str, end: LSN) -> _Run:
    with tempfile.TemporaryDirectory(prefix="pgtide-bench-") as directory:
        journal = Path(directory, "journal")
        source = {"dsn": server.dsn, "slot": slot, "publication": "measured"}
        capture = CaptureProcess(Config.model_validate({"source": source, "journal": {"url": str(journal)}}))
        capture.start()
        try:
            capture.wait_until_streaming()
            return _watch(capture, JournalReader(JournalDirectory(journal)), end)
        finally:
            capture.stop()


def _watch(capture: CaptureProcess, reader: JournalReader, end: LSN) -> _Run:
    process = psutil.Process(capture.pid)
    cpu_before = sum(process.cpu_times()[:2])
    rss = 0
    began = time.perf_counter()
    while reader.head().restart_lsn < end:
        capture.poll()
        rss = max(rss, process.memory_info().rss)
        if time.perf_counter() - began > _GIVE_UP_SECONDS:
            raise TimeoutError(f"capture has not reached {end} after {_GIVE_UP_SECONDS:.0f} seconds")
        time.sleep(_POLL_SECONDS)
    return _Run(time.perf_counter() - began, sum(process.cpu_times()[:2]) - cpu_before, rss)


@contextmanager
def _copied_slot(connection: Connection, name: str) -> Iterator[None]:
    """A slot that begins where the base slot does; whatever the last run left to write is written first."""
    connection.execute("checkpoint")
    copy = sql.SQL("select pg_copy_logical_replication_slot('base', {})").format(sql.Literal(name))
    with _slot(connection, name, copy.as_string(connection)):
        yield


@contextmanager
def _slot(connection: Connection, name: str, create: str) -> Iterator[None]:
    connection.execute(create.encode())
    try:
        yield
    finally:
        # Its reader is gone, but the server may not have noticed yet.
        while one(connection, "select active from pg_replication_slots where slot_name = %s", [name])[0]:
            time.sleep(_POLL_SECONDS)
        connection.execute("select pg_drop_replication_slot(%s)", [name])
