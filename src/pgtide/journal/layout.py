"""Where things lie in a journal directory, and the small files around the segments.

    journal.json          identity: which database this journal came from
    writer.lock           held by the one process that appends
    head                  how far readers may go
    segments/<LSN>.seg    the stream
    chunks/…              rows of snapshots
    consumers/<name>.json how far each consumer has come
    pipelines/<name>/     what a pipeline keeps between runs

Small files are replaced as a whole (write, sync, rename), so that a reader sees the old or the new one.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pgtide.errors import JournalCorrupt, JournalError, JournalFull, SourceMismatch
from pgtide.lsn import LSN

SEGMENT_SUFFIX = ".seg"


@dataclass(frozen=True)
class Identity:
    """The database that a journal belongs to."""

    system_identifier: int
    database: str
    slot: str

    def require_same(self, other: Identity, path: Path) -> None:
        """Refuse to mix two databases in one journal."""
        if self == other:
            return
        raise SourceMismatch(
            "journal belongs to another source",
            detail=f"the journal at {path} was written from database {self.database!r} of system "
            f"{self.system_identifier} through slot {self.slot!r}; the source is database "
            f"{other.database!r} of system {other.system_identifier} with slot {other.slot!r}",
            hint="point journal.url at an empty directory, or source.dsn at the database the journal came from",
        )


class JournalDirectory:
    """Paths and small files of one journal."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"JournalDirectory({str(self.path)!r})"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def chunks(self) -> Path:
        return self.path / "chunks"

    @property
    def consumers(self) -> Path:
        return self.path / "consumers"

    @property
    def head(self) -> Path:
        return self.path / "head"

    @property
    def lock(self) -> Path:
        return self.path / "writer.lock"

    def pipeline(self, name: str) -> Path:
        return self.path / "pipelines" / name

    def segment(self, start_lsn: LSN) -> Path:
        return self.segments / f"{start_lsn:016X}{SEGMENT_SUFFIX}"

    def segment_lsns(self) -> list[LSN]:
        """Start LSNs of all segments, ascending."""
        try:
            names = os.listdir(self.segments)
        except FileNotFoundError:
            return []
        return sorted(LSN(int(name[:-4], 16)) for name in names if name.endswith(SEGMENT_SUFFIX))

    def create(self, identity: Identity) -> None:
        """Make the directories and write the identity, or check the one that is there."""
        known = self.identity()
        if known is not None:
            known.require_same(identity, self.path)
            return
        with journal_writes(self.path):
            for directory in (self.path, self.segments, self.chunks, self.consumers):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self.path / "journal.json", {"format_version": 1, **asdict(identity)})

    def identity(self) -> Identity | None:
        """Whose journal this is; None if there is none yet."""
        document = read_json(self.path / "journal.json")
        if document is None:
            return None
        try:
            if document.pop("format_version") != 1:
                raise JournalError(
                    f"journal at {self.path} has a format that this pgtide does not know",
                    hint="use the version of pgtide that wrote it, or a newer one",
                )
            return Identity(**document)
        except (KeyError, TypeError) as error:
            raise JournalCorrupt(f"journal identity {self.path / 'journal.json'} is unreadable") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """A small JSON file's content; None if it does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(
            f"cannot read {path}",
            detail=error.strerror,
            hint="check that journal.url is a directory and that this user may read it",
        ) from error
    try:
        document = json.loads(text)
    except ValueError as error:
        raise JournalCorrupt(f"{path} is not readable", detail="it is not JSON") from error
    if not isinstance(document, dict):
        raise JournalCorrupt(f"{path} is not readable", detail="it is not a JSON object")
    return document


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a small file durably."""
    replace_file(path, json.dumps(document, sort_keys=True).encode())


def replace_file(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb", opener=_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable: a file's own fsync does not cover its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def journal_writes(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into named errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise JournalFull(
                f"no room to write the journal at {path}",
                detail=os.strerror(error.errno),
                hint="free space on that disk, or shorten journal.retention; nothing was acknowledged to "
                "Postgres that is not in the journal",
            ) from error
        raise JournalError(
            f"cannot write the journal at {path}",
            detail=os.strerror(error.errno) if error.errno else type(error).__name__,
            hint="check that the directory exists and that this user may write to it",
        ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
