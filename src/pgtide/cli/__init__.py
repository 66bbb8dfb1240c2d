"""The command line: one file for each command, one list of them here."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from pgtide.cli import capture, check, demo, destroy, init, journal, run, status, verify, version
from pgtide.cli.output import EXIT_ERROR, EXIT_INTERRUPTED, Output
from pgtide.errors import PgtideError

app = typer.Typer(
    name="pgtide",
    help="Change data capture for Postgres, on Spark: an exact, live copy in a lake.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

for command in (init, check, run, status, verify, capture, destroy, demo, version):
    app.command(name=command.__name__.rsplit(".", 1)[-1])(command.command)
app.add_typer(journal.app, name="journal")


def main() -> None:
    """Run a command; turn whatever it raises into one message and an exit status."""
    output = Output(as_json="--json" in sys.argv)
    try:
        app(standalone_mode=True)
    except PgtideError as error:
        output.error(error)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, as `pgtide status | head` does: nothing to say, nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_ERROR)
    except Exception as error:
        if os.environ.get("PGTIDE_DEBUG"):
            traceback.print_exc()
        # The text of an unforeseen error may hold values; its type and place do not.
        place = traceback.extract_tb(error.__traceback__)[-1]
        output.error(
            PgtideError(
                "internal error",
                detail=f"{type(error).__name__} in {os.path.basename(place.filename)}, line {place.lineno}",
                hint="run the same command with PGTIDE_DEBUG=1 for a traceback, and report it as a bug",
            )
        )
        sys.exit(EXIT_ERROR)
