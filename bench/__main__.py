"""`python -m bench [names…] [--json FILE]`: measure, print one table, and keep the figures as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bench import Figure

if TYPE_CHECKING:
    from rich.table import Table

# Each module has `measure() -> list[Figure]`. They are imported when their turn comes, and rich when there is something
# to print: a process that a measurement starts imports this module again, and its memory is one of the figures.
BENCHES = {
    "capture": "bench.capture",
    "freshness": "bench.freshness",
}
_WIDTH = 120
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    arguments = _arguments()
    began = datetime.now(UTC)
    figures: list[Figure] = []
    for name in arguments.names or BENCHES:
        started = time.monotonic()
        _say(f"measuring {name} …")
        figures += import_module(BENCHES[name]).measure()
        _say(f"  in {time.monotonic() - started:.0f} s")
    _print(figures)
    path = arguments.json or _RESULTS / f"{began:%Y-%m-%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(began, figures), indent=2) + "\n", encoding="utf-8")
    _say(f"written to {path}")


def _say(line: str) -> None:
    """For people: the table alone goes to standard output."""
    print(line, file=sys.stderr, flush=True)


def _print(figures: list[Figure]) -> None:
    from rich.console import Console

    # In a file or a pipe there is no width to keep to.
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(_table(figures))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"what to measure: {', '.join(BENCHES)} (default: all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results/)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHES))
    if unknown:
        parser.error(f"no such measurement: {', '.join(unknown)} (there are: {', '.join(BENCHES)})")
    return arguments


def _table(figures: list[Figure]) -> Table:
    from rich.table import Table

    table = Table("bench", "scenario", "measure")
    table.add_column("value", justify="right")
    table.add_column("unit")
    before: Figure | None = None
    for figure in figures:
        same_bench = before is not None and before.bench == figure.bench
        same_scenario = same_bench and before is not None and before.scenario == figure.scenario
        table.add_row(
            "" if same_bench else figure.bench,
            "" if same_scenario else figure.scenario,
            figure.measure,
            _number(figure.value),
            figure.unit,
        )
        before = figure
    return table


def _number(value: float) -> str:
    """Three digits are more than a measurement is worth."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _document(began: datetime, figures: list[Figure]) -> dict[str, object]:
    return {
        "began_at": began.isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "figures": [asdict(figure) for figure in figures],
    }


if __name__ == "__main__":
    main()
