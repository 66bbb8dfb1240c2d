"""What snapshots say in the journal.

Each event is a transactional logical message, so it stands in the WAL, and so in the journal, in commit order with
the data. The journal is therefore the record of a snapshot's progress: what it tells has happened, nothing else has.

    start    a table's copy begins; the plan of its chunks
    chunk    a chunk's rows are on disk: here is their high watermark
    done     every chunk of the table has its watermark
    barrier  says nothing; whoever wrote it waits until it comes by

Pure: no I/O.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from pgtide.errors import ProtocolError
from pgtide.snapshot.visibility import Visibility


@dataclass(frozen=True)
class PageRange:
    """Pages [first, end) of a table; the last chunk has no end, because the table may have grown."""

    first: int
    end: int | None


@dataclass(frozen=True)
class SnapshotStarted:
    kind: ClassVar[str] = "start"
    snapshot: str
    table: str
    oid: int
    filenode: int
    chunks: tuple[PageRange, ...]
    estimated_rows: int

    @classmethod
    def load(cls, document: dict[str, Any]) -> SnapshotStarted:
        chunks = tuple(PageRange(**each) for each in document.pop("chunks"))
        return cls(chunks=chunks, **document)


@dataclass(frozen=True)
class ChunkCopied:
    """`chunk` numbers the plan's ranges; -1 is the repair chunk. `path` is relative to the journal."""

    kind: ClassVar[str] = "chunk"
    snapshot: str
    table: str
    oid: int
    chunk: int
    path: str
    rows: int
    bytes: int
    visible: str

    @property
    def visibility(self) -> Visibility:
        return Visibility.parse(self.visible)

    @classmethod
    def load(cls, document: dict[str, Any]) -> ChunkCopied:
        return cls(**document)


@dataclass(frozen=True)
class SnapshotDone:
    kind: ClassVar[str] = "done"
    snapshot: str
    table: str
    oid: int
    rows: int

    @classmethod
    def load(cls, document: dict[str, Any]) -> SnapshotDone:
        return cls(**document)


@dataclass(frozen=True)
class Barrier:
    kind: ClassVar[str] = "barrier"
    id: str

    @classmethod
    def load(cls, document: dict[str, Any]) -> Barrier:
        return cls(**document)


Event: TypeAlias = SnapshotStarted | ChunkCopied | SnapshotDone | Barrier

_KINDS: dict[str, Any] = {each.kind: each for each in (SnapshotStarted, ChunkCopied, SnapshotDone, Barrier)}


def dump_event(event: Event) -> dict[str, Any]:
    return {"kind": event.kind, **asdict(event)}


def load_event(content: bytes) -> Event | None:
    """An event from a message's content; None for a kind that a newer pgtide may write."""
    try:
        document = json.loads(content)
        kind = _KINDS.get(document.pop("kind"))
        event: Event | None = None if kind is None else kind.load(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError("a message of pgtide's in the journal is unreadable") from error
    return event
