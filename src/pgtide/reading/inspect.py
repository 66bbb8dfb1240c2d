"""Looking at a journal: its segments, its frames, its integrity. For people; never shows a value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pgtide import frames as tag
from pgtide.errors import ConfigError, JournalError
from pgtide.frames import Frames, transactions
from pgtide.journal import BlockKind, BlockRef, JournalDirectory, JournalReader
from pgtide.journal.files import read_blocks
from pgtide.lsn import LSN
from pgtide.pgoutput import Message, Truncate, parse_message
from pgtide.reading.plan import JournalView, transaction_before
from pgtide.schema import Table
from pgtide.snapshot.events import ChunkCopied

_NAMES = {
    tag.BEGIN: "begin",
    tag.COMMIT: "commit",
    tag.INSERT: "insert",
    tag.UPDATE: "update",
    tag.DELETE: "delete",
    tag.TRUNCATE: "truncate",
    tag.MESSAGE: "message",
    tag.RELATION: "relation",
    tag.TABLE_DESCRIPTION: "table",
    ord("Y"): "type",
    ord("O"): "origin",
}


def list_segments(directory: JournalDirectory) -> list[dict[str, Any]]:
    """One entry a segment, oldest first."""
    reader = JournalReader(directory)
    segments: dict[str, dict[str, Any]] = {}
    for ref in reader.walk(reader.start_lsn()):
        name = os.path.basename(ref.path)
        segment = segments.setdefault(
            name,
            {
                "name": name,
                "start_lsn": str(LSN(int(name[:16], 16))),
                "bytes": os.path.getsize(ref.path),
                "blocks": 0,
                "frames": 0,
            },
        )
        segment["end_lsn"] = str(ref.header.restart_lsn)
        segment["blocks"] += 1
        segment["frames"] += ref.header.frame_count
    return list(segments.values())


def dump_frames(directory: JournalDirectory, after: str, limit: int) -> Iterator[dict[str, Any]]:
    """Frames of transactions that committed after `after`, at most `limit`."""
    try:
        position = LSN.parse(after)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    reader = JournalReader(directory)
    names: dict[int, str] = {}
    count = 0
    for ref in reader.walk(reader.segment_start(max(position, reader.start_lsn()))):
        for frame in _frames_of(ref, names):
            if ref.header.kind == BlockKind.STREAM and LSN.parse(frame["position"].split(":")[0]) > position:
                yield frame
                count += 1
                if count >= limit:
                    return


def _frames_of(ref: BlockRef, names: dict[int, str]) -> Iterator[dict[str, Any]]:
    block = ref.read()
    frames = Frames.of(block.frames, block.lengths)
    placed = transactions(frames, transaction_before(block))
    for index, kind in enumerate(frames.tags.tolist()):
        yield {
            "position": f"{LSN(int(placed.commit_lsn[index]))}:{int(placed.ordinal[index])}",
            "xid": int(placed.xid[index]),
            "message": _NAMES.get(kind, f"tag {kind}"),
            "about": _about(frames, index, kind, names),
            "bytes": int(frames.ends[index] - frames.starts[index]),
        }


def _about(frames: Frames, index: int, kind: int, names: dict[int, str]) -> str:
    """The table, or what else a frame is about."""
    if kind == tag.TABLE_DESCRIPTION:
        table = Table.from_json(frames.payload(index)[1:])
        names[table.oid] = str(table.name)
        return f"{table.name}: {', '.join(table.column_names)}"
    if kind in (tag.INSERT, tag.UPDATE, tag.DELETE, tag.RELATION):
        oid = int.from_bytes(frames.payload(index)[1:5], "big")
        return names.get(oid, f"table {oid}")
    message = parse_message(frames.payload(index)) if kind in (tag.TRUNCATE, tag.MESSAGE) else None
    if isinstance(message, Truncate):
        return ", ".join(names.get(oid, f"table {oid}") for oid in message.relation_oids)
    return f"{message.prefix}, {len(message.content)} bytes" if isinstance(message, Message) else ""


def damage(directory: JournalDirectory) -> dict[str, Any]:
    """Read everything; say what cannot be read."""
    report: dict[str, Any] = {"blocks": 0, "bytes": 0, "problems": []}
    reader = JournalReader(directory)
    chunks: list[str] = []
    try:
        for ref in reader.walk(reader.start_lsn()):
            _try(report, lambda ref=ref: [ref.read()])
        view = JournalView(directory)
        events = [placed.event for placed in view.events(reader.start_lsn(), view.end())]
        chunks = [str(directory.path / event.path) for event in events if isinstance(event, ChunkCopied)]
    except JournalError as error:
        report["problems"].append(_problem(error))
    for path in chunks:
        _try(report, lambda path=path: read_blocks(path))
    report["problems"] = list(dict.fromkeys(report["problems"]))
    return report


def _try(report: dict[str, Any], read: Any) -> None:
    try:
        for block in read():
            report["blocks"] += 1
            report["bytes"] += block.header.size
    except JournalError as error:
        report["problems"].append(_problem(error))


def _problem(error: JournalError) -> str:
    return f"{error.message}: {error.detail}" if error.detail else error.message
