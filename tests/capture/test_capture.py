"""Capture against Postgres: everything committed is in the journal, once and in order, whatever stops it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtide.capture import loop
from pgtide.capture.process import CaptureProcess
from pgtide.config import Config
from pgtide.embedded.postgres import EmbeddedPostgres, StopMode
from pgtide.errors import PgtideError, SlotError, SourceError, SourceMismatch, SourceUnreachable
from pgtide.lsn import LSN
from pgtide.pgoutput import Begin, Delete, Insert, Message, Truncate, Update
from tests.capture.proxy import Proxy
from tests.capture.running import (
    CaptureThread,
    capture_forever,
    capturing,
    changes_in,
    confirmed_lsn,
    current_lsn,
    head,
    in_transactions,
    journal_messages,
    make_config,
    oracle_messages,
    set_up,
    wait_for_marker,
)
from tests.fixtures.waiting import wait_until

LEDGER = "create table ledger (id bigint generated always as identity primary key, worker int, n int, filler text)"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def execute(dsn: str, *statements: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def assert_exact(config, dsn) -> None:
    """The journal has what Postgres has committed: each change once, in commit order."""
    wait_for_marker(config, dsn)
    assert journal_messages(config) == in_transactions(oracle_messages(config, dsn))


class Writers:
    """Clients that write to the ledger until told to stop, in transactions of every size, some rolled back."""

    def __init__(self, dsn: str, count: int = 2) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(worker,)) for worker in range(count)]
        self.committed = 0

    def _write(self, worker: int) -> None:
        random_ = random.Random(worker)
        n = 0
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn) as connection:
                    while not self._stop.is_set():
                        n += 1
                        self._transaction(connection, random_, worker, n)
            except psycopg.OperationalError:
                self._stop.wait(0.05)  # the server is being restarted

    def _transaction(self, connection: psycopg.Connection[Any], random_: random.Random, worker: int, n: int) -> None:
        rows = random_.choice([1, 1, 1, 3, 30, 300])
        connection.execute(
            "insert into ledger (worker, n, filler)"
            " select %s, %s, repeat(md5(i::text), 20) from generate_series(1, %s) i",
            [worker, n, rows],
        )
        connection.execute("update ledger set n = -n where worker = %s and n = %s", [worker, n - 3])
        connection.execute("delete from ledger where worker = %s and n = %s", [worker, -(n - 6)])
        if random_.random() < 0.2:
            connection.rollback()
        else:
            connection.commit()
            self.committed += 1
        self._stop.wait(0.02)

    def have_committed(self, count: int) -> bool:
        return self.committed > count

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def _beyond(config: Config, lsn: int) -> bool:
    return head(config).restart_lsn > lsn


def _confirmed(connection: psycopg.Connection[Any], config: Config, lsn: LSN) -> bool:
    return confirmed_lsn(connection, config) >= lsn


@contextmanager
def captured_by_process(config) -> Iterator[CaptureProcess]:
    process = CaptureProcess(config)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def test_every_kind_of_change_is_captured_in_order(database, journal):
    execute(database, "create table t (id int primary key, v text)", "create table other (id int primary key)")
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        execute(
            database,
            "insert into t values (1, 'a'), (2, 'b')",
            "update t set v = 'c' where id = 1",
            "update t set id = 3 where id = 2",
            "delete from t where id = 1",
            'select pg_logical_emit_message(true, \'pgtide\', \'{"kind":"barrier","id":"x"}\')',
            "truncate t, other",
            "insert into other values (1)",
        )
        assert_exact(config, database)
    kinds = [type(message) for message in changes_in(journal_messages(config))]
    assert kinds == [Insert, Insert, Update, Update, Delete, Truncate, Insert]


def test_transactions_stand_in_the_order_of_their_commits(database, journal):
    execute(database, "create table t (id int primary key)")
    config = make_config(database, journal)
    set_up(config)
    with capturing(config), psycopg.connect(database) as first, psycopg.connect(database) as second:
        first.execute("insert into t values (1)")
        second.execute("insert into t values (2)")
        second.commit()
        first.execute("insert into t values (3)")
        first.commit()
        second.execute("insert into t values (4)")
        second.rollback()
        assert_exact(config, database)
    begins = [message for message in journal_messages(config) if isinstance(message, Begin)]
    assert begins == sorted(begins, key=lambda begin: begin.final_lsn)


def test_messages_outside_of_transactions_do_not_stop_capture(database, journal):
    """Other tools write heartbeats this way."""
    execute(database, "create table t (id int primary key)")
    config = make_config(database, journal)
    set_up(config)
    heartbeat = "select pg_logical_emit_message(false, 'heartbeat', 'x')"
    execute(database, heartbeat)
    with capturing(config) as capture:
        execute(database, heartbeat, "insert into t values (1)", heartbeat, heartbeat, "insert into t values (2)")
        execute(database, heartbeat)
        assert_exact(config, database)
        assert capture.progress.reconnects == 0
        assert capture.states == ["streaming"]
    with capturing(config):
        execute(database, heartbeat, "insert into t values (3)")
        assert_exact(config, database)


def test_a_transaction_much_larger_than_a_block_is_captured_whole(database, journal, monkeypatch):
    monkeypatch.setattr(loop, "BLOCK_SIZE_BYTES", 64 * 1024)
    monkeypatch.setattr("pgtide.capture.assemble.BLOCK_SIZE_BYTES", 64 * 1024)
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        with psycopg.connect(database) as connection, psycopg.connect(database, autocommit=True) as other:
            connection.execute("insert into ledger (n, filler) select i, md5(i::text) from generate_series(1, 20000) i")
            other.execute("insert into ledger (n) values (1)")
            connection.execute("savepoint s")
            connection.execute("insert into ledger (n) select i from generate_series(1, 1000) i")
            connection.execute("rollback to s")
            connection.execute("delete from ledger where n % 2 = 0")
            connection.commit()
            other.execute("insert into ledger (n) values (2)")
        assert_exact(config, database)


def test_a_stopped_capture_continues_without_loss_or_repetition(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with Writers(database) as writers:
        for _ in range(6):
            before = writers.committed
            with capturing(config):
                wait_until(partial(writers.have_committed, before + 3))
    with capturing(config):
        assert_exact(config, database)
    assert writers.committed > 20


def test_a_capture_killed_at_random_moments_loses_nothing_and_repeats_nothing(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    random_ = random.Random(4711)
    moment = threading.Event()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.capture.running"])
    with Writers(database) as writers:
        for kill in range(18):
            process = context.Process(target=capture_forever, args=(config,))
            start = head(config).restart_lsn if kill else 0
            process.start()
            if random_.random() < 0.7:
                wait_until(partial(_beyond, config, start))
            moment.wait(random_.random() * 0.2)
            process.kill()
            process.join()
    assert writers.committed > 50
    with captured_by_process(config) as last:
        last.wait_until_streaming()
        assert_exact(config, database)


def test_a_killed_capture_process_is_noticed_and_another_goes_on(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with captured_by_process(config) as process:
        process.wait_until_streaming()
        execute(database, "insert into ledger (n) values (1)")
        wait_for_marker(config, database)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PgtideError, match="ended unexpectedly"):
            wait_until(lambda: process.poll() is None)
    execute(database, "insert into ledger (n) values (2)")
    with captured_by_process(config):
        assert_exact(config, database)


def test_postgres_may_stop_and_crash_while_it_is_captured(journal):
    with EmbeddedPostgres(18, durable=False) as server:
        dsn = server.dsn
        execute(dsn, LEDGER)
        config = make_config(dsn, journal)
        set_up(config)
        with Writers(dsn) as writers, CaptureThread(config) as capture:
            modes: list[StopMode | None] = ["fast", None, "immediate", None, "fast"]
            for mode in modes:
                capture.wait_until_streaming()
                before, reconnects = writers.committed, capture.progress.reconnects
                wait_until(partial(writers.have_committed, before + 5))
                if mode is None:
                    server.kill()
                    server.start()
                else:
                    server.restart(mode)
                wait_until(partial(capture.has_reconnected, reconnects + 1), describe=lambda: capture.progress)
            writers.__exit__()
            assert_exact(config, dsn)


def test_a_session_that_is_terminated_is_begun_again(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with Writers(database, 1), capturing(config) as capture:
        for count in range(1, 6):
            terminate = (
                "select pg_terminate_backend(active_pid) from pg_replication_slots"
                f" where slot_name = '{config.source.slot}' and active_pid is not null"
            )
            execute(database, terminate)
            wait_until(partial(capture.has_reconnected, count))
    assert capture.error is None
    with capturing(config):
        assert_exact(config, database)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "cut",
    [{"cut_at": b"START_REPLICATION"}, {"cut_at": b"pg_replication_slots"}, {"cut_after_bytes": 20_000, "times": 2}],
    ids=["as streaming begins", "as the slot is looked at", "in the stream"],
)
def test_a_connection_that_is_cut_is_made_again(database, postgres18, journal, cut, reset):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        wait_for_marker(config, database)
    with Proxy(postgres18.port, reset=reset, **cut) as proxy:
        through = database.replace(f":{postgres18.port}/", f":{proxy.port}/")
        with CaptureThread(make_config(through, journal)) as capture:
            if cut.get("cut_at") == b"pg_replication_slots":
                capture.join()
                assert isinstance(capture.error, SourceUnreachable)
                capture.error = None
                return
            execute(database, *["insert into ledger (n, filler) values (1, repeat('x', 1000))"] * 200)
            wait_until(lambda: proxy.cuts == cut.get("times", 1) or capture.error, describe=lambda: capture.progress)
            assert_exact(config, database)
            assert capture.progress.reconnects >= 1


def test_nothing_is_acknowledged_that_is_not_in_the_journal(database, journal, monkeypatch):
    monkeypatch.setattr(loop, "ACKNOWLEDGE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "ADVANCE_SECONDS", 0.0)
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with Writers(database) as writers, capturing(config), psycopg.connect(database, autocommit=True) as connection:
        while writers.committed < 60:
            confirmed = confirmed_lsn(connection, config)
            assert confirmed <= head(config).restart_lsn or head(config).offset == 0


def test_a_full_disk_makes_capture_wait_and_nothing_is_acknowledged_meanwhile(database, megabyte_disk, monkeypatch):
    monkeypatch.setattr(loop, "ACKNOWLEDGE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "ADVANCE_SECONDS", 0.0)
    execute(database, LEDGER)
    config = make_config(database, megabyte_disk / "journal")
    set_up(config)
    ballast = megabyte_disk / "ballast"
    ballast.write_bytes(bytes(600 * 1024))
    with capturing(config) as capture, psycopg.connect(database, autocommit=True) as connection:
        for rows in (1, 10, 100, 200, 300):
            connection.execute(
                "insert into ledger (n, filler) select i, repeat('x', 1000) from generate_series(1, %s) i", [rows]
            )
        wait_until(lambda: "waiting" in capture.states, describe=lambda: capture.progress)
        assert confirmed_lsn(connection, config) <= head(config).restart_lsn
        wait_until(lambda: capture.states.count("waiting") > 2, describe=lambda: capture.progress)
        assert confirmed_lsn(connection, config) <= head(config).restart_lsn
        ballast.unlink()
        assert_exact(config, database)
        assert capture.progress.reconnects == 0


def test_a_source_that_is_busy_elsewhere_does_not_keep_its_wal(database, journal, monkeypatch):
    monkeypatch.setattr(loop, "ADVANCE_SECONDS", 0.5)
    execute(database, "create table t (id int primary key)", "create table unpublished (id int, filler text)")
    config = make_config(database, journal, tables=("public.t",))
    set_up(config)
    with capturing(config), psycopg.connect(database, autocommit=True) as connection:
        for _ in range(2):
            connection.execute("insert into unpublished select i, md5(i::text) from generate_series(1, 1000) i")
            written = current_lsn(connection)
            wait_until(partial(_confirmed, connection, config, written), timeout_seconds=15)
        execute(database, "insert into t values (1)")
        assert_exact(config, database)
    assert len(changes_in(journal_messages(config))) == 1


def test_a_stopped_capture_has_acknowledged_all_that_it_wrote(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        execute(database, "insert into ledger (n) values (1)")
        wait_for_marker(config, database)
    with psycopg.connect(database) as connection:
        assert confirmed_lsn(connection, config) == head(config).restart_lsn


# What cannot go on says why.


def start_error(config) -> PgtideError:
    with CaptureThread(config) as capture:
        capture.join()
        error, capture.error = capture.error, None
    assert isinstance(error, PgtideError), error
    return error


def test_a_missing_slot_is_named(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    error = start_error(config)
    assert isinstance(error, SlotError)
    assert "does not exist" in error.message
    assert "pgtide init" in (error.hint or "")
    assert not journal.exists()


def test_a_slot_that_is_read_by_another_is_named_after_a_while(database, journal, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SLOT_WAIT_SECONDS", 0.5)
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        error = start_error(make_config(database, tmp_path / "other"))
        assert isinstance(error, SlotError)
        assert "in use" in error.message
        assert "pg_stat_replication" in (error.hint or "")
        assert_exact(config, database)


def test_a_slot_that_is_ahead_of_the_journal_is_named(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        execute(database, "insert into ledger (n) values (1)")
        wait_for_marker(config, database)
    execute(database, "insert into ledger (n) values (2)")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", [config.source.slot])
    error = start_error(config)
    assert isinstance(error, SlotError)
    assert "ahead of the journal" in error.message
    assert str(head(config).restart_lsn) in (error.detail or "")


def test_a_slot_that_was_made_again_is_named(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        execute(database, "insert into ledger (n) values (1)")
        wait_for_marker(config, database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select pg_drop_replication_slot(%s)", [config.source.slot])
        connection.execute("insert into ledger (n) values (2)")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [config.source.slot])
    error = start_error(config)
    assert isinstance(error, SlotError)
    assert "ahead of the journal" in error.message


def test_a_slot_that_vanishes_while_capture_runs_is_named(journal):
    with EmbeddedPostgres(18, durable=False) as server:
        execute(server.dsn, LEDGER)
        config = make_config(server.dsn, journal)
        set_up(config)
        with CaptureThread(config) as capture:
            capture.wait_until_streaming()
            server.stop()
            # As if the server had been restored from a backup: those have no slots.
            for each in (server.data_directory / "pg_replslot").iterdir():
                for file in each.iterdir():
                    file.unlink()
                each.rmdir()
            server.start()
            capture.join()
            error, capture.error = capture.error, None
        assert isinstance(error, SlotError)
        assert "does not exist" in error.message


def test_a_journal_of_another_database_is_named(database, postgres18, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        execute(database, "insert into ledger (n) values (1)")
        wait_for_marker(config, database)
    other = make_config(database, journal, slot="another")
    set_up(other)
    error = start_error(other)
    assert isinstance(error, SourceMismatch)
    assert config.source.slot in (error.detail or "")
    assert error.hint


def test_a_journal_is_not_written_from_two_databases(database, postgres18, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config, oracle=False)
    with capturing(config):
        wait_for_marker(config, database)
    name = f"second_{config.source.slot[-12:]}"
    execute(postgres18.dsn, f"create database {name}")
    try:
        second = make_config(postgres18.dsn_for(name), journal)
        execute(postgres18.dsn_for(name), LEDGER)
        set_up(second, oracle=False)
        error = start_error(second)
        assert isinstance(error, SourceMismatch)
        assert name in (error.detail or "")
    finally:
        execute(postgres18.dsn, f"select pg_drop_replication_slot('{second.source.slot}')")
        execute(postgres18.dsn, f"drop database {name} with (force)")


def test_a_slot_of_another_database_is_named(database, postgres18, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    source = config.source.model_copy(update={"dsn": type(config.source.dsn)(postgres18.dsn)})
    error = start_error(config.model_copy(update={"source": source}))
    assert isinstance(error, SlotError)
    assert "belongs to database" in error.message


def test_a_source_that_cannot_be_reached_is_fatal_at_the_start(journal):
    config = make_config("postgresql://postgres@127.0.0.1:1/postgres", journal)
    process = CaptureProcess(config)
    process.start()
    with pytest.raises(SourceUnreachable) as caught:
        process.wait_until_streaming(20)
    process.stop()
    assert "source.dsn" in (caught.value.hint or "")


def test_a_wrong_user_database_or_password_is_named(tmp_path):
    secret = "the-right-password"
    with EmbeddedPostgres(18, durable=False, password=secret) as server:
        good = server.dsn
        for dsn, message in (
            (good.replace(secret, "the-wrong-password"), "refuses this user"),
            (good.replace(f":{secret}", ""), "refuses this user"),
            (good.replace("postgres:", "nobody_here:"), "refuses this user"),
            (server.dsn_for("not_there"), "database does not exist"),
        ):
            error = start_error(make_config(dsn, tmp_path / "journal"))
            assert isinstance(error, SourceError)
            assert not isinstance(error, SourceUnreachable)
            assert message in error.message
            assert error.hint
            assert "password-" not in str(error)
            assert secret not in str(error)
            assert "the-wrong-password" not in str(error)


def test_an_unknown_role_is_not_taken_for_an_unreachable_server(postgres18, journal):
    error = start_error(make_config(postgres18.dsn.replace("postgres@", "nobody_here@"), journal))
    assert isinstance(error, SourceError)
    assert not isinstance(error, SourceUnreachable)


def test_a_capture_process_reports_and_ends_with_its_owner(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with captured_by_process(config) as process:
        process.wait_until_streaming()
        execute(database, "insert into ledger (n) values (1)")
        wait_until(lambda: process.poll().changes >= 3)
        assert process.poll().bytes > 0
        assert process.poll().restart_lsn > 0
    assert process.poll().state in ("streaming", "stopped")
    with psycopg.connect(database) as connection:
        assert confirmed_lsn(connection, config) == head(config).restart_lsn


def test_a_capture_process_that_fails_tells_its_own_error(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    for _ in range(3):
        process = CaptureProcess(config)
        process.start()
        with pytest.raises(SlotError):
            process.wait_until_streaming(30)
        process.stop()


def test_a_publication_that_is_missing_is_named(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    execute(database, f"drop publication {config.source.publication}")
    error = start_error(config)
    assert isinstance(error, SourceError)
    assert "publication 'pgtide_test' does not exist" in error.message
    assert error.hint


def test_a_publication_that_vanishes_while_capture_runs_is_named(database, journal):
    """Postgres 18 only warns and leaves changes out; they must not be taken for nothing."""
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with CaptureThread(config) as capture:
        capture.wait_until_streaming()
        execute(database, "insert into ledger (n) values (1)")
        wait_for_marker(config, database)
        execute(database, f"drop publication {config.source.publication}", "insert into ledger (n) values (2)")
        with psycopg.connect(database) as connection:
            lost = current_lsn(connection)
        execute(database, f"create publication {config.source.publication} for table ledger")
        execute(database, "insert into ledger (n) values (3)")
        capture.join()
        error, capture.error = capture.error, None
    assert isinstance(error, SourceError)
    assert "publication" in error.message
    assert head(config).restart_lsn < lost
    with psycopg.connect(database) as connection:
        assert confirmed_lsn(connection, config) < lost


def test_a_logical_message_with_any_content_is_carried(database, journal):
    execute(database, LEDGER)
    config = make_config(database, journal)
    set_up(config)
    with capturing(config):
        with psycopg.connect(database, autocommit=True) as connection:
            for content in (b"", b"\0\xff" * 100, b"x" * 100_000):
                connection.execute("select pg_logical_emit_message(true, 'any', %b::bytea)", [content])
        assert_exact(config, database)
    contents = [each.content for each in journal_messages(config) if isinstance(each, Message) and each.prefix == "any"]
    assert contents == [b"", b"\0\xff" * 100, b"x" * 100_000]
