"""The live display of `pgtide run`: what is being copied, how fast changes come, how far behind we are.

On a terminal a few lines are redrawn; elsewhere a line is printed now and then; with `--json` a document a second.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pgtide.cli.output import Output, bytes_text, number_text
from pgtide.reading.progress import TableProgress
from pgtide.service.supervisor import RunProgress

_RATE_WINDOW_SECONDS = 3.0


class Rate:
    """Changes a second over the last few seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, count: int) -> float:
        now = time.monotonic()
        self._samples.append((now, count))
        while now - self._samples[0][0] > _RATE_WINDOW_SECONDS:
            self._samples.popleft()
        then, first = self._samples[0]
        return (count - first) / (now - then) if now > then else 0.0


class Display:
    """Prints a line when something has changed for people to read in a log."""

    interval_seconds = 5.0

    def __init__(self, output: Output) -> None:
        self._output = output
        self._rate = Rate()
        self._shown_at = 0.0
        self._phase = ""

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, progress: RunProgress) -> None:
        rate = self._rate.update(progress.capture.changes)
        due = time.monotonic() - self._shown_at >= self.interval_seconds
        if due or progress.phase != self._phase:
            self._shown_at, self._phase = time.monotonic(), progress.phase
            self.show(progress, rate)

    def show(self, progress: RunProgress, rate: float) -> None:
        self._output.say(summary(progress, rate))


class JsonDisplay(Display):
    """One document a second."""

    interval_seconds = 1.0

    def show(self, progress: RunProgress, rate: float) -> None:
        self._output.document(
            {
                "phase": progress.phase,
                "capture": {"state": progress.capture.state, "problem": progress.capture.problem},
                "changes_per_second": round(rate, 1),
                "lag_bytes": progress.lag_bytes,
                "lag_seconds": round(progress.lag_seconds, 3),
                "applied": {name: str(lsn) for name, lsn in progress.applied.items()},
                "changes": progress.changes,
                "snapshot": [
                    {"table": each.table, "rows": each.rows, "estimated_rows": each.estimated_rows, "done": each.done}
                    for each in progress.tables
                ],
            }
        )


class LiveDisplay(Display):
    """Redraws a few lines on a terminal."""

    interval_seconds = 0.2

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._live = Live(console=output.console, refresh_per_second=5, transient=True)

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, progress: RunProgress, rate: float) -> None:
        self._live.update(Group(*_copying(progress.tables), Text(summary(progress, rate))))


def make_display(output: Output) -> Display:
    """The display that fits where the output goes."""
    if output.as_json:
        return JsonDisplay(output)
    return LiveDisplay(output) if output.console.is_terminal else Display(output)


def summary(progress: RunProgress, rate: float) -> str:
    """One line: phase, copy, changes, lag."""
    parts = [progress.phase]
    if progress.capture.problem:
        parts.append(f"{progress.capture.state}: {progress.capture.problem}")
    if progress.tables:
        rows = sum(each.rows for each in progress.tables)
        estimated = sum(max(each.estimated_rows, each.rows) for each in progress.tables)
        done = sum(each.done for each in progress.tables)
        parts.append(
            f"copied {number_text(rows)} of about {number_text(estimated)} rows, {done}/{len(progress.tables)} tables"
        )
    if progress.phase == "running":
        parts.append(f"{number_text(rate)} changes/s")
        parts.append(f"lag {bytes_text(progress.lag_bytes)}, {progress.lag_seconds:.1f} s")
    return " · ".join(parts)


def _copying(tables: list[TableProgress]) -> list[Any]:
    """A bar for each table whose copy is not done."""
    grid = Table.grid(padding=(0, 2))
    for each in tables:
        if each.done or each.started is None:
            continue
        total = max(each.estimated_rows, each.rows, 1)
        count = f"{number_text(each.rows)} of about {number_text(total)}"
        grid.add_row(each.table, ProgressBar(total=total, completed=each.rows, width=30), count)
    return [grid] if grid.row_count else []
