"""Consumers: named readers with a saved position.

A consumer's file says how far it has applied the journal. Retention keeps whatever the slowest one still needs,
and `pgtide status` shows them. The file is progress for people and for retention; a sink's own record of
its position, stored with its data, is what makes applying exact.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from pgtide.errors import JournalCorrupt
from pgtide.journal.layout import JournalDirectory, read_json, write_json
from pgtide.lsn import LSN

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@dataclass(frozen=True)
class Consumer:
    """How far one consumer has come. `commit_at_us` is the commit time of the last change it applied."""

    name: str
    applied_lsn: LSN
    commit_at_us: int
    changes: int
    updated_at: float


class Consumers:
    """The consumers of one journal."""

    def __init__(self, directory: JournalDirectory) -> None:
        self._directory = directory

    def save(self, name: str, applied_lsn: LSN, *, commit_at_us: int = 0, changes: int = 0) -> None:
        """Register the consumer, or move it on."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a consumer name: {name!r}")
        self._directory.consumers.mkdir(mode=0o700, parents=True, exist_ok=True)
        document = {
            "applied_lsn": str(applied_lsn),
            "commit_at_us": commit_at_us,
            "changes": changes,
            "updated_at": time.time(),
        }
        write_json(self._directory.consumers / f"{name}.json", document)

    def load(self, name: str) -> Consumer | None:
        document = read_json(self._directory.consumers / f"{name}.json")
        if document is None:
            return None
        try:
            return Consumer(
                name,
                LSN.parse(document["applied_lsn"]),
                document["commit_at_us"],
                document["changes"],
                document["updated_at"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise JournalCorrupt(f"the saved position of consumer {name!r} is unreadable") from error

    def all(self) -> list[Consumer]:
        """Every consumer, by name."""
        if not self._directory.consumers.is_dir():
            return []
        names = sorted(path.stem for path in self._directory.consumers.glob("*.json"))
        return [consumer for name in names if (consumer := self.load(name)) is not None]

    def slowest_lsn(self) -> LSN | None:
        """What retention must keep from; None without consumers."""
        return min((consumer.applied_lsn for consumer in self.all()), default=None)
