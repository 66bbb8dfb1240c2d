"""The contract between a pipeline and a sink.

A pipeline gives a sink, for each batch and table, the folded changes up to a position. The sink

- applies them atomically where its target can: a reader sees all of a table's batch or nothing;
- stores the position with the data, in the same step, and answers it from `applied_lsn`: what a kill leaves is known
  from the target itself;
- changes nothing when a batch comes again: `apply` with a position that is not past `applied_lsn` is a no-op; a batch
  that begins before `applied_lsn` and ends behind it is never given;
- may be called for several tables at the same time, for one table only in order.

A column that is `unchanged` keeps the value that the target has under the row's key, or, for a row that moved, under
the key it moved from. During a table's first copy the target may not have that row yet: then it is null until the copy
brings it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from pgtide.lsn import LSN
from pgtide.reading.compact import Compacted
from pgtide.schema import TableName


class Sink(ABC):
    """Where a pipeline's tables go."""

    @abstractmethod
    def applied_lsn(self, table: TableName) -> LSN:
        """Up to where this table's changes are in the target; zero if it has none of them."""

    @abstractmethod
    def apply(self, compacted: Compacted, upto: LSN, *, step: int = 0, last: bool = True) -> None:
        """Bring one table to the position `upto`.

        A batch in which the table was altered comes in several steps; only the last one completes the position.
        """

    @abstractmethod
    def require_writable(self) -> None:
        """Raise SinkError if the target cannot be written: asked before anything is started."""

    @abstractmethod
    def in_use(self) -> bool:
        """Whether the target has tables that a pipeline of pgtide's wrote."""

    @abstractmethod
    def maintain(self) -> None:
        """Called after each batch: tidy up if it is time. Must not change what readers see."""
