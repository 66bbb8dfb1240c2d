"""`pgtide verify`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from pgtide.cli.options import ConfigOption, DsnOption, JsonOption
from pgtide.cli.output import EXIT_NOT_PASSED, Output, number_text
from pgtide.config import load_config
from pgtide.errors import ConfigError


def command(
    config: ConfigOption = None,
    dsn: DsnOption = None,
    pipeline: Annotated[str | None, typer.Option(help="Only this pipeline [default: all]", show_default=False)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the pipeline to pass a position")] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Compare the source with the sink, row by row, while both are being written.

    Needs `pgtide run` to be running. A difference counts only if it stays after the pipeline has passed it. Exit
    status 3 if there is one.

    **Examples**

        pgtide verify -c pgtide.yaml

        pgtide verify -c pgtide.yaml --pipeline lake --json
    """
    from pgtide.verify import verify

    output = Output(as_json=as_json)
    settings = load_config(config, dsn=dsn)
    chosen = [each for each in settings.pipelines if pipeline in (None, each.name)]
    if not chosen:
        raise ConfigError(f"there is no pipeline {pipeline!r}" if pipeline else "the configuration has no pipelines")
    documents = []
    passed = True
    for each in chosen:
        output.say(f"pipeline {each.name}: waiting for `pgtide run` to pass what is written now", style="dim")
        result = verify(settings, each, timeout_seconds=timeout, progress=lambda line: output.say(line, style="dim"))
        table = Table("table", "rows", "differences", "undecided", box=None, pad_edge=False)
        for found in result.tables:
            counts = (found.rows, found.differences, found.undecided)
            table.add_row(str(found.table), *(number_text(count) for count in counts))
        output.show(table)
        output.say(result.summary)
        documents.append(result.to_json())
        passed = passed and result.differences == 0
    output.document({"pipelines": documents})
    if not passed:
        raise typer.Exit(EXIT_NOT_PASSED)
