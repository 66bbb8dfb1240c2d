"""kill -9 of everything at random moments of the first copy and of the stream: the same command again, nothing lost.

The seed is printed; PGTIDE_CRASH_SEED repeats a run, PGTIDE_CRASH_KILLS makes it longer.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import psycopg
import pytest

from pgtide.demo.shop import load_shop
from pgtide.demo.workload import Workload
from pgtide.embedded.postgres import EmbeddedPostgres
from tests.fixtures.commands import Workplace
from tests.fixtures.waiting import wait_until

KILLS = int(os.environ.get("PGTIDE_CRASH_KILLS", "10"))


def all_copied(place: Workplace) -> bool:
    tables = place.run("status", "--json").document["snapshot"]
    return len(tables) == 7 and all(table["state"] == "done" for table in tables)


@pytest.mark.timeout(900)
def test_killing_everything_at_random_moments_leaves_an_exact_copy(tmp_path: Path) -> None:
    seed = int(os.environ.get("PGTIDE_CRASH_SEED", str(random.randrange(2**32))))
    print(f"PGTIDE_CRASH_SEED={seed}")
    chance = random.Random(seed)
    with EmbeddedPostgres(version=18) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            load_shop(connection, scale=0.3)
        # Small chunks: the first copy then lasts over several kills.
        place = Workplace(tmp_path, server.dsn, tables=["shop.*"], snapshot_chunk_bytes=256 * 1024)
        assert place.run("init").status == 0
        with Workload(server.dsn, writers=3, rate_per_second=800):
            for _ in range(KILLS):
                running = place.start("run", "--json")
                time.sleep(chance.uniform(1.0, 14.0))  # the moment of the kill is the point, not a condition
                running.kill_group()
        running = place.start("run", "--json")
        try:
            running.wait_for('"phase": "running"')
            wait_until(lambda: all_copied(place), timeout_seconds=240, describe=lambda: running.log[-3000:])
            result = place.run("verify", "--json", timeout_seconds=240)
        finally:
            status = running.interrupt()
        assert result.status == 0, f"{result.out}\n{result.err}\n{running.log[-3000:]}"
        (verified,) = result.document["pipelines"]
        assert verified["differences"] == 0
        assert verified["rows"] > 50_000
        assert status == 0
