"""Capture at work: in a thread or a process, and what its journal says compared with what Postgres says.

The oracle is a second slot on the same publication, read through SQL: Postgres's own account of what was committed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from pgtide.capture.loop import Capture, Progress
from pgtide.config import Config
from pgtide.frames import ENVELOPE_SIZE
from pgtide.journal import BlockKind, Head, JournalDirectory, JournalReader
from pgtide.lsn import LSN
from pgtide.pgoutput import AnyMessage, Begin, Commit, Message, Relation, Type, parse_message
from pgtide.postgres.connection import connect
from pgtide.postgres.control import initialise
from tests.fixtures.waiting import wait_until

ORACLE = "the_oracle"


def make_config(dsn: str, journal: Path, **source: Any) -> Config:
    # A slot's name is the server's, and tests share a server: each database gets its own.
    slot = f"pgtide_{dsn.rsplit('/', 1)[-1]}"
    document = {"dsn": dsn, "slot": slot, "publication": "pgtide_test", **source}
    return Config.model_validate({"source": document, "journal": {"url": str(journal)}})


def set_up(config: Config, *, oracle: bool = True) -> None:
    """What `pgtide init` does; and the oracle's slot at the same place."""
    with connect(config.source) as connection:
        initialise(connection, config.source)
        if oracle:
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [oracle_slot(config)])


def oracle_slot(config: Config) -> str:
    return f"{ORACLE}_{config.source.slot}"[:63]


class PipeSignal:
    """A stop signal for a capture in this process."""

    def __init__(self) -> None:
        self._receiver, self._sender = os.pipe()
        self._set = False

    def fileno(self) -> int:
        return self._receiver

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        os.write(self._sender, b"x")

    def close(self) -> None:
        os.close(self._receiver)
        os.close(self._sender)


class CaptureThread:
    """A capture in a thread. Leaving the context stops it and raises what it raised."""

    def __init__(self, config: Config) -> None:
        self._stop = PipeSignal()
        self.states: list[str] = []
        self.error: BaseException | None = None
        self.capture = Capture(config, self._stop, self._hear)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "capture does not stop"
        self._stop.close()
        if self.error is not None and error is None:
            raise self.error

    @property
    def progress(self) -> Progress:
        return self.capture.progress

    def wait_until_streaming(self) -> None:
        wait_until(lambda: self.progress.state == "streaming" or self.error, describe=lambda: self.progress)
        if self.error is not None:
            raise self.error

    def has_reconnected(self, times: int) -> bool:
        """True once it streams again; raises what made it fail."""
        if self.error is not None:
            raise self.error
        return self.progress.reconnects >= times and self.progress.state == "streaming"

    def join(self, timeout_seconds: float = 30) -> None:
        """Wait for its own end."""
        self._thread.join(timeout_seconds)
        assert not self._thread.is_alive(), f"capture goes on: {self.progress}"

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:
            self.error = error

    def _hear(self, progress: Progress) -> None:
        if not self.states or self.states[-1] != progress.state:
            self.states.append(progress.state)


@contextmanager
def capturing(config: Config) -> Iterator[CaptureThread]:
    """A capture that streams."""
    with CaptureThread(config) as capture:
        capture.wait_until_streaming()
        yield capture


def head(config: Config) -> Head:
    return JournalReader(JournalDirectory(config.journal.path)).head()


def capture_forever(config: Config) -> None:
    """Capture until killed: what a process of its own runs."""
    Capture(config, PipeSignal()).run()


def current_lsn(connection: psycopg.Connection[Any]) -> LSN:
    row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return LSN.parse(row[0])


def confirmed_lsn(connection: psycopg.Connection[Any], config: Config) -> LSN:
    row = connection.execute(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", [config.source.slot]
    ).fetchone()
    assert row is not None
    return LSN.parse(row[0])


def wait_for_marker(config: Config, dsn: str) -> None:
    """Commit a message and wait until the journal has it: then it has all that was committed before."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select pg_logical_emit_message(true, 'marker', '')::text").fetchone()
        assert row is not None
        lsn = LSN.parse(row[0])
    wait_until(lambda: head(config).commit_lsn >= lsn, describe=lambda: f"{head(config)} reaches {lsn}")


def journal_messages(config: Config) -> list[AnyMessage]:
    """Every message in the journal, in order, but those that depend on the session."""
    reader = JournalReader(JournalDirectory(config.journal.path))
    found: list[AnyMessage] = []
    for ref in reader.walk(reader.start_lsn()):
        if ref.header.kind != BlockKind.STREAM:
            continue
        block = ref.read()
        data, position = block.frames.tobytes(), 0
        for length in block.lengths.tolist():
            payload = data[position + ENVELOPE_SIZE : position + length]
            position += length
            if payload[0] > 1:
                found.append(parse_message(payload))
    return [message for message in found if not isinstance(message, Relation | Type)]


def oracle_messages(config: Config, dsn: str) -> list[AnyMessage]:
    """Every message that Postgres itself tells since `set_up`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "select data from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1',"
            " 'publication_names', %s, 'binary', 'true', 'messages', 'true')",
            [oracle_slot(config), config.source.publication],
        ).fetchall()
    messages = [parse_message(row[0]) for row in rows]
    return [message for message in messages if not isinstance(message, Relation | Type)]


def in_transactions(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Without messages that are outside of transactions: the journal does not keep them."""
    return [each for each in messages if not (isinstance(each, Message) and not each.transactional)]


def changes_in(messages: list[AnyMessage]) -> list[AnyMessage]:
    return [message for message in messages if not isinstance(message, Begin | Commit | Message)]
