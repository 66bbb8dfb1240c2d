"""Which transactions a snapshot could see: by their ids, also over the wrap."""

from __future__ import annotations

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.snapshot.visibility import Visibility


def unseen(visibility: Visibility, *xids: int) -> list[bool]:
    found: list[bool] = visibility.unseen(np.array([xid % 2**32 for xid in xids], dtype=np.int64)).tolist()
    return found


@pytest.mark.parametrize("epoch", [0, 1, 5, 2**20])
@pytest.mark.parametrize("start", [1000, 2**31 - 5, 2**31, 2**32 - 15, 2**32 - 8, 2**32 - 1])
def test_what_had_ended_is_seen_and_what_ran_or_came_later_is_not(epoch, start):
    base = epoch * 2**32 + start
    visibility = Visibility(base, base + 10, (base, base + 3))
    expected = {-5: False, -1: False, 0: True, 1: False, 2: False, 3: True, 9: False, 10: True, 11: True, 1000: True}
    assert unseen(visibility, *[base + step for step in expected]) == list(expected.values())


@given(
    st.integers(2**31, 2**62),
    st.integers(0, 100),
    st.sets(st.integers(0, 100)),
    st.lists(st.integers(-(2**31) + 200, 2**31 - 200), max_size=20),
)
def test_ids_within_half_a_wrap_are_told_apart(xmin, width, running, offsets):
    xmax = xmin + width
    listed = tuple(sorted(xmin + each for each in running if each < width))
    visibility = Visibility(xmin, xmax, listed)
    xids = [xmax + offset for offset in offsets]
    expected = [xid >= xmax or xid in listed for xid in xids]
    assert unseen(visibility, *xids) == expected


@given(st.integers(3, 2**62), st.integers(0, 50), st.sets(st.integers(0, 49)))
def test_a_snapshot_comes_back_from_its_text(xmin, width, running):
    visibility = Visibility(xmin, xmin + width, tuple(sorted(xmin + each for each in running if each < width)))
    assert Visibility.parse(str(visibility)) == visibility


def test_postgres_agrees_about_who_is_seen(database):
    with psycopg.connect(database, autocommit=True) as connection, psycopg.connect(database) as running:
        (before,) = row(connection, "select pg_current_xact_id()::text::int8")
        (inside,) = row(running, "select pg_current_xact_id()::text::int8")
        (later,) = row(connection, "select pg_current_xact_id()::text::int8")
        (text,) = row(connection, "select pg_current_snapshot()::text")
        (future,) = row(connection, "select pg_current_xact_id()::text::int8")
        visibility = Visibility.parse(text)
        xids = [before, inside, later, future]
        assert unseen(visibility, *xids) == [False, True, False, True]
        for xid in xids:
            (visible,) = row(connection, "select pg_visible_in_snapshot(%s::text::xid8, %s)", xid, text)
            assert unseen(visibility, xid) == [not visible]


def row(connection, query, *parameters):
    found = connection.execute(query, parameters).fetchone()
    assert found is not None
    return found
