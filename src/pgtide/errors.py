"""Every error that pgtide raises on purpose.

    PgtideError                 anything below
    ├── ConfigError             the configuration is wrong; nothing has been started
    ├── SourceError             the source Postgres refuses, lacks or lost something
    │   ├── SourceUnreachable   no connection (retried while running, fatal at start)
    │   ├── PreflightError      a requirement of `pgtide check` is not met
    │   ├── SlotError           the replication slot is missing, taken, lost or ahead of the journal
    │   └── SourceMismatch      this is another database than the one the journal came from
    ├── ProtocolError           bytes that are not what the protocol says
    ├── JournalError            the journal cannot be used as it is
    │   ├── JournalCorrupt      a checksum, magic number or length is wrong
    │   ├── JournalGap          a position that a reader needs is no longer (or not yet) there
    │   ├── JournalInUse        another process writes it
    │   └── JournalFull         the disk has no room
    ├── SnapshotError           a table cannot be copied
    ├── SinkError               a sink refuses, or its state contradicts ours
    ├── UnsupportedValue        a value that the chosen representation has no room for
    ├── VerifyError             verification could not be carried out
    └── EmbeddedError           an embedded Postgres or Java does not start

Messages follow Postgres: lowercase, one sentence, then `detail` (what was found) and `hint` (what to
do). No message contains a cell value or a secret. Errors cross Spark's process borders, so each is
built from one positional message and keywords, and survives pickling.
"""

from __future__ import annotations

from typing import Any


class PgtideError(Exception):
    """Base of all errors: a message, and optionally a detail and a hint."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.detail, self.hint)

    def __str__(self) -> str:
        parts = [self.message]
        if self.detail:
            parts.append(f"detail: {self.detail}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)


def _rebuild(kind: type[PgtideError], message: str, detail: str | None, hint: str | None) -> PgtideError:
    return kind(message, detail=detail, hint=hint)


class ConfigError(PgtideError):
    """The configuration is wrong; nothing has been started."""


class SourceError(PgtideError):
    """The source Postgres refuses, lacks or lost something."""


class SourceUnreachable(SourceError):
    """There is no connection to the source."""


class PreflightError(SourceError):
    """A requirement of `pgtide check` is not met."""


class SlotError(SourceError):
    """The replication slot is missing, taken, lost or ahead of the journal."""


class SourceMismatch(SourceError):
    """This is another database than the one the journal came from."""


class ProtocolError(PgtideError):
    """Bytes that are not what the protocol says."""


class JournalError(PgtideError):
    """The journal cannot be used as it is."""


class JournalCorrupt(JournalError):
    """A checksum, magic number or length is wrong."""


class JournalGap(JournalError):
    """A position that a reader needs is not in the journal."""


class JournalInUse(JournalError):
    """Another process writes this journal."""


class JournalFull(JournalError):
    """The disk under the journal has no room."""


class SnapshotError(PgtideError):
    """A table cannot be copied."""


class SinkError(PgtideError):
    """A sink refuses, or its state contradicts ours."""


class UnsupportedValue(PgtideError):
    """A value that the chosen representation has no room for."""


class VerifyError(PgtideError):
    """Verification could not be carried out."""


class EmbeddedError(PgtideError):
    """An embedded Postgres or Java does not start."""
