"""LSN: a byte address in Postgres's write-ahead log.

An LSN is a distinct type so that a signature says what it takes. It is an integer inside pgtide and
Postgres's own text form (`16/B374D848`) at every border: JSON, logs, messages and SQL.
"""

from __future__ import annotations

import re

_TEXT_FORM = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class LSN(int):
    """A 64-bit log sequence number, ordered as an integer and shown as Postgres shows it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> LSN:
        """Read Postgres's text form. Raises ValueError for anything else."""
        match = _TEXT_FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r} (expected the form 16/B374D848)")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"LSN({str(self)!r})"


ZERO = LSN(0)
