"""The loop: stream → journal → sync → acknowledge.

The only sequential part of pgtide (a slot has one reader), so it does the least: take frames off the wire, append
them unread, sync, acknowledge. One thread is enough: while a sync runs, Postgres fills the socket's buffer, and what
has come in meanwhile is the next block.

Invariants: Postgres is told only what the journal has synced. A new session continues from the journal's end.
Memory is bounded by one block of frames plus one transaction smaller than a block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pgtide.capture.assemble import BLOCK_SIZE_BYTES, Assembler
from pgtide.config import Config
from pgtide.errors import PgtideError, SlotError, SourceUnreachable
from pgtide.journal import Identity, JournalDirectory, JournalWriter
from pgtide.lsn import LSN, ZERO
from pgtide.pgoutput import PrimaryKeepalive, Relation, parse_copy_data
from pgtide.postgres.catalog import describe_relation, one, source_identity
from pgtide.postgres.connection import connect
from pgtide.postgres.control import Slot, read_slot, require_publication, require_usable
from pgtide.postgres.replication import Frame, ReplicationStream
from pgtide.retry import Verdict, backoff, verdict
from pgtide.schema import Table

_XLOG_DATA = ord("w")

# How long the first frame of a block may wait for company. Syncing each small transaction alone would make thousands
# of tiny blocks a second; 5 ms more are not felt.
LINGER_SECONDS = 0.005
# How often Postgres hears how far we are. Each update costs it a little; none for wal_sender_timeout costs the session.
ACKNOWLEDGE_SECONDS = 1.0
# An idle source is noted in the journal, and so acknowledged, this often: WAL that holds nothing for us is let go.
ADVANCE_SECONDS = 10.0
# After a crash the server may take a moment to notice that our old session is gone.
SLOT_WAIT_SECONDS = 15.0


class StopSignal(Protocol):
    """Says when to stop, and has a descriptor that becomes readable then."""

    def fileno(self) -> int: ...
    def is_set(self) -> bool: ...


@dataclass
class Progress:
    """What capture tells its owner, about once a second."""

    state: str = "starting"
    changes: int = 0
    bytes: int = 0
    restart_lsn: LSN = ZERO
    source_lsn: LSN = ZERO
    reconnects: int = 0
    problem: str | None = None


Report = Callable[[Progress], None]


class Capture:
    """Reads one slot into one journal until told to stop, through any number of sessions."""

    def __init__(self, config: Config, stop: StopSignal, report: Report = lambda progress: None) -> None:
        self._config = config
        self._stop = stop
        self._report = report
        self.progress = Progress()

    def run(self) -> None:
        """Capture until stopped. Raises what nobody can mend by waiting."""
        journal = self._open_journal()
        try:
            delays = backoff()
            while not self._stop.is_set():
                before = journal.head.restart_lsn
                try:
                    self._session(journal)
                except PgtideError as error:
                    if verdict(error) is Verdict.STOP:
                        raise
                    if journal.head.restart_lsn > before:
                        delays = backoff()
                    self._wait_out(error, next(delays))
        finally:
            journal.close()
            self._set_state("stopped")

    def _open_journal(self) -> JournalWriter:
        """Check that slot and journal fit together, and write an empty journal's starting point."""
        source = self._config.source
        with connect(source) as connection:
            identity = source_identity(connection)
            slot = require_usable(read_slot(connection, source.slot), source, identity.database)
        ours = Identity(identity.system_identifier, identity.database, source.slot)
        self._assembler: Assembler | None = None
        journal = JournalWriter(JournalDirectory(self._config.journal.path), ours, preamble=self._preamble)
        try:
            assert slot.confirmed_flush_lsn is not None
            if journal.empty:
                journal.advance(slot.confirmed_flush_lsn)
            _require_slot_behind(journal, slot)
        except BaseException:
            journal.close()
            raise
        return journal

    def _preamble(self) -> list[bytes]:
        return list(self._assembler.preamble()) if self._assembler else []

    def _session(self, journal: JournalWriter) -> None:
        """One replication connection, from connect to loss or stop."""
        journal.go_back()
        source = self._config.source
        with connect(source) as connection:
            slot = require_usable(
                read_slot(connection, source.slot), source, one(connection, "select current_database()")[0]
            )
            _require_slot_behind(journal, slot)
            require_publication(connection, source)
            ceiling = journal.xid_ceiling or _current_xid(one(connection, "select pg_current_snapshot()::text")[0])

        def describe(relation: Relation) -> Table:
            with connect(source) as connection:
                return describe_relation(connection, relation)

        self._assembler = Assembler(describe, journal.head.commit_lsn, ceiling)
        stream = self._start_stream(journal.head.restart_lsn)
        try:
            self._set_state("streaming")
            self._pump(stream, journal, self._assembler)
        finally:
            stream.close()

    def _start_stream(self, start_lsn: LSN) -> ReplicationStream:
        """Start replication; wait a little for a slot that our own dead session may still hold."""
        deadline = time.monotonic() + SLOT_WAIT_SECONDS
        while True:
            try:
                return ReplicationStream(self._config.source, start_lsn)
            except SlotError as error:
                in_use = "in use" in error.message
                if not in_use or time.monotonic() > deadline or self._stop.is_set():
                    raise
                self._set_state("waiting for the slot")
                time.sleep(0.2)

    def _pump(self, stream: ReplicationStream, journal: JournalWriter, assembler: Assembler) -> None:
        """Take frames until told to stop. The first branch runs for every frame and does nothing else."""
        frames: list[Frame] = []
        size = 0
        waiting_since = 0.0
        dry = False
        acknowledger = _Acknowledger(stream, journal, assembler)
        receive = stream.receive
        while True:
            length, data = receive(1)
            if length > 0 and data[0] == _XLOG_DATA:
                frames.append(data)
                size += length
                dry = False
                if size < BLOCK_SIZE_BYTES:
                    continue
            elif length > 0:
                stream.require_whole()
                acknowledger.keepalive(data, pending=bool(frames))
                continue
            elif length < 0:
                raise stream.ended()
            elif not dry:
                stream.consume()
                dry = True
                continue
            now = time.monotonic()
            stopping = self._stop.is_set()
            waiting_since = waiting_since or now
            if size >= BLOCK_SIZE_BYTES or (frames and (stopping or now - waiting_since >= LINGER_SECONDS)):
                stream.require_whole()
                self._write(journal, assembler, frames, size)
                frames, size, waiting_since = [], 0, 0.0
            acknowledger.tell(now, force=stopping)
            self._note(journal, acknowledger)
            if stopping:
                return
            if dry:
                stream.wait(LINGER_SECONDS if frames else 1.0, self._stop.fileno())
                waiting_since = waiting_since if frames else 0.0

    def _write(self, journal: JournalWriter, assembler: Assembler, frames: list[Frame], size: int) -> None:
        for header, block in assembler.blocks(frames):
            journal.append(header, block)
        journal.sync()
        self.progress.changes += len(frames)
        self.progress.bytes += size

    def _note(self, journal: JournalWriter, acknowledger: _Acknowledger) -> None:
        self.progress.restart_lsn = journal.head.restart_lsn
        self.progress.source_lsn = acknowledger.source_lsn
        self._report(self.progress)

    def _wait_out(self, error: PgtideError, seconds: float) -> None:
        self.progress.reconnects += isinstance(error, SourceUnreachable)
        self._set_state("waiting", problem=error.message)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._stop.is_set():
            time.sleep(0.05)

    def _set_state(self, state: str, problem: str | None = None) -> None:
        self.progress.state = state
        self.progress.problem = problem
        self._report(self.progress)


