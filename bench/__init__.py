"""The measurements: one script for each number that pgtide claims.

Each brings its own server and leaves nothing behind. A measurement is a list of figures, so that all of them stand in
one table and one JSON file, and two runs can be compared line by line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One number: what was measured, under which conditions, and in which unit. `runs` are the single measurements, if
    the number was made from several."""

    bench: str
    scenario: str
    measure: str
    value: float
    unit: str = ""
    runs: tuple[float, ...] = ()
