"""`pgtide run`, `status` and `verify`, as a person uses them."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg

from pgtide.embedded.postgres import EmbeddedPostgres
from tests.fixtures.commands import Workplace
from tests.fixtures.waiting import wait_until


def test_a_copy_is_started_watched_verified_and_stopped(tmp_path: Path, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table items (id int primary key, name text)")
        connection.execute("insert into items select n, 'item' from generate_series(1, 1000) n")
        connection.execute("analyze items")
    place = Workplace(tmp_path, database)
    assert "created replication slot" in place.run("init").out
    assert "nothing to do" in place.run("init").out
    assert place.run("check").status == 0

    running = place.start("run")
    running.wait_for("running")
    wait_until(lambda: place.run("status", "--json").document["snapshot"][0]["state"] == "done", timeout_seconds=60)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("update items set name = 'new' where id <= 10")
    verified = place.run("verify")
    assert verified.status == 0, verified
    assert verified.out.splitlines()[-1] == "verified: 1 tables, 1,000 rows, 0 differences"

    status = place.run("status", "--json").document
    assert status["source"]["slot_state"] == "active"
    assert status["pipelines"][0]["name"] == "lake"
    assert status["pipelines"][0]["changes"] >= 1010
    assert status["snapshot"] == [
        {
            "table": "public.items",
            "state": "done",
            "rows": 1000,
            "estimated_rows": 1000,
            "chunks": 1,
            "chunks_planned": 1,
        }
    ]
    assert running.interrupt() == 0
    assert "Traceback" not in running.log
    assert "WARN" not in running.log
    assert running.log.splitlines()[-1] == "stopped; the same command continues from here"

    assert place.run("destroy", "--yes").status == 0
    with psycopg.connect(database) as connection:
        assert connection.execute("select count(*) from pg_publication").fetchone() == (0,)


def test_verify_without_a_running_pipeline_says_so(tmp_path: Path, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table items (id int primary key, name text)")
    place = Workplace(tmp_path, database)
    assert place.run("init").status == 0
    result = place.run("verify", "--timeout", "1")
    assert result.status == 1
    assert "pgtide run" in result.err


def test_a_source_that_goes_away_is_waited_for_and_a_term_signal_to_the_group_stops_cleanly(tmp_path: Path) -> None:
    with EmbeddedPostgres(18, durable=False) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create table items (id int primary key, name text)")
            connection.execute("insert into items select n, 'item' from generate_series(1, 1000) n")
        place = Workplace(tmp_path, server.dsn)
        assert place.run("init").status == 0
        running = place.start("run")
        running.wait_for("starting Spark")
        server.stop("immediate")
        running.wait_for("running")
        running.wait_for("waiting")
        server.start()
        wait_until(lambda: place.run("verify").status == 0, timeout_seconds=120, describe=lambda: running.log)
        verified = place.run("verify", timeout_seconds=120)
        assert verified.status == 0, f"{verified}\n{running.log}"
        assert running.signal_group(signal.SIGTERM) == 0, running.log
        assert "Error" not in running.log
        assert "Exception" not in running.log
