"""Comparing records, and judging what differs: pure, on records made by hand."""

from __future__ import annotations

import numpy as np

from pgtide.verify.compare import ROUNDS_AGAINST, Suspects, align, find_suspects, join_suspects, judge
from pgtide.verify.digests import Records, no_records


def digest(number: int) -> bytes:
    """Sixteen bytes that are as unlike as digests are, and the same for the same number."""
    return np.random.default_rng(number).bytes(16)


def records(*pairs: tuple[int, int]) -> Records:
    """A record for each pair of a key and a content."""
    data = b"".join(digest(key) + digest(1000 + content) for key, content in pairs)
    return np.frombuffer(data, np.uint8).reshape(-1, 32)


def keys_of(suspects: Suspects) -> set[bytes]:
    return {key.tobytes() for key in suspects.keys}


def test_equal_sides_leave_no_suspect_whatever_their_order() -> None:
    assert len(find_suspects(records((1, 1), (2, 2), (3, 3)), records((3, 3), (1, 1), (2, 2)))) == 0
    assert len(find_suspects(no_records(), no_records())) == 0


def test_what_is_missing_extra_different_or_doubled_is_suspect() -> None:
    source = records((1, 1), (2, 2), (3, 3), (4, 4))
    sink = records((1, 1), (2, 9), (4, 4), (4, 4), (5, 5))
    assert keys_of(find_suspects(source, sink)) == {digest(2), digest(3), digest(4), digest(5)}


def test_an_empty_side_makes_every_row_of_the_other_suspect() -> None:
    rows = records((1, 1), (2, 2))
    assert keys_of(find_suspects(rows, no_records())) == keys_of(find_suspects(no_records(), rows))
    assert len(find_suspects(rows, no_records())) == 2


def test_rows_under_one_key_are_compared_without_regard_to_order() -> None:
    assert len(find_suspects(records((1, 1), (1, 2)), records((1, 2), (1, 1)))) == 0
    assert len(find_suspects(records((1, 1), (1, 2)), records((1, 1), (1, 1)))) == 1


def test_keys_that_share_their_first_half_are_told_apart() -> None:
    rows = records((1, 1), (2, 2), (3, 3), (4, 4)).copy()
    rows[:, :8] = 7
    assert len(find_suspects(rows, rows[[2, 0, 3, 1]])) == 0
    assert len(find_suspects(rows, rows[:3])) == 1
    keys, (states,) = align(rows)
    assert len(keys) == 4
    assert states.rows.tolist() == [1, 1, 1, 1]


def test_aligned_keys_ascend_by_their_bytes() -> None:
    keys, _ = align(records(*((number, number) for number in range(50))), records((99, 1)))
    texts = [key.tobytes() for key in keys]
    assert texts == sorted(texts)


def test_a_suspect_is_cleared_by_what_the_source_showed_before_or_after() -> None:
    old, new, absent = records((1, 1)), records((1, 2)), no_records()
    suspects = find_suspects(old, new)
    for before, sink, after in ((old, old, new), (old, new, new), (absent, absent, new), (old, absent, absent)):
        left, found = judge(suspects, before, sink, after)
        assert len(left) == 0
        assert len(found) == 0


def test_only_several_rounds_in_a_row_make_a_difference() -> None:
    source, sink = records((1, 1), (2, 2)), records((1, 9), (2, 2))
    suspects = find_suspects(source, sink)
    for _ in range(ROUNDS_AGAINST - 1):
        suspects, found = judge(suspects, source, sink, source)
        assert len(suspects) == 1
        assert len(found) == 0
    suspects, found = judge(suspects, source, sink, source)
    assert len(suspects) == 0
    assert (found.missing, found.extra, found.different) == (0, 0, 1)
    assert found.examples == [digest(1)]


def test_a_row_that_changes_meanwhile_begins_to_count_anew() -> None:
    old, new, sink = records((1, 1)), records((1, 2)), records((1, 9))
    suspects = find_suspects(old, sink)
    for _ in range(ROUNDS_AGAINST - 1):
        suspects, _ = judge(suspects, old, sink, old)
    suspects, found = judge(suspects, old, sink, new)
    assert len(found) == 0
    assert suspects.against.tolist() == [0]


def test_differences_are_counted_by_kind() -> None:
    source = records((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (5, 5), (5, 5))
    sink = records((1, 1), (2, 9), (4, 4), (4, 4), (5, 5), (6, 6))
    suspects = find_suspects(source, sink)
    suspects = Suspects(suspects.keys, np.full(len(suspects), ROUNDS_AGAINST - 1, np.uint8))
    left, found = judge(suspects, source, sink, source)
    assert len(left) == 0
    assert (found.missing, found.extra, found.different) == (1 + 2, 1 + 1, 1)


def test_rows_of_others_that_come_along_are_not_judged() -> None:
    source, sink = records((1, 1), (2, 2)), records((1, 9), (2, 9))
    suspects = find_suspects(source[:1], sink[:1])
    left, _ = judge(suspects, source, sink, source)
    assert keys_of(left) == {digest(1)}


def test_suspects_of_partitions_are_those_of_the_whole() -> None:
    source = records(*((number, number) for number in range(300)))
    suspects = find_suspects(source, no_records())
    parts = [suspects.in_partition(part) for part in range(256)]
    joined = join_suspects(parts)
    assert (joined.keys == suspects.keys).all()
    assert suspects.in_partition(None) is suspects
    assert len(join_suspects([])) == 0