class _Acknowledger:
    """Decides when Postgres hears from us, and how an idle source's WAL is let go."""

    def __init__(self, stream: ReplicationStream, journal: JournalWriter, assembler: Assembler) -> None:
        self._stream = stream
        self._journal = journal
        self._assembler = assembler
        self._told = ZERO
        self._told_at = 0.0
        self._advanced_at = time.monotonic()
        self.source_lsn = ZERO

    def keepalive(self, data: Frame, *, pending: bool) -> None:
        """Note how far the source is; if there was nothing for us up to there, the journal may say so."""
        message = parse_copy_data(data)
        assert isinstance(message, PrimaryKeepalive)
        self.source_lsn = max(self.source_lsn, message.wal_end)
        idle = not pending and not self._assembler.inside_transaction
        due = message.reply_requested or time.monotonic() - self._advanced_at >= ADVANCE_SECONDS
        if idle and due and message.wal_end > self._journal.head.restart_lsn:
            self._journal.advance(message.wal_end)
            self._advanced_at = time.monotonic()
        if message.reply_requested:
            self.tell(time.monotonic(), force=True)

    def tell(self, now: float, *, force: bool = False) -> None:
        """Acknowledge what the journal has synced, not more often than needed."""
        lsn = self._journal.head.restart_lsn
        if force or now - self._told_at >= ACKNOWLEDGE_SECONDS:
            self._stream.acknowledge(lsn)
            self._told, self._told_at = lsn, now


def _require_slot_behind(journal: JournalWriter, slot: Slot) -> None:
    """A slot that is ahead of the journal has let go of changes that the journal lacks."""
    confirmed = slot.confirmed_flush_lsn
    if confirmed is not None and confirmed > journal.head.restart_lsn:
        raise SlotError(
            f"replication slot {slot.name!r} is ahead of the journal",
            detail=f"the slot was read up to {confirmed}, the journal ends at {journal.head.restart_lsn}: "
            "the changes between are lost",
            hint="the slot was recreated or read by somebody else, or the journal was restored from an old copy. "
            "Remove the journal and the sink's tables, run `pgtide destroy` and `pgtide init`, and copy again",
        )


def _current_xid(snapshot: str) -> int:
    """xmax of pg_current_snapshot()'s text form: a 64-bit transaction id near the current one."""
    return int(snapshot.split(":")[1])
