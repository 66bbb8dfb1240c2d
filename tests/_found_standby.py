"""On a standby every transaction from xmin on counts as unseen, also one that the chunk has seen.

Folding such a change over a row that already has it is harmless for updates and deletes, but not for key changes: the
fold follows the old key to a row that has it by now and is another one. Long values are lost or go to a wrong row.
"""

from __future__ import annotations

import random

import pytest

from pgtide.reading.changes import CREATE, READ, UPDATE
from tests.reading.model import Change
from tests.reading.test_chunks import Schedule, reduced_rows


def test_a_row_that_the_chunk_has_seen_moving_keeps_its_long_values():
    chunk = [Change(READ, (2,), (9, "a1", "b1"))]
    assert reduced_rows(chunk, [Change(UPDATE, (2,), (9, ..., ...), (1,))]) == {(2,): (..., "a1", "b1")}


def test_a_new_row_under_the_old_key_does_not_give_its_values_to_the_row_that_moved():
    chunk = [Change(READ, (1,), (8, "other", "other")), Change(READ, (2,), (9, "a1", "b1"))]
    window = [Change(UPDATE, (2,), (9, ..., ...), (1,)), Change(CREATE, (1,), (8, "other", "other"))]
    assert reduced_rows(chunk, window) == {(2,): (..., "a1", "b1")}


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_on_a_standby_give_the_true_state(seed):
    random_ = random.Random(seed)
    for _ in range(700):
        Schedule.random(random_).check(standby=True)
