"""Folding: what a sequence of changes leaves of each key.

For every key that the sequence touches, the fold says whether the row lives or is gone at the end, and for each column
which row of the sequence set it last, or that none did (`-1`: it is as it was before). Key changes are followed: a row
that moved remembers the key it had before the sequence, because that is where its unset columns are.

Compaction and the reduction of stale snapshot rows are both this one fold.

Invariant: applying the folded result to any earlier state gives what applying the rows one by one would give.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgtide.reading.changes import CREATE, DELETE, TRUNCATE, Changes, Mask, Rows, key_codes


@dataclass(frozen=True)
class KeyIndex:
    """Keys as small integers. `code` is each row's own key, `old_code` the key it had before (-1: the same).

    `example` gives, for each code, a row that has this key: as its own if below the row count, else as its old one.
    """

    code: Rows
    old_code: Rows
    example: Rows


@dataclass(frozen=True)
class Folded:
    """One entry a touched key. `last` is the row that touched it last; `origin` the code of the key under which the
    row was known before the sequence; `source` says for each column that is not set by every row which row set it.
    """

    keys: KeyIndex
    code: Rows
    live: Mask
    last: Rows
    origin: Rows
    source: dict[str, Rows]


def fold(changes: Changes) -> Folded:
    """Fold a sequence without truncates (see `after_last_truncate`)."""
    keys = index_keys(changes)
    count = len(keys.example)
    last = _last_row(keys.code, np.arange(len(changes)), count)
    partial = {name: ~mask & (changes.op != DELETE) for name, mask in changes.unchanged.items()}
    source = {name: _last_row(keys.code, np.flatnonzero(set_), count) for name, set_ in partial.items()}
    folded = Folded(
        keys=keys,
        code=np.arange(count),
        live=np.where(last >= 0, changes.op[last] != DELETE, False),
        last=last,
        origin=np.arange(count),
        source=source,
    )
    if changes.key_changed is not None:
        _follow_key_changes(changes, folded, partial)
    return folded


def after_last_truncate(changes: Changes) -> tuple[bool, Changes]:
    """Whether the sequence truncates the table, and what comes after it last does."""
    truncates = np.flatnonzero(changes.op == TRUNCATE)
    if not len(truncates):
        return False, changes
    return True, changes.take(np.arange(truncates[-1] + 1, len(changes)))


def index_keys(changes: Changes) -> KeyIndex:
    """Number the keys of all rows, new and old together."""
    rows = len(changes)
    codes = np.zeros(rows, dtype=np.int64) if changes.key_changed is None else np.zeros(2 * rows, dtype=np.int64)
    for name in changes.table.key:
        column = changes.columns[name]
        if changes.key_changed is not None:
            column = pa.concat_arrays([column, changes.old_key[name]])
        _, codes = np.unique(codes * (len(codes) + 1) + key_codes(column), return_inverse=True)
    if changes.key_changed is not None:
        # Rows without an old key were numbered as the key of nulls, which no row has.
        real = np.concatenate((np.ones(rows, dtype=bool), changes.key_changed))
        _, compact = np.unique(codes[real], return_inverse=True)
        codes[real] = compact
        codes[~real] = -1
    else:
        real = np.ones(rows, dtype=bool)
    count = int(codes.max()) + 1 if len(codes) else 0
    example = np.full(count, -1, dtype=np.int64)
    reverse = np.flatnonzero(real)[::-1]
    example[codes[reverse]] = reverse
    old = codes[rows:] if changes.key_changed is not None else np.full(rows, -1, dtype=np.int64)
    return KeyIndex(codes[:rows], old, example)


def _last_row(codes: Rows, rows: Rows, count: int) -> Rows:
    """For each code the last of these rows that has it, else -1. (numpy: of repeated indices the last one wins.)"""
    last = np.full(count, -1, dtype=np.int64)
    last[codes[rows]] = rows
    return last


@dataclass
class _Row:
    """A row on its way through the sequence."""

    origin: int
    last: int
    live: bool = True
    source: dict[str, int] = field(default_factory=dict)


def _follow_key_changes(changes: Changes, folded: Folded, partial: dict[str, NDArray[np.bool_]]) -> None:
    """Redo, one row after the other, the keys that took part in a key change. They are few."""
    keys = folded.keys
    moved = np.flatnonzero(keys.old_code >= 0)
    involved = np.zeros(len(keys.example), dtype=bool)
    involved[keys.code[moved]] = True
    involved[keys.old_code[moved]] = True
    state: dict[int, _Row] = {}
    for row in np.flatnonzero(involved[keys.code]).tolist():
        code, old = int(keys.code[row]), int(keys.old_code[row])
        _step(changes, state, partial, row, code, old)
    for code in np.flatnonzero(involved).tolist():
        final = state.get(code)
        assert final is not None
        folded.live[code] = final.live
        folded.last[code] = final.last
        folded.origin[code] = final.origin
        for name, source in folded.source.items():
            source[code] = final.source.get(name, -1)


def _step(
    changes: Changes, state: dict[int, _Row], partial: dict[str, NDArray[np.bool_]], row: int, code: int, old: int
) -> None:
    if changes.op[row] == DELETE:
        state[code] = _Row(code, row, live=False)
        return
    if old >= 0:
        current = state.pop(old, None) or _Row(old, row)
        state[old] = _Row(old, row, live=False)
    else:
        current = state.get(code) or _Row(code, row)
    if changes.op[row] == CREATE or not current.live:
        current = _Row(code, row)
    current.last = row
    for name, set_ in partial.items():
        if set_[row]:
            current.source[name] = row
    state[code] = current
