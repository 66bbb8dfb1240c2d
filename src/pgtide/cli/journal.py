"""`pgtide journal`: look at the journal's files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pgtide.cli.options import ConfigOption, JsonOption
from pgtide.cli.output import EXIT_NOT_PASSED, Output, bytes_text, number_text
from pgtide.config import load_journal_config
from pgtide.errors import JournalError
from pgtide.journal import JournalDirectory
from pgtide.lsn import ZERO
from pgtide.reading.inspect import damage, dump_frames, list_segments

app = typer.Typer(help="Look at the journal: its segments, its frames, its integrity.", no_args_is_help=True)

JournalOption = Annotated[str | None, typer.Option("--journal", help="Directory of the journal; wins over the file")]


def _directory(config: Any, journal: str | None) -> JournalDirectory:
    path = journal or str(load_journal_config(config).path)
    directory = JournalDirectory(path)
    if directory.identity() is None:
        raise JournalError(f"there is no journal at {path}", hint="name it with --journal, or run `pgtide run` first")
    return directory


@app.command("ls")
def ls(config: ConfigOption = None, journal: JournalOption = None, as_json: JsonOption = False) -> None:
    """List the segments, oldest first.

    **Examples**

        pgtide journal ls -c pgtide.yaml

        pgtide journal ls --journal ./journal --json
    """
    output = Output(as_json=as_json)
    segments = list_segments(_directory(config, journal))
    for segment in segments:
        output.say(
            f"{segment['name']}  {segment['start_lsn']} to {segment['end_lsn']}  {bytes_text(segment['bytes'])}  "
            f"{number_text(segment['blocks'])} blocks  {number_text(segment['frames'])} frames"
        )
    output.document({"segments": segments})


@app.command("dump")
def dump(
    config: ConfigOption = None,
    journal: JournalOption = None,
    after: Annotated[str, typer.Option(help="Only transactions that committed after this LSN")] = str(ZERO),
    limit: Annotated[int, typer.Option(help="Stop after this many frames", min=1)] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Show frames readably: position, transaction, message, table. Values are never shown, only their sizes.

    **Examples**

        pgtide journal dump -c pgtide.yaml --limit 20

        pgtide journal dump --journal ./journal --after 0/17166E0 --json
    """
    output = Output(as_json=as_json)
    for frame in dump_frames(_directory(config, journal), after, limit):
        output.say(f"{frame['position']:>20}  xid {frame['xid']:<10}  {frame['message']:<9}  {frame['about']}")
        output.document(frame)


@app.command("verify")
def verify(config: ConfigOption = None, journal: JournalOption = None, as_json: JsonOption = False) -> None:
    """Read every block of the journal and of its chunks and check it. Exit status 3 if something is damaged.

    **Examples**

        pgtide journal verify -c pgtide.yaml
    """
    output = Output(as_json=as_json)
    report = damage(_directory(config, journal))
    for problem in report["problems"]:
        output.say(f"damaged: {problem}")
    output.say(f"{number_text(report['blocks'])} blocks, {bytes_text(report['bytes'])} read")
    output.say("the journal is whole" if not report["problems"] else f"{len(report['problems'])} problems")
    output.document(report)
    if report["problems"]:
        raise typer.Exit(EXIT_NOT_PASSED)
