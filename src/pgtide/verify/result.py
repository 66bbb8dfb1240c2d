"""What a verification found, for people and as JSON.

Invariant: nothing here holds a cell value. Examples are MD5 digests of keys: whoever may read the source finds the
row by them, nobody else learns anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgtide.schema import TableName


@dataclass(frozen=True)
class TableResult:
    """One table. `missing` rows are only in the source, `extra` ones only in the sink.

    `undecided` rows kept changing for as long as they were watched: they are not known to differ, nor to be equal.
    """

    table: TableName
    rows: int
    sink_rows: int
    missing: int
    extra: int
    different: int
    undecided: int
    rounds: int
    seconds: float
    examples: tuple[str, ...] = ()

    @property
    def differences(self) -> int:
        return self.missing + self.extra + self.different

    @property
    def status(self) -> str:
        """`different`, else `undecided`, else `equal`."""
        if self.differences:
            return "different"
        return "undecided" if self.undecided else "equal"

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "status": self.status,
            "rows": self.rows,
            "sink_rows": self.sink_rows,
            "differences": self.differences,
            "missing": self.missing,
            "extra": self.extra,
            "different": self.different,
            "undecided": self.undecided,
            "example_key_digests": list(self.examples),
            "rounds": self.rounds,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        found = [
            f"{count:,} {kind}"
            for count, kind in (
                (self.missing, "missing in the sink"),
                (self.extra, "only in the sink"),
                (self.different, "different"),
                (self.undecided, "undecided: changed all the while"),
            )
            if count
        ]
        keys = f" (md5 of keys: {', '.join(self.examples)})" if self.examples else ""
        return f"{self.table}: {self.rows:,} rows, {', '.join(found) or 'equal'}{keys}"


@dataclass(frozen=True)
class VerifyResult:
    """All tables of a pipeline."""

    pipeline: str
    tables: tuple[TableResult, ...]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def differences(self) -> int:
        return sum(table.differences for table in self.tables)

    @property
    def undecided(self) -> int:
        return sum(table.undecided for table in self.tables)

    @property
    def equal(self) -> bool:
        """No difference was found. Rows that are undecided do not count against it."""
        return not self.differences

    @property
    def summary(self) -> str:
        return f"verified: {len(self.tables):,} tables, {self.rows:,} rows, {self.differences:,} differences"

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "equal": self.equal,
            "rows": self.rows,
            "differences": self.differences,
            "undecided": self.undecided,
            "seconds": round(self.seconds, 3),
            "tables": [table.to_json() for table in self.tables],
        }
