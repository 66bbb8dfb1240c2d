"""`pgtide init`."""

from __future__ import annotations

from pgtide.cli.options import ConfigOption, DsnOption, JsonOption
from pgtide.cli.output import Output
from pgtide.config import load_config
from pgtide.postgres.connection import connect
from pgtide.postgres.control import initialise


def command(config: ConfigOption = None, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Set up the source: control schema, publication, replication slot.

    Safe to repeat: what is there already is left alone. From the moment the slot exists, Postgres keeps WAL for it, so
    start `pgtide run` soon, or remove the slot with `pgtide destroy`.

    **Examples**

        pgtide init --dsn postgresql://postgres@localhost/shop

        pgtide init -c pgtide.yaml
    """
    output = Output(as_json=as_json)
    settings = load_config(config, dsn=dsn)
    source = settings.source
    with connect(source) as connection:
        done = initialise(connection, source)
    for line in done or ["nothing to do: everything is set up"]:
        output.say(line)
    output.document({"done": done, "slot": source.slot, "publication": source.publication})
