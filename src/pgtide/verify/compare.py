"""Comparing records: which rows differ, and whether that is a difference or only the time between two looks.

The unit of comparison is a key with all the rows that one side has under it: none, one, or more where something has
gone wrong. Its state on a side is how many rows these are and the sum of their digests, so that order plays no part. A
table without a key has its rows for keys, and the states differ only in number.

While the source is being written to, two looks at it never show the same moment. So what differs at first is only
a suspect. It is looked at again: in the source, then in the sink once the pipeline has passed that point, then in the
source once more. If the sink shows what the source showed before or after, all is well. If the source was the
same both times and the sink differs, that is one round against it; so many in a row, and it is a difference.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pgtide.verify.digests import DIGEST_BYTES, RECORD_BYTES, Records

# A row that changed and changed back between two looks is against it once; three times in a row is no accident.
ROUNDS_AGAINST = 3

Keys = NDArray[np.uint8]
_Words = NDArray[np.uint64]
_Counts = NDArray[np.int64]
_Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class States:
    """What one side has under each key."""

    rows: _Counts
    sums: _Words

    def equal(self, other: States) -> _Mask:
        same: _Mask = (self.rows == other.rows) & (self.sums == other.sums).all(axis=1)
        return same

    def take(self, which: _Mask) -> States:
        return States(self.rows[which], self.sums[which])


@dataclass(frozen=True)
class Suspects:
    """Keys that differed when last looked at, and how many rounds in a row have been against each."""

    keys: Keys
    against: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.keys)

    def in_partition(self, partition: int | None) -> Suspects:
        """Those whose digest begins with this byte; all of them for None."""
        if partition is None:
            return self
        which = self.keys[:, 0] == partition
        return Suspects(self.keys[which], self.against[which])


@dataclass
class Differences:
    """Rows that differ, by kind, with the keys of the first few."""

    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return self.missing + self.extra + self.different

    def add(self, other: Differences, examples: int = 5) -> None:
        self.missing += other.missing
        self.extra += other.extra
        self.different += other.different
        self.examples = [*self.examples, *other.examples][:examples]


def find_suspects(source: Records, sink: Records) -> Suspects:
    """The keys under which the two sides do not have the same."""
    keys, (ours, theirs) = align(source, sink)
    unequal = ~ours.equal(theirs)
    return Suspects(keys[unequal], np.zeros(int(unequal.sum()), np.uint8))


def judge(suspects: Suspects, before: Records, sink: Records, after: Records) -> tuple[Suspects, Differences]:
    """One round: who is still suspect, and who is found to differ. The records may hold other keys as well."""
    named = np.concatenate((suspects.keys, np.zeros_like(suspects.keys)), axis=1)
    keys, (wanted, first, seen, second) = align(named, before, sink, after)
    chosen = wanted.rows > 0
    first, seen, second = first.take(chosen), seen.take(chosen), second.take(chosen)
    # Aligned keys ascend, and so do the suspects': they come from here.
    against = np.where(first.equal(second), suspects.against + 1, 0).astype(np.uint8)
    cleared = seen.equal(first) | seen.equal(second)
    guilty = ~cleared & (against >= ROUNDS_AGAINST)
    left = ~cleared & ~guilty
    differences = _differences(keys[chosen][guilty], first.take(guilty), seen.take(guilty))
    return Suspects(suspects.keys[left], against[left]), differences


def join_suspects(parts: Sequence[Suspects]) -> Suspects:
    """Parts with ascending keys, one after the other."""
    if not parts:
        return Suspects(np.zeros((0, DIGEST_BYTES), np.uint8), np.zeros(0, np.uint8))
    return Suspects(np.concatenate([each.keys for each in parts]), np.concatenate([each.against for each in parts]))


def align(*sides: Records) -> tuple[Keys, list[States]]:
    """All keys of all sides, ascending, and for each side what it has under each of them."""
    words = [_words(side) for side in sides]
    high = np.concatenate([each[:, 0] for each in words])
    low = np.concatenate([each[:, 1] for each in words])
    group, first = _numbered(high, low)
    states = []
    start = 0
    for each in words:
        states.append(_states(each, group[start : start + len(each)], len(first)))
        start += len(each)
    keys = np.stack((high[first], low[first]), axis=1).astype(">u8").view(np.uint8).reshape(-1, DIGEST_BYTES)
    return keys, states


def _words(records: Records) -> _Words:
    """Records as four numbers each, two for the key and two for the row, in the order of their bytes."""
    assert records.shape[1] == RECORD_BYTES
    return np.ascontiguousarray(records).view(">u8").astype(np.uint64)


def _numbered(high: _Words, low: _Words) -> tuple[_Counts, _Counts]:
    """For each key its number in ascending order, equal keys having one, and for each number a key that has it."""
    order = np.argsort(high)
    if _out_of_order(high[order], low[order]):
        order = np.lexsort((low, high))
    highs, lows = high[order], low[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (highs[1:] != highs[:-1]) | (lows[1:] != lows[:-1])
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(new) - 1
    return number, order[new]


def _out_of_order(highs: _Words, lows: _Words) -> bool:
    """Different keys that share their first half are next to impossible, and a sort by half is twice as fast."""
    return bool(((highs[1:] == highs[:-1]) & (lows[1:] != lows[:-1])).any())


def _states(words: _Words, group: _Counts, groups: int) -> States:
    rows = np.bincount(group, minlength=groups).astype(np.int64)
    sums = np.zeros((groups, 2), np.uint64)
    if groups == 0 or int(rows.max()) <= 1:
        sums[group] = words[:, 2:]
    else:
        # Sums wrap around, which is as good as any other mixture of digests.
        np.add.at(sums, group, words[:, 2:])
    return States(rows, sums)


def _differences(keys: Keys, source: States, sink: States) -> Differences:
    surplus = sink.rows - source.rows
    return Differences(
        missing=int(-surplus[surplus < 0].sum()),
        extra=int(surplus[surplus > 0].sum()),
        different=int((surplus == 0).sum()),
        examples=[key.tobytes() for key in keys[:5]],
    )
