"""`pgtide status`."""

from __future__ import annotations

import time

from rich.table import Table

from pgtide.cli.options import ConfigOption, DsnOption, JsonOption
from pgtide.cli.output import Output, bytes_text, number_text
from pgtide.config import load_config
from pgtide.service.status import Status, read_status


def command(config: ConfigOption = None, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Show the slot, the WAL that it holds, the journal, each pipeline's position and lag, and the first copy.

    Looks at the source, the journal and the pipelines' records; it does not need `pgtide run` to be running.

    **Examples**

        pgtide status -c pgtide.yaml

        pgtide status --json | jq .pipelines
    """
    output = Output(as_json=as_json)
    status = read_status(load_config(config, dsn=dsn))
    _show(status, output)
    output.document(status.to_json())


def _show(status: Status, output: Output) -> None:
    source, journal = status.source, status.journal
    if source.reachable:
        output.say(f"source    WAL at {source.wal_lsn}")
        held = f", holds {bytes_text(source.held_bytes)} of WAL" if source.slot_state != "missing" else ""
        wal_status = f", wal_status {source.wal_status}" if source.wal_status else ""
        output.say(f"slot      {source.slot}: {source.slot_state}{held}{wal_status}")
    else:
        output.say(f"source    not reachable: {source.problem}")
    if journal.exists:
        output.say(
            f"journal   {journal.url}: {journal.start_lsn} to {journal.end_lsn}, {journal.segments} segments, "
            f"{bytes_text(journal.size_bytes)}, synced {_ago(journal.synced_at)}"
        )
    else:
        output.say(f"journal   {journal.url}: nothing written yet")
    for pipeline in status.pipelines:
        if pipeline.applied_lsn is None:
            output.say(f"pipeline  {pipeline.name}: has not run yet")
            continue
        lag = "unknown" if pipeline.lag_bytes is None else bytes_text(pipeline.lag_bytes)
        output.say(
            f"pipeline  {pipeline.name}: applied {pipeline.applied_lsn}, lag {lag}, {pipeline.lag_seconds:.1f} s, "
            f"{number_text(pipeline.changes)} changes, last {_ago(pipeline.updated_at)}"
        )
    if status.snapshot:
        table = Table("first copy of", "state", "rows", "estimated", "chunks", box=None, pad_edge=False)
        for each in status.snapshot:
            chunks = f"{each.chunks}/{each.chunks_planned}" if each.chunks_planned else ""
            table.add_row(each.table, each.state, number_text(each.rows), number_text(each.estimated_rows), chunks)
        output.say()
        output.show(table)


def _ago(moment: float | None) -> str:
    if not moment:
        return "never"
    seconds = max(0.0, time.time() - moment)
    return f"{seconds:.1f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"
