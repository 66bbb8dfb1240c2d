"""Which transactions a snapshot could see.

Postgres shows a snapshot as `xmin:xmax:xip`: everything below xmin had ended, nothing from xmax on had begun, and the
listed ones between were running. Commit records enter the WAL before their transactions become visible, so what a chunk
has seen is decided by these ids and never by LSNs.

Pure: no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Visibility:
    """A snapshot's view."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Read pg_current_snapshot()'s text form."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in running.split(",") if xid))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def unseen(self, xids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True for the transactions whose changes the snapshot could not see.

        The stream has 32-bit ids; each is taken as the 64-bit one nearest to xmax, which is right for 2^31
        transactions to either side.
        """
        full = self.xmax + ((xids - self.xmax + 2**31) % 2**32 - 2**31)
        return (full >= self.xmax) | np.isin(full, np.array(self.running, dtype=np.int64))
