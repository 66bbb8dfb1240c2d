"""The journal: ordered, durable, replayable, immutable once written.

It stores frames (bytes) in blocks, blocks in segments, and finds them again by position. It knows neither
Postgres nor Spark.
"""

from pgtide.journal.consumers import Consumer, Consumers
from pgtide.journal.format import Block, BlockFlag, BlockHeader, BlockKind, Head, pack_block, unpack_block
from pgtide.journal.layout import Identity, JournalDirectory
from pgtide.journal.reader import BlockRef, JournalReader
from pgtide.journal.writer import JournalWriter

__all__ = [
    "Block",
    "BlockFlag",
    "BlockHeader",
    "BlockKind",
    "BlockRef",
    "Consumer",
    "Consumers",
    "Head",
    "Identity",
    "JournalDirectory",
    "JournalReader",
    "JournalWriter",
    "pack_block",
    "unpack_block",
]
