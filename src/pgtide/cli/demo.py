"""`pgtide demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgtide.cli.options import JsonOption
from pgtide.cli.output import EXIT_NOT_PASSED, Output


def command(
    seconds: Annotated[float, typer.Option(help="How long the writers write", min=1)] = 20.0,
    directory: Annotated[Path, typer.Option(help="Where journal and lake go; emptied first")] = Path("demo-data"),
    scale: Annotated[float, typer.Option(help="Size of the shop; 1 is about 258,000 rows", min=0.01)] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Copy a live Postgres into a Delta lake, and verify every row.

    Starts a Postgres of its own, fills a small shop, lets several writers change it, runs `pgtide run` beside them,
    stops the writers, and compares every table row by row. Exit status 0 only if there is no difference.

    **Examples**

        pgtide demo

        pgtide demo --seconds 60 --directory /tmp/pgtide-demo
    """
    from pgtide.demo.show import run_demo

    output = Output(as_json=as_json)
    result = run_demo(output, seconds=seconds, directory=directory, scale=scale)
    output.document(result.to_json())
    if result.differences:
        raise typer.Exit(EXIT_NOT_PASSED)
