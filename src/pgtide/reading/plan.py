"""Planning a read: which blocks and chunks hold a table's changes between two positions.

The plan is made once, on the driver, from block headers; tasks get it whole and need no state of their own. So
reading is parallel, and the same range always gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pgtide import frames as tag
from pgtide.errors import JournalCorrupt, JournalGap
from pgtide.frames import Frames, Transaction, message_prefix, transactions
from pgtide.journal import Block, BlockFlag, BlockKind, BlockRef, JournalDirectory, JournalReader
from pgtide.journal.files import read_blocks
from pgtide.lsn import LSN
from pgtide.pgoutput import Message, parse_message
from pgtide.schema import Table
from pgtide.snapshot.events import ChunkCopied, Event, load_event


@dataclass(frozen=True)
class PlacedEvent:
    """An event, and the transaction that brought it."""

    event: Event
    commit_lsn: LSN
    xid: int
    committed_at_us: int


@dataclass(frozen=True)
class ChunkRead:
    """A chunk to merge in, with the blocks in which transactions that it could not see may stand."""

    chunk: ChunkCopied
    path: str
    placed: PlacedEvent
    window: tuple[BlockRef, ...]
    window_table: Table | None


@dataclass(frozen=True)
class TableRange:
    """All that a task needs to read one table's changes with after < commit LSN <= upto."""

    oid: int
    table: Table | None
    after: LSN
    upto: LSN
    blocks: tuple[BlockRef, ...]
    chunks: tuple[ChunkRead, ...]

    @property
    def size_bytes(self) -> int:
        return sum(ref.header.size for ref in self.blocks) + sum(each.chunk.bytes for each in self.chunks)


@dataclass
class RangePlan:
    """What lies between two positions. `known` describes every table that is met on the way."""

    after: LSN
    upto: LSN
    tables: dict[int, TableRange] = field(default_factory=dict)
    known: dict[int, Table] = field(default_factory=dict)
    events: list[PlacedEvent] = field(default_factory=list)


@dataclass(frozen=True)
class _BlockNotes:
    """What a flagged block tells besides changes."""

    tables: tuple[Table, ...]
    events: tuple[PlacedEvent, ...]


