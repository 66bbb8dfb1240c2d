"""The replication connection: a slot's stream of frames.

psycopg's libpq layer carries it. This module takes CopyData payloads off the wire unread and sends status
updates; what a payload means is pgoutput's business.

A publication that is missing is only a warning for Postgres 18, which then leaves out changes; here it is an error.

Invariant: Postgres is told only what the caller passes to `acknowledge`.
"""

from __future__ import annotations

import select
import time
from typing import TypeAlias

from psycopg import pq

from pgtide.config import Source
from pgtide.errors import SlotError, SourceError, SourceUnreachable
from pgtide.lsn import LSN
from pgtide.pgoutput import StandbyStatusUpdate, build_copy_data
from pgtide.postgres.connection import _connection_error, conninfo

Frame: TypeAlias = "bytes | memoryview"

_IN_USE = "55006"  # object_in_use
_UNDEFINED = "42704"  # undefined_object
_NOT_READY = "55000"  # object_not_in_prerequisite_state


class ReplicationStream:
    """One slot being read. `receive` is the hot path of all of pgtide."""

    def __init__(self, source: Source, start_lsn: LSN) -> None:
        self._connection = _open(source)
        self._connection.notice_handler = self._hear
        self._left_out: str | None = None
        try:
            self._start(source, start_lsn)
        except BaseException:
            self.close()
            raise
        # Looked up once: this runs for every frame.
        self.receive = self._connection.get_copy_data

    def fileno(self) -> int:
        return self._connection.socket

    def wait(self, timeout_seconds: float, *others: int) -> None:
        """Wait for bytes from the server (or on another descriptor) and take them in."""
        ready, _, _ = select.select([self._connection.socket, *others], [], [], timeout_seconds)
        if self._connection.socket in ready:
            self.consume()

    def require_whole(self) -> None:
        """Raise if the server has left out changes of ours up to the message received last."""
        if self._left_out is not None:
            raise SourceError(
                "the publication was missing when changes were made: they are not in the stream",
                detail=self._left_out,
                hint="remove the journal and the sink's tables, run `pgtide destroy` and `pgtide init`, and copy again",
            )

    def consume(self) -> None:
        """Take in what the socket has."""
        try:
            self._connection.consume_input()
        except Exception as error:
            raise self._lost() from error

    def acknowledge(self, lsn: LSN) -> None:
        """Tell Postgres that everything before `lsn` is durable here."""
        now_us = time.time_ns() // 1000 - 946_684_800_000_000
        message = build_copy_data(StandbyStatusUpdate(lsn, lsn, lsn, now_us))
        try:
            self._connection.put_copy_data(message)
            self._connection.flush()
        except Exception as error:
            raise self._lost() from error

    def ended(self) -> SourceError:
        """Why the stream ended, once `receive` has returned a negative length."""
        result = self._connection.get_result()
        if result is None or result.status == pq.ExecStatus.COMMAND_OK:
            return SourceUnreachable("the source ended the replication stream")
        return _refusal(result)

    def close(self) -> None:
        self._connection.finish()

    def _start(self, source: Source, start_lsn: LSN) -> None:
        publication = source.publication.replace('"', '""')
        command = (
            f'START_REPLICATION SLOT "{source.slot}" LOGICAL {start_lsn} '
            f"(proto_version '1', publication_names '\"{publication}\"', binary 'true', messages 'true')"
        )
        result = self._connection.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _refusal(result)
        self._connection.nonblocking = 1

    def _hear(self, notice: pq.abc.PGresult) -> None:
        state, message = _diagnosis(notice)
        if state == _NOT_READY and "publication" in message:
            self._left_out = message

    def _lost(self) -> SourceUnreachable:
        text = self._connection.get_error_message() if self._connection.status != pq.ConnStatus.BAD else ""
        return SourceUnreachable("lost the connection to the source", detail=" ".join(text.split()) or None)


def _open(source: Source) -> pq.abc.PGconn:
    # Values must come as the same text and bytes whatever the server's own settings are.
    options = (
        "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 -c statement_timeout=0 "
        "-c client_min_messages=warning"
    )
    text = conninfo(source, replication="database", client_encoding="UTF8", options=options)
    connection = pq.PGconn.connect(text.encode())
    if connection.status != pq.ConnStatus.OK:
        message = connection.get_error_message()
        connection.finish()
        raise _connection_error(message)
    return connection


def _refusal(result: pq.abc.PGresult) -> SourceError:
    """Name a refusal of START_REPLICATION, or the end of the stream."""
    state, message = _diagnosis(result)
    if state == _IN_USE:
        return SlotError(
            "the replication slot is in use by another reader",
            detail=message,
            hint="a slot has one reader: stop the other one (pg_stat_replication shows it), or set source.slot",
        )
    if state == _UNDEFINED and "slot" in message:
        return SlotError(
            "the replication slot is missing",
            detail=message,
            hint="changes since it vanished are lost: remove the journal and the sink's tables, then run `pgtide init`",
        )
    # Without a code it is not the server that speaks but libpq: the connection is gone.
    if not state or state.startswith(("57", "08")):
        return SourceUnreachable("the source ended the replication stream", detail=message or None)
    return SourceError(
        "the source refuses to replicate", detail=message, hint="run `pgtide check` to see what is missing"
    )


def _diagnosis(result: pq.abc.PGresult) -> tuple[str, str]:
    """SQLSTATE and primary message."""
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    return state, (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
