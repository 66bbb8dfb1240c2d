"""A private Postgres: started in a second, gone without a trace.

For the demonstration, the tests and the measurements pgtide brings a real server along instead of
asking for one. The server listens on 127.0.0.1 alone, is ready for logical replication, and lives no
longer than the process that started it: `guard.py` sees to that. It works for ordinary users and for
root: `account.py` tells as whom the server then runs.

What is not here: where executables come from (`install.py`), and any knowledge of pgtide's own use of
a database.

Invariant: the port, and so the dsn, stays the same from the first start to the last stop.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from psycopg.pq import PGconn, Ping

from pgtide.embedded.account import can_execute, server_account, temporary_directory
from pgtide.embedded.guarded import Guarded
from pgtide.embedded.install import Installation, available_versions, find_installation, runnable_by
from pgtide.errors import EmbeddedError

__all__ = ["EmbeddedPostgres", "StopMode", "available_versions"]

StopMode = Literal["fast", "immediate"]

_SIGNALS: Mapping[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

_DEFAULTS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    # In files of the data directory: containers have a tiny /dev/shm, and a killed server leaves its
    # segments there for ever.
    "dynamic_shared_memory_type": "mmap",
}
# Commits stay synchronous: without fsync that costs next to nothing, a killed server loses no committed
# row, and logical decoding sees a commit at once instead of when the WAL writer comes round.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}

# Below the range from which the kernel serves outgoing connections (32768 and up on Linux), so that
# none of these can take the port while the server is down between a stop and a start.
_PORTS = range(15432, 32768)
_PORT_ATTEMPTS = 5
_PORT_IS_TAKEN = "could not create any TCP/IP sockets"

_POLL_SECONDS = 0.02
_INITDB_SECONDS = 120.0
_START_SECONDS = 120.0
_LOG_TAIL_LINES = 15


class EmbeddedPostgres:
    """A Postgres of our own, as a context manager that starts it on entry and closes it on exit.

    `settings` go into the configuration and override the defaults, but not port and addresses.
    Without `data_directory` the data live in a temporary directory and go with the server; with it
    they are kept, and an existing cluster there is used again. When root gives one, the user `nobody`
    must be able to reach it. `durable=False` trades safety against power cuts (not against `kill`) for
    speed: for tests. `bin_directory` names the executables of a Postgres that pgtide would not find by
    its version.

    Without a `password` every local user may connect as superuser, as is usual for a throw-away
    server; on a machine shared with people you do not trust, give one. For a kept directory it takes
    effect when the cluster is made.

    The server ends with this process, however that ends.
    """

    def __init__(
        self,
        version: int = 18,
        settings: Mapping[str, str] | None = None,
        data_directory: Path | None = None,
        password: str | None = None,
        *,
        durable: bool = True,
        bin_directory: Path | None = None,
    ) -> None:
        self._settings = {**_DEFAULTS, **({} if durable else _NOT_DURABLE), **(settings or {})}
        self._given_directory = None if data_directory is None else data_directory.absolute()
        self._password = password
        self._account = server_account()
        found = find_installation(version) if bin_directory is None else Installation(bin_directory)
        self._installation = runnable_by(self._account, found)
        self._guarded: Guarded | None = None
        self._port: int | None = None
        self.postmaster_pid: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def dsn(self) -> str:
        """How to connect to the database postgres as the superuser postgres."""
        return self.dsn_for("postgres")

    def dsn_for(self, database: str) -> str:
        """How to connect to another database of this server as the superuser postgres."""
        secret = "" if self._password is None else f":{quote(self._password, safe='')}"
        return f"postgresql://postgres{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedError("the embedded postgres has not been started")
        return self._port

    @property
    def data_directory(self) -> Path:
        return self._given_directory or self._guard().data_path

    @property
    def log_path(self) -> Path:
        """The server's log, of all starts; removed on close."""
        return self._guard().log_path

    @property
    def running(self) -> bool:
        return self._guarded is not None and self._guarded.running()

    def bin(self, name: str) -> Path:
        """The path of an executable that belongs to this server, such as psql or pg_recvlogical."""
        path = self._installation.bin_directory / name
        if not path.exists():
            raise EmbeddedError(f"this postgres has no program {name}", detail=str(path.parent))
        return path

    def start(self) -> None:
        """Start the server and wait until it takes connections. Does nothing if it runs.

        A first start that fails leaves nothing but a data directory that was given; a later one
        leaves the data, for another attempt.
        """
        if self.running:
            return
        first = self._guarded is None
        try:
            if self._guarded is None:
                self._guarded = Guarded(temporary_directory(self._account), self._account)
            if not self._cluster_exists():
                self._make_cluster()
            self._write_configuration()
            self._start_on_some_port()
        except BaseException:
            if first:
                self.close()
            else:
                self.kill()
            raise

    def stop(self, mode: StopMode = "fast", *, timeout_seconds: float = 60.0) -> None:
        """Stop the server and wait until it is gone; the data stay, for another start.

        A fast stop waits for replication clients to take what is left. If that lasts longer than the
        timeout, the stop becomes an immediate one.
        """
        guarded = self._guarded
        if guarded is None or not self.running:
            return
        guarded.signal(_SIGNALS[mode])
        if not guarded.wait(timeout_seconds):
            guarded.signal(_SIGNALS["immediate"])
            if not guarded.wait(timeout_seconds):
                guarded.crash()
                guarded.wait(timeout_seconds)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start again, on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill every process of the server at once, as a crash of the machine would.

        The data stay as they are, and the next start recovers them.
        """
        if self._guarded is not None and self.running:
            self._guarded.crash()
            self._guarded.wait(60.0)

    def close(self) -> None:
        """Stop the server, and remove its data unless their directory was given. May be called again."""
        if self._guarded is None:
            return
        try:
            if self._given_directory is not None:
                self.stop()
        finally:
            # Nobody will read temporary data again, so there is no need to end them well.
            self._guarded.close()
            self._guarded = None

    def _guard(self) -> Guarded:
        if self._guarded is None:
            raise EmbeddedError("the embedded postgres has not been started, or is closed")
        return self._guarded

    def _cluster_exists(self) -> bool:
        return (self.data_directory / "PG_VERSION").exists()

    def _make_cluster(self) -> None:
        directory = self.data_directory
        self._prepare(directory)
        authentication = ["--auth=trust"]
        if self._password is not None:
            authentication = ["--auth=scram-sha-256", f"--pwfile={self._write_password(self._password)}"]
        self._guard().start(
            [
                str(self.bin("initdb")),
                f"--pgdata={directory}",
                "--username=postgres",
                "--no-locale",
                "--encoding=UTF8",
                "--no-sync",
                "--no-instructions",
                *authentication,
            ]
        )
        if not self._guard().wait(_INITDB_SECONDS) or self._guard().exit_code != 0:
            raise self._failure("could not make a postgres cluster")
        self._password_path.unlink(missing_ok=True)

    def _prepare(self, directory: Path) -> None:
        """Make the directory of a new cluster ready for the server's user.

        What holds files already is left alone, for initdb to refuse: it is not ours to give away.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(directory.iterdir()):
            self._give_to_server(directory)
        if not can_execute(self._account, directory):
            raise EmbeddedError(
                f"postgres cannot use the data directory {directory}",
                detail="the user it runs as may not pass through one of the directories above, or enter it",
                hint="root's postgres runs as nobody; choose a directory that every user can reach",
            )

    @property
    def _password_path(self) -> Path:
        return self._guard().directory / "password"

    def _write_password(self, password: str) -> Path:
        descriptor = os.open(self._password_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(password + "\n")
        self._give_to_server(self._password_path)
        return self._password_path

    def _give_to_server(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _write_configuration(self) -> None:
        """Write the settings outside the data directory, which belongs to the server's user.

        The cluster's own file comes first and ours override it; `alter system` overrides both.
        """
        lines = [f"include {_quoted(str(self.data_directory / 'postgresql.conf'))}"]
        lines += [f"{name} = {_quoted(value)}" for name, value in self._settings.items()]
        self._configuration_path.write_text("".join(f"{line}\n" for line in lines))
        self._configuration_path.chmod(0o644)

    @property
    def _configuration_path(self) -> Path:
        return self._guard().directory / "postgresql.conf"

    def _start_on_some_port(self) -> None:
        """Start on our port, or on the first one that proves free if we have none yet.

        Between the moment a port is found free and the moment Postgres takes it, another may do so.
        """
        for attempt in range(_PORT_ATTEMPTS):
            port = self._port or _free_port()
            log_size = self.log_path.stat().st_size if self.log_path.exists() else 0
            if self._start_on(port):
                self._port = port
                return
            said = self.log_path.read_bytes()[log_size:].decode(errors="replace")
            if _PORT_IS_TAKEN not in said:
                break
            time.sleep(0.1 * attempt)
        raise self._failure("the embedded postgres does not start")

    def _start_on(self, port: int) -> bool:
        """Start the server and wait until it is ready; false if it ended instead."""
        argv = [
            str(self.bin("postgres")),
            "-D",
            str(self.data_directory),
            "-c",
            f"config_file={self._configuration_path}",
            *("-c", "listen_addresses=127.0.0.1", "-c", f"port={port}"),
            # No Unix socket: the paths of temporary directories can be too long for one.
            *("-c", "unix_socket_directories="),
        ]
        pid = self._guard().start(argv)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._is_ready(pid, port):
                self.postmaster_pid = pid
                return True
            if self._guard().wait(_POLL_SECONDS):
                return False
        raise self._failure(f"the embedded postgres is not ready after {_START_SECONDS:.0f} seconds")

    def _is_ready(self, pid: int, port: int) -> bool:
        """Whether the server answers, and is ours: on a port lost to another, that other answers."""
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        if len(lines) < 8 or lines[0] != str(pid) or lines[7].strip() != "ready":
            return False
        return PGconn.ping(f"host=127.0.0.1 port={port}".encode()) == Ping.OK

    def _failure(self, message: str) -> EmbeddedError:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return EmbeddedError(message, detail="\n".join(lines[-_LOG_TAIL_LINES:]) or None)


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedError("no free port on 127.0.0.1", detail=f"tried a hundred of {_PORTS}")


def _quoted(value: str) -> str:
    """A string as postgresql.conf wants it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
