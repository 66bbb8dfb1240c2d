"""Position: the one order of the whole system.

A position is (commit LSN, ordinal in the transaction). A row's own LSN is not an order, because
transactions interleave in the log; their commits do not. Replaying the same log gives the same
positions, which is what lets every sink be idempotent.
"""

from __future__ import annotations

from typing import NamedTuple

from pgtide.lsn import LSN, ZERO


class Position(NamedTuple):
    """Where a change stands: after every change of an earlier commit and of a lower ordinal."""

    commit_lsn: LSN
    ordinal: int

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text form `16/B374D848:7`. Raises ValueError for anything else."""
        lsn, colon, ordinal = text.partition(":")
        if not colon or not ordinal.isdigit():
            raise ValueError(f"not a position: {text!r} (expected the form 16/B374D848:7)")
        return cls(LSN.parse(lsn), int(ordinal))

    def __str__(self) -> str:
        return f"{self.commit_lsn}:{self.ordinal}"


START = Position(ZERO, 0)
