"""`pgtide destroy`."""

from __future__ import annotations

from typing import Annotated

import typer

from pgtide.cli.options import ConfigOption, DsnOption, JsonOption
from pgtide.cli.output import Output
from pgtide.config import load_config
from pgtide.errors import ConfigError
from pgtide.postgres.connection import connect
from pgtide.postgres.control import destroy


def command(
    config: ConfigOption = None,
    dsn: DsnOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove from the source what `pgtide init` made: slot, publication, control schema.

    The journal and the sink's tables stay as they are; without the slot they cannot be continued.

    **Examples**

        pgtide destroy -c pgtide.yaml

        pgtide destroy --dsn postgresql://postgres@localhost/shop --yes
    """
    output = Output(as_json=as_json)
    settings = load_config(config, dsn=dsn)
    if not yes:
        if as_json:
            raise ConfigError("destroy needs --yes together with --json")
        typer.confirm(f"Drop slot {settings.source.slot} and publication {settings.source.publication}?", abort=True)
    with connect(settings.source) as connection:
        done = destroy(connection, settings.source)
    for line in done or ["nothing to do: there is nothing of pgtide's"]:
        output.say(line)
    output.document({"done": done})
