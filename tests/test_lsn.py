"""LSN and position: their text forms and their order."""

from __future__ import annotations

import pickle

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtide.embedded.postgres import EmbeddedPostgres
from pgtide.lsn import LSN, ZERO
from pgtide.position import START, Position

lsns = st.integers(0, 2**64 - 1).map(LSN)
positions = st.builds(Position, lsns, st.integers(0, 2**62))


@given(lsns)
def test_an_lsn_is_read_back_from_its_text(lsn):
    assert LSN.parse(str(lsn)) == lsn
    assert LSN.parse(str(lsn).lower()) == lsn


@given(lsns)
def test_an_lsn_survives_pickling_with_its_type(lsn):
    again = pickle.loads(pickle.dumps(lsn))
    assert (again, type(again)) == (lsn, LSN)


@given(lsns, lsns)
def test_lsns_are_ordered_as_numbers_and_not_as_text(left, right):
    assert (left < right) == (int(left) < int(right))


@pytest.mark.parametrize(
    "text",
    ["", "0", "/", "0/", "/0", "1/2/3", "G/0", "0/G", " 0/0", "0/0\n", "-1/0", "0x1/0", "123456789/0", "0/123456789"],
)
def test_what_is_not_an_lsn_is_refused(text):
    with pytest.raises(ValueError, match="not an LSN"):
        LSN.parse(text)


def test_the_repr_of_an_lsn_is_its_text():
    assert repr(LSN(0x16_B374D848)) == "LSN('16/B374D848')"
    assert str(ZERO) == "0/0"


@pytest.mark.parametrize("number", [0, 1, 0xFFFFFFFF, 0x1_00000000, 0x16_B374D848, 2**64 - 1])
def test_postgres_writes_and_reads_an_lsn_as_we_do(postgres18: EmbeddedPostgres, number):
    with psycopg.connect(postgres18.dsn) as connection:
        row = connection.execute("select (%s::text::pg_lsn - '0/0'::pg_lsn)::text", [str(LSN(number))]).fetchone()
        assert row == (str(number),)
        row = connection.execute("select ('0/0'::pg_lsn + %s::numeric)::text", [number]).fetchone()
        assert row is not None
        assert LSN.parse(row[0]) == number


@given(positions)
def test_a_position_is_read_back_from_its_text(position):
    assert Position.parse(str(position)) == position


@given(positions, positions)
def test_positions_are_ordered_by_commit_and_then_by_ordinal(left, right):
    assert (left < right) == ((int(left.commit_lsn), left.ordinal) < (int(right.commit_lsn), right.ordinal))
    assert left >= START


@pytest.mark.parametrize("text", ["", "0/0", "0/0:", ":1", "0/0:-1", "0/0:a", "0/0:1:2", "x:1"])
def test_what_is_not_a_position_is_refused(text):
    with pytest.raises(ValueError, match="not a"):
        Position.parse(text)