class JournalView:
    """A reader's view of the journal: plans reads, and remembers what blocks have told."""

    def __init__(self, directory: JournalDirectory) -> None:
        self.directory = directory
        self.reader = JournalReader(directory)
        self._notes: dict[tuple[str, int], _BlockNotes] = {}
        self._message_prefix: str | None = None

    def end(self) -> LSN:
        """The newest whole transaction that is synced."""
        return self.reader.head().commit_lsn

    def limit(self, after: LSN, max_bytes: int) -> LSN:
        """How far a batch from `after` may go to read about `max_bytes`; at least one block, never past the end."""
        end = self.end()
        total = 0
        reached = after
        for ref in self.reader.blocks(after, end):
            total += ref.header.size
            total += sum(e.event.bytes for e in self._read_notes(ref).events if isinstance(e.event, ChunkCopied))
            if total > max_bytes and reached > after:
                return reached
            if ref.header.whole:
                reached = min(ref.header.last_commit_lsn, end)
        return max(reached, after)

    def plan(self, after: LSN, upto: LSN) -> RangePlan:
        """Everything between two positions, by table."""
        plan = RangePlan(after, upto)
        in_force: dict[int, Table] = {}
        first: dict[int, Table | None] = {}
        blocks: dict[int, list[BlockRef]] = {}
        for ref in self._from(after):
            inside = self._inside(ref, after, upto)
            if inside:
                for oid in ref.directory:
                    first.setdefault(oid, in_force.get(oid))
                    blocks.setdefault(oid, []).append(ref)
            notes = self._read_notes(ref)
            in_force.update({table.oid: table for table in notes.tables})
            if inside:
                plan.events += [each for each in notes.events if after < each.commit_lsn <= upto]
        chunks = self._chunks(plan.events)
        for oid in blocks.keys() | chunks.keys():
            plan.tables[oid] = TableRange(
                oid, first.get(oid), after, upto, tuple(blocks.get(oid, ())), tuple(chunks.get(oid, ()))
            )
        copied = {oid: read_chunk_table(reads[-1].path) for oid, reads in chunks.items() if oid not in in_force}
        plan.known = {**copied, **in_force}
        return plan

    def events(self, after: LSN, upto: LSN) -> Iterator[PlacedEvent]:
        """pgtide's own messages between two positions, in order."""
        for ref in self._from(after):
            if self._inside(ref, after, upto):
                yield from (each for each in self._read_notes(ref).events if after < each.commit_lsn <= upto)

    def window(self, xmin: int, upto: LSN, oid: int) -> tuple[tuple[BlockRef, ...], Table | None]:
        """Blocks before `upto` that may hold changes of this table by transactions from `xmin` on.

        The ceiling in the block headers never falls, so everything before the first block whose ceiling reaches xmin
        holds only older transactions.
        """
        table = None
        found = []
        for ref in self.reader.walk(self._segment_before(xmin)):
            header = ref.header
            recent = header.kind == BlockKind.STREAM and header.xid_ceiling >= xmin and header.commit_lsn <= upto
            if recent and oid in ref.directory:
                found.append(ref)
            if not found:
                table = next((each for each in self._read_notes(ref).tables if each.oid == oid), table)
        return tuple(found), table

    def _segment_before(self, xmin: int) -> LSN:
        """The newest segment that begins before any transaction from xmin on."""
        lsns = self.directory.segment_lsns()
        for lsn in reversed(lsns):
            first = next(iter(self.reader.walk(lsn)), None)
            if first is not None and first.header.xid_ceiling < xmin:
                return lsn
        raise JournalGap(
            f"the journal at {self.directory.path} no longer reaches back to where a chunk's window begins",
            detail=f"it begins at {lsns[0]}" if lsns else "it is empty",
            hint="a transaction was open on the source for longer than journal.retention: copy again",
        )

    def _chunks(self, events: list[PlacedEvent]) -> dict[int, list[ChunkRead]]:
        chunks: dict[int, list[ChunkRead]] = {}
        for placed in events:
            event = placed.event
            if isinstance(event, ChunkCopied):
                window, table = self.window(event.visibility.xmin, placed.commit_lsn, event.oid)
                path = str(self.directory.path / event.path)
                chunks.setdefault(event.oid, []).append(ChunkRead(event, path, placed, window, table))
        return chunks

    def _from(self, after: LSN) -> Iterator[BlockRef]:
        return self.reader.walk(self.reader.segment_start(after))

    def _inside(self, ref: BlockRef, after: LSN, upto: LSN) -> bool:
        header = ref.header
        return header.kind == BlockKind.STREAM and header.newest_commit_lsn > after and header.commit_lsn <= upto

    def _read_notes(self, ref: BlockRef) -> _BlockNotes:
        if not ref.header.flags & (BlockFlag.SCHEMA | BlockFlag.MESSAGE):
            return _NOTHING
        key = (ref.path, ref.offset)
        if key not in self._notes:
            self._notes[key] = _notes_of(ref.read(), self._prefix())
        return self._notes[key]

    def _prefix(self) -> str:
        if self._message_prefix is None:
            identity = self.directory.identity()
            self._message_prefix = message_prefix(identity.slot) if identity else ""
        return self._message_prefix

    def forget_before(self, lsn: LSN) -> None:
        """Let go of what is known of segments that end before `lsn`."""
        self.reader.forget_before(lsn)
        oldest = str(self.directory.segment(self.reader.segment_start(lsn)))
        self._notes = {key: notes for key, notes in self._notes.items() if key[0] >= oldest}


_NOTHING = _BlockNotes((), ())


def _notes_of(block: Block, prefix: str) -> _BlockNotes:
    frames = Frames.of(block.frames, block.lengths)
    tables = [Table.from_json(frames.payload(index)[1:]) for index in frames.where(tag.TABLE_DESCRIPTION).tolist()]
    return _BlockNotes(tuple(tables), tuple(_events_of(block, frames, prefix)))


def _events_of(block: Block, frames: Frames, prefix: str) -> Iterator[PlacedEvent]:
    placed = transactions(frames, transaction_before(block))
    for index in frames.where(tag.MESSAGE).tolist():
        message = parse_message(frames.payload(index))
        assert isinstance(message, Message)
        event = load_event(message.content) if message.transactional and message.prefix == prefix else None
        if event is not None:
            yield PlacedEvent(
                event,
                LSN(int(placed.commit_lsn[index])),
                int(placed.xid[index]),
                int(placed.committed_at_us[index]),
            )


def read_chunk_table(path: str) -> Table:
    """The table that a chunk file says it holds."""
    for block in read_blocks(path):
        if block.header.kind == BlockKind.SCHEMA:
            return Table.from_json(Frames.of(block.frames, block.lengths).payload(0)[1:])
        break
    raise JournalCorrupt(f"chunk {path} does not begin with its table")


def transaction_before(block: Block) -> Transaction:
    """The transaction in force at a block's first frame."""
    header = block.header
    return Transaction(header.commit_lsn, header.xid, header.committed_at_us, header.ordinal)
