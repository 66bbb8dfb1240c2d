"""Freshness: how long after its commit is a row in the lake, while the source is being written to?

Everything runs as it would for a person: a shop, `pgtide run` in a process of its own, writers that change 2,000 rows a
second. A probe is a row in a table of its own; its time runs from the return of its commit until a reader who opens the
Delta table anew sees it. The reader looks every 50 ms, so a figure can be that much too high, never too low.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import psycopg
import pyarrow.compute
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from bench import Figure
from pgtide.config import load_config
from pgtide.demo.shop import load_shop
from pgtide.demo.show import RunProcess
from pgtide.demo.workload import Workload
from pgtide.embedded.postgres import EmbeddedPostgres
from pgtide.postgres.connection import Connection, connect
from pgtide.postgres.control import initialise

_RATE_PER_SECOND = 2000
_PROBES = 40
_PAUSE_SECONDS = 0.5
_WARM_UP_SECONDS = 15.0
_LOOK_SECONDS = 0.05
_GIVE_UP_SECONDS = 300.0


def measure() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="pgtide-bench-") as name,
        EmbeddedPostgres(18) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        load_shop(connection)
        connection.execute("create table probe (id bigint primary key, at timestamptz not null default now())")
        connection.execute("insert into probe values (0)")
        directory = Path(name)
        _initialise(server.dsn, directory)
        process = RunProcess(directory)
        try:
            return _measure(server.dsn, connection, directory / "lake" / "public" / "probe", process)
        finally:
            process.stop()


def _initialise(dsn: str, directory: Path) -> None:
    document = {
        "source": {"dsn": dsn, "tables": ["shop.*", "public.probe"]},
        "journal": {"url": str(directory / "journal")},
        "pipelines": [{"name": "lake", "sink": {"type": "delta", "path": str(directory / "lake")}}],
    }
    path = directory / "pgtide.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    config = load_config(path, environ={})
    with connect(config.source) as connection:
        initialise(connection, config.source)


def _measure(dsn: str, connection: Connection, probe: Path, process: RunProcess) -> list[Figure]:
    lake = _Onlooker(probe)
    _wait(lambda: process.last.get("phase") == "running" and lake.sees(0), process)
    with Workload(dsn, rate_per_second=_RATE_PER_SECOND) as workload:
        time.sleep(_WARM_UP_SECONDS)
        began, rows_before = time.monotonic(), workload.rows
        seconds = [_probe(connection, lake, number, process) for number in range(1, _PROBES + 1)]
        rate = (workload.rows - rows_before) / (time.monotonic() - began)
    scenario = f"shop, {_RATE_PER_SECOND:,} row changes/s"
    return [
        Figure("freshness", scenario, "row changes, as measured", rate, "rows/s"),
        Figure("freshness", scenario, "commit to visible in Delta, p50", median(seconds), "s", tuple(seconds)),
        Figure("freshness", scenario, "commit to visible in Delta, p95", quantiles(seconds, n=20)[-1], "s"),
        Figure("freshness", scenario, "commit to visible in Delta, slowest", max(seconds), "s"),
    ]


def _probe(connection: Connection, lake: _Onlooker, number: int, process: RunProcess) -> float:
    """Seconds until a new row is visible."""
    time.sleep(_PAUSE_SECONDS)
    connection.execute("insert into probe values (%s)", [number])
    committed = time.perf_counter()
    _wait(lambda: lake.sees(number), process)
    return time.perf_counter() - committed


class _Onlooker:
    """Reads the table of probes as a stranger would, and only when there is a new version of it: on a small machine
    every look takes something from what is being measured."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._version = -1

    def sees(self, number: int) -> bool:
        try:
            table = DeltaTable(self._path)
        except TableNotFoundError:
            return False
        if table.version() == self._version:
            return False
        self._version = table.version()
        found = table.to_pyarrow_dataset().to_table(filter=pyarrow.compute.field("id") == number)
        return bool(found.num_rows)


def _wait(condition: Callable[[], bool], process: RunProcess) -> None:
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while not condition():
        process.require_alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing to be seen after {_GIVE_UP_SECONDS:.0f} seconds; pgtide says: {process.last}")
        time.sleep(_LOOK_SECONDS)
