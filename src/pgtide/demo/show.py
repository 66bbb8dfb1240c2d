"""The demo: everything that pgtide does, on a database of its own, in about a minute.

It uses pgtide as a person would: `init`, `run` in a process of its own, `verify`. What it leaves behind is one
directory with the lake, which can be looked at afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import psycopg
import yaml

from pgtide.config import Config, load_config
from pgtide.demo.shop import load_shop
from pgtide.demo.workload import Workload
from pgtide.embedded.postgres import EmbeddedPostgres
from pgtide.errors import ConfigError, PgtideError
from pgtide.postgres.connection import connect
from pgtide.postgres.control import initialise
from pgtide.verify import VerifyResult, verify

_MARKER = ".pgtide-demo"
_WRITERS = 4
# Lively, and yet the writers leave a small machine some room for the copying.
_CHANGES_PER_SECOND = 2000.0
_SHOW_SECONDS = 2.0


class Screen(Protocol):
    """Where the demo speaks: the command line's output."""

    as_json: bool
    console: Any

    def say(self, line: str = "", *, style: str | None = None) -> None: ...
    def show(self, renderable: Any) -> None: ...


def run_demo(screen: Screen, *, seconds: float, directory: Path, scale: float) -> VerifyResult:
    """Run the demo; raise what goes wrong. The result says how source and lake compare."""
    _empty(directory)
    began = time.monotonic()
    _heading(screen, "1. a Postgres with a small shop in it")
    with EmbeddedPostgres(version=18) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            rows = load_shop(connection, scale=scale)
        screen.say(f"   {len(rows)} tables, {sum(rows.values()):,} rows, in {time.monotonic() - began:.1f} s")
        config = _configure(screen, server.dsn, directory)
        _heading(
            screen, f"3. {_WRITERS} writers change it for {seconds:.0f} seconds, while pgtide run copies and follows"
        )
        with _running(directory) as process:
            _write_for(screen, server.dsn, process, seconds)
            process.wait_until_copied(len(rows))
            _heading(screen, "4. the writers have stopped; every row of the source is compared with the lake")
            result = verify(config, config.pipelines[0], progress=lambda line: screen.say(f"   {line}", style="dim"))
            process.require_alive()
    for table in result.tables:
        screen.say(f"   {table.table!s:<24} {table.rows:>9,} rows   {table.differences} differences")
    screen.say(f"   in {time.monotonic() - began:.0f} s altogether")
    _farewell(screen, directory)
    screen.say(result.summary, style="bold green" if not result.differences else "bold red")
    return result


def _empty(directory: Path) -> None:
    """Begin with an empty directory; refuse one that is somebody else's."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / _MARKER).exists():
            raise ConfigError(
                f"{directory} is not empty and not from an earlier demo", hint="choose another one with --directory"
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _MARKER).touch()


def _configure(screen: Screen, dsn: str, directory: Path) -> Config:
    _heading(screen, "2. pgtide init")
    path = directory / "pgtide.yaml"
    document = {
        "source": {"dsn": dsn, "slot": "pgtide_demo", "publication": "pgtide_demo", "tables": ["shop.*"]},
        "journal": {"url": str(directory / "journal")},
        "pipelines": [{"name": "lake", "sink": {"type": "delta", "path": str(directory / "lake")}}],
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    config = load_config(path, environ={})
    with connect(config.source) as connection:
        for line in initialise(connection, config.source):
            screen.say(f"   {line}")
    return config


class RunProcess:
    """`pgtide run --json` in a process of its own, and the last document it printed."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "pgtide", "run", "-c", str(directory / "pgtide.yaml"), "--json"]
        environment = {key: value for key, value in os.environ.items() if key != "PGTIDE_SOURCE_DSN"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        self.last: dict[str, Any] = {"phase": "starting"}
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            with contextlib.suppress(ValueError):
                self.last = json.loads(line)

    def require_alive(self) -> None:
        if self._process.poll() is not None:
            self._reader.join(5)
            error = self.last.get("error", {})
            raise PgtideError(
                error.get("message", "pgtide run ended unexpectedly"),
                detail=error.get("detail"),
                hint=error.get("hint"),
            )

    def wait_until_copied(self, tables: int) -> None:
        """Wait for the first copy of every table; on a slow machine it may last longer than the writers write."""
        while sum(each["done"] for each in self.last.get("snapshot", ())) < tables:
            self.require_alive()
            time.sleep(0.1)

    def stop(self) -> None:
        """As Ctrl-C would; the demo's data are throw-away, so it does not wait long."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def _running(directory: Path) -> Iterator[RunProcess]:
    process = RunProcess(directory)
    try:
        yield process
    finally:
        process.stop()


def _write_for(screen: Screen, dsn: str, process: RunProcess, seconds: float) -> None:
    """Let the writers write, and show how pgtide follows. The clock starts when pgtide runs."""
    with Workload(dsn, writers=_WRITERS, rate_per_second=_CHANGES_PER_SECOND) as workload:
        deadline: float | None = None
        shown_at, shown = 0.0, ""
        while deadline is None or time.monotonic() < deadline:
            process.require_alive()
            if deadline is None and process.last.get("phase") == "running":
                deadline = time.monotonic() + seconds
            line = _line(process.last)
            if time.monotonic() - shown_at >= _SHOW_SECONDS and line != shown:
                shown_at, shown = time.monotonic(), line
                screen.say(f"   {line}")
            time.sleep(0.1)
    screen.say(f"   written: {workload.transactions:,} transactions, {workload.rolled_back:,} of them rolled back")


def _line(document: dict[str, Any]) -> str:
    """What `pgtide run` last said, in one line."""
    parts = [f"{document.get('phase', ''):<9}"]
    tables = document.get("snapshot") or []
    if tables:
        rows = sum(each["rows"] for each in tables)
        estimated = sum(max(each["rows"], each["estimated_rows"]) for each in tables)
        parts.append(f"copied {rows:>9,} of about {estimated:,} rows")
    if document.get("phase") == "running":
        parts.append(f"{document['changes_per_second']:>7,.0f} changes/s")
        parts.append(f"lag {document['lag_bytes'] / 1e6:.1f} MB, {document['lag_seconds']:.1f} s")
    return "   ".join(parts)


def _heading(screen: Screen, text: str) -> None:
    screen.say()
    screen.say(text, style="bold")


def _farewell(screen: Screen, directory: Path) -> None:
    """How to look at the lake, and how to go on. Lines that are meant to be pasted are not indented."""
    python = os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else sys.executable
    query = "select status, count(*) as orders, sum(total) as total from orders group by status order by status"
    screen.say()
    screen.say("The lake is ordinary Delta tables. Query it:", style="bold")
    screen.say(f"""
{python} -c "
from deltalake import DeltaTable, QueryBuilder
orders = DeltaTable('{directory}/lake/shop/orders')
query = '{query}'
print(QueryBuilder().register('orders', orders).execute(query).read_all())"
""")
    screen.say("Your own database (the README shows what goes into pgtide.yaml):", style="bold")
    pgtide = os.path.join(os.path.dirname(python), "pgtide")
    screen.say(f"""
{pgtide} init  --dsn postgresql://user@host:5432/database
{pgtide} check -c pgtide.yaml
{pgtide} run   -c pgtide.yaml
""")
