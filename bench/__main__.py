"""`python -m bench [names…] [--json FILE]`: measure, print one table, and keep the figures as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import Figure, capture, freshness

BENCHES: dict[str, Callable[[], list[Figure]]] = {
    "capture": capture.measure,
    "freshness": freshness.measure,
}
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    arguments = _arguments()
    began = datetime.now(UTC)
    figures = []
    for name in arguments.names or BENCHES:
        started = time.monotonic()
        Console(stderr=True).print(f"measuring {name} …", style="dim")
        figures += BENCHES[name]()
        Console(stderr=True).print(f"  in {time.monotonic() - started:.0f} s", style="dim")
    Console().print(_table(figures))
    path = arguments.json or _RESULTS / f"{began:%Y-%m-%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(began, figures), indent=2) + "\n", encoding="utf-8")
    Console(stderr=True).print(f"written to {path}", style="dim")


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
