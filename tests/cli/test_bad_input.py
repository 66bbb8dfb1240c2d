"""Whatever a person gets wrong gives one clear error, a hint and a non-zero exit, and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtide.embedded.postgres import EmbeddedPostgres
from tests.fixtures.commands import Result, Workplace, clean_environment
from tests.fixtures.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path, database: str) -> Workplace:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table items (id int primary key, name text)")
        connection.execute("insert into items select n, 'item' from generate_series(1, 100) n")
    return Workplace(tmp_path / "work", database)


def assert_one_clear_error(result: Result, message: str, hint: str) -> None:
    assert result.status == 1, result
    assert "Traceback" not in result.err
    assert result.err.count("Error:") == 1
    assert message in result.err
    assert hint in result.err.split("Try:", 1)[1]


def test_a_server_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    place = Workplace(tmp_path, "postgresql://nobody@127.0.0.1:1/none")
    for command in ("check", "init", "run", "capture"):
        assert_one_clear_error(place.run(command), "cannot reach the source", "Postgres is running")


def test_an_unreachable_source_is_a_finding_of_status_and_not_an_error(tmp_path: Path) -> None:
    result = Workplace(tmp_path, "postgresql://nobody@127.0.0.1:1/none").run("status", "--json")
    assert result.status == 0
    assert result.document["source"]["reachable"] is False


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[EmbeddedPostgres]:
    settings = {"wal_level": "replica", "max_replication_slots": "1"}
    with EmbeddedPostgres(password="right", settings=settings, durable=False) as server:
        yield server


def test_a_wrong_password_is_named_and_never_shown(tmp_path: Path, guarded_server: EmbeddedPostgres) -> None:
    dsn = guarded_server.dsn.replace("right", "wrong-secret")
    assert "wrong-secret" in dsn
    result = Workplace(tmp_path, dsn).run("check")
    assert_one_clear_error(result, "refuses this user", "user and password")
    assert "wrong-secret" not in result.err + result.out


def test_wal_level_must_be_logical_and_the_remedy_is_sql(tmp_path: Path, guarded_server: EmbeddedPostgres) -> None:
    with psycopg.connect(guarded_server.dsn, autocommit=True) as connection:
        connection.execute("create table if not exists items (id int primary key)")
    place = Workplace(tmp_path, guarded_server.dsn)
    assert_one_clear_error(place.run("init"), "wal_level: replica", "alter system set wal_level = 'logical'")
    checked = place.run("check", "--json")
    assert checked.status == 3
    failed = {check["name"]: check["remedy"] for check in checked.document["checks"] if not check["passed"]}
    assert "alter system set wal_level = 'logical'" in failed["wal_level"]
    with psycopg.connect(guarded_server.dsn) as connection:
        assert connection.execute("select count(*) from pg_publication").fetchone() == (0,)


def test_no_free_slot_is_named(tmp_path: Path) -> None:
    with EmbeddedPostgres(settings={"max_replication_slots": "1"}, durable=False) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create table items (id int primary key)")
            connection.execute("select pg_create_logical_replication_slot('taken', 'pgoutput')")
        place = Workplace(tmp_path, server.dsn)
        assert_one_clear_error(place.run("init"), "1 of 1 in use", "max_replication_slots")
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("select count(*) from pg_publication").fetchone() == (0,)


def test_missing_privileges_are_named_with_the_grant(tmp_path: Path, place: Workplace) -> None:
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute("drop role if exists weak")
        connection.execute("create role weak login")
        connection.execute("grant usage on schema public to weak")
    weak = psycopg.conninfo.make_conninfo(place.dsn, user="weak")
    result = Workplace(tmp_path / "weak", weak).run("check")
    assert result.status == 3
    assert 'alter role "weak" with replication;' in result.out
    assert 'grant select on "public"."items" to "weak";' in result.out
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute("drop owned by weak; drop role weak")


def test_an_unknown_table_is_named(tmp_path: Path, place: Workplace) -> None:
    result = Workplace(tmp_path / "typo", place.dsn, tables=["public.itmes"]).run("init")
    assert_one_clear_error(result, "'public.itmes' does not exist", "source.tables")


def test_a_selection_that_matches_nothing_is_a_failed_check(place: Workplace) -> None:
    assert place.run("init").status == 0
    place.write_config(source={"dsn": place.dsn, "tables": ["nope.*"]})
    result = place.run("check")
    assert result.status == 3
    assert "source.tables selects no table" in result.out


def test_a_table_without_identity_is_named_with_both_remedies(place: Workplace) -> None:
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute("create table log (line text)")
    result = place.run("init")
    assert_one_clear_error(result, "public.log has no key", "replica identity full")
    assert "add primary key" in result.err
    with psycopg.connect(place.dsn) as connection:
        assert connection.execute(
            "select count(*) from pg_replication_slots where database = current_database()"
        ).fetchone() == (0,)


def test_a_missing_slot_is_named(place: Workplace) -> None:
    assert_one_clear_error(place.run("capture"), "does not exist", "pgtide init")


def test_a_slot_in_use_by_another_reader_is_named(tmp_path: Path, place: Workplace) -> None:
    place.run("init")
    other = Workplace(tmp_path / "other", place.dsn)
    running = place.start("capture")
    try:
        running.wait_for("capturing slot")
        assert_one_clear_error(other.run("capture"), "in use by another reader", "stop the other")
    finally:
        running.interrupt()


def test_two_captures_do_not_share_a_journal(place: Workplace) -> None:
    place.run("init")
    running = place.start("capture")
    try:
        running.wait_for("capturing slot")
        assert_one_clear_error(place.run("capture"), "is being written by another process", "stop the other")
    finally:
        assert running.interrupt() == 0


def capture_something(place: Workplace) -> None:
    assert place.run("init").status == 0
    running = place.start("capture")
    running.wait_for("capturing slot")
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute("insert into items select n, 'more' from generate_series(101, 200) n")
        wait_until(lambda: "insert" in place.run("journal", "dump").out)
    assert running.interrupt() == 0


def test_a_slot_ahead_of_the_journal_is_named(place: Workplace) -> None:
    capture_something(place)
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute("insert into items values (1000, 'lost')")
        connection.execute(
            "select pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) from pg_replication_slots"
            " where database = current_database()"
        )
    assert_one_clear_error(place.run("capture"), "is ahead of the journal", "recreated or read by somebody else")


def test_the_journal_of_another_database_is_refused(tmp_path: Path, place: Workplace) -> None:
    capture_something(place)
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute("create database another")
    another = psycopg.conninfo.make_conninfo(place.dsn, dbname="another")
    try:
        with psycopg.connect(another, autocommit=True) as connection:
            connection.execute("create table items (id int primary key)")
        mixed = Workplace(tmp_path / "mixed", another)
        assert mixed.run("init").status == 0
        mixed.write_config(source={"dsn": another}, journal={"url": str(place.path / "journal")})
        assert_one_clear_error(mixed.run("capture"), "journal belongs to another source", "empty directory")
        assert mixed.run("destroy", "--yes").status == 0
    finally:
        with psycopg.connect(place.dsn, autocommit=True) as connection:
            connection.execute("drop database another with (force)")


def test_an_unreadable_block_is_found_and_named(place: Workplace) -> None:
    capture_something(place)
    (segment,) = (place.path / "journal" / "segments").iterdir()
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    assert_one_clear_error(place.run("capture"), "ends before what was synced", "restore it")
    assert bytes(content) == segment.read_bytes()
    verified = place.run("journal", "verify")
    assert verified.status == 3
    assert "damaged" in verified.out


def test_a_full_disk_is_named_and_nothing_is_half_done(place: Workplace) -> None:
    assert place.run("init").status == 0

    def almost_no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

    done = subprocess.run(
        [sys.executable, "-m", "pgtide", "capture", "-c", str(place.config)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        preexec_fn=almost_no_room,
        timeout=60,
        check=False,
    )
    assert_one_clear_error(
        Result(done.returncode, done.stdout, done.stderr), "no room to write the journal", "free space"
    )
    capture_something(place)


def test_a_misspelt_key_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    place = Workplace(tmp_path, "postgresql://x@127.0.0.1:1/x", tabels=["public.*"])
    result = place.run("check")
    assert result.status == 1
    assert "unknown key source.tabels, did you mean tables?" in result.err


def test_a_misspelt_key_of_a_sink_is_named_too(tmp_path: Path) -> None:
    place = Workplace(tmp_path, "postgresql://x@127.0.0.1:1/x")
    place.write_config(source={"dsn": place.dsn}, pipelines=[{"name": "lake", "sink": {"type": "delta", "pathh": "x"}}])
    assert "unknown key pipelines.0.sink.pathh, did you mean path?" in place.run("check").err


def test_errors_are_documents_with_json(tmp_path: Path) -> None:
    result = Workplace(tmp_path, "postgresql://nobody@127.0.0.1:1/none").run("check", "--json")
    assert result.status == 1
    assert result.err == ""
    assert set(result.document["error"]) == {"type", "message", "detail", "hint"}


def test_the_dsn_can_come_from_the_environment(tmp_path: Path, place: Workplace) -> None:
    bare = Workplace(tmp_path / "bare", place.dsn)
    bare.write_config(source={"tables": ["public.*"]})
    assert bare.run("check").status == 1
    assert bare.run("check", environ={"PGTIDE_SOURCE_DSN": place.dsn}).status == 3
    parts = psycopg.conninfo.conninfo_to_dict(place.dsn)
    names = {"POSTGRES_HOST": "host", "POSTGRES_PORT": "port", "POSTGRES_DB": "dbname", "POSTGRES_USER": "user"}
    environ = {name: str(parts[key]) for name, key in names.items()}
    assert bare.run("check", environ=environ).status == 3


def test_running_without_a_configuration_says_how_to_give_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgtide", "run"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "--dsn, PGTIDE_SOURCE_DSN or source.dsn" in done.stderr
    assert os.listdir(tmp_path) == []


def test_two_pipelines_into_one_lake_are_refused(tmp_path: Path) -> None:
    place = Workplace(tmp_path, "postgresql://x@127.0.0.1:1/x")
    sinks = [{"name": name, "sink": {"type": "delta", "path": path}} for name, path in (("a", "lake"), ("b", "lake/x"))]
    place.write_config(source={"dsn": place.dsn}, pipelines=sinks)
    assert "the sinks of pipelines a and b share a path" in place.run("check").err


def test_a_lake_that_cannot_be_written_is_named_before_anything_starts(place: Workplace) -> None:
    assert place.run("init").status == 0
    (place.path / "lake").write_text("a file")
    assert_one_clear_error(place.run("run"), "cannot write to the lake", "sink.path")
    assert not (place.path / "journal").exists()
