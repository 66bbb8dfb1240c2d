"""Options that several commands share, and how a configuration is made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file [default: pgtide.yaml if it exists]", show_default=False),
]
DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Source database; wins over PGTIDE_SOURCE_DSN and the file. Give the password by PGPASSWORD",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text")]
