"""`pgtide check`."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.markup import escape

from pgtide.cli.options import ConfigOption, DsnOption, JsonOption
from pgtide.cli.output import EXIT_NOT_PASSED, Output
from pgtide.config import load_config
from pgtide.postgres.connection import connect
from pgtide.postgres.preflight import run_checks


def command(config: ConfigOption = None, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Check every requirement, and say how to meet those that are not met.

    Only reads. Exit status 3 if a requirement is not met.

    **Examples**

        pgtide check -c pgtide.yaml

        pgtide check --dsn postgresql://postgres@localhost/shop --json
    """
    output = Output(as_json=as_json)
    settings = load_config(config, dsn=dsn)
    with connect(settings.source) as connection:
        results = run_checks(connection, settings.source)
    for result in results:
        mark = "[green]pass[/]" if result.passed else "[bold red]FAIL[/]"
        output.show(f"{mark}  {escape(result.name)}: {escape(result.finding)}")
        if not result.passed and result.remedy:
            output.show(f"      [bold]Try:[/] {escape(result.remedy)}")
    passed = all(result.passed for result in results)
    output.document({"passed": passed, "checks": [asdict(result) for result in results]})
    if not passed:
        raise typer.Exit(EXIT_NOT_PASSED)
