"""Spools give back what they were given, whether or not it was in memory all the time."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from pgtide.errors import VerifyError
from pgtide.verify.digests import RECORD_BYTES, Records
from pgtide.verify.spool import PARTITIONS, Spool, partitions


def random_records(rows: int, seed: int = 1) -> Records:
    return np.random.default_rng(seed).integers(0, 256, (rows, RECORD_BYTES), dtype=np.uint8)


def in_order(records: Records) -> list[bytes]:
    return sorted(record.tobytes() for record in records)


def test_a_small_table_stays_in_memory_as_one_partition() -> None:
    given = random_records(100)
    with Spool() as spool, Spool() as empty:
        spool.append(given[:60])
        spool.append(given[60:])
        assert not spool.spilled
        assert list(partitions(spool, empty)) == [None]
        assert (spool.read(None) == given).all()
        assert len(empty.read(None)) == 0
        assert spool.rows == 100


def test_a_large_table_comes_back_by_the_first_byte_of_its_keys() -> None:
    given = random_records(5_000)
    with Spool(run_bytes=1000 * RECORD_BYTES) as spool:
        for start in range(0, len(given), 300):
            spool.append(given[start : start + 300])
        assert spool.spilled
        assert list(partitions(spool)) == list(range(PARTITIONS))
        parts = [spool.read(part) for part in range(PARTITIONS)]
    assert all((part[:, 0] == index).all() for index, part in enumerate(parts))
    assert in_order(np.concatenate(parts)) == in_order(given)


def test_a_small_table_is_read_in_partitions_where_the_other_side_is_large() -> None:
    given = random_records(50)
    with Spool(run_bytes=10 * RECORD_BYTES) as large, Spool() as small:
        large.append(given)
        small.append(given)
        both = [(large.read(part), small.read(part)) for part in partitions(large, small)]
    assert len(both) == PARTITIONS
    assert all(in_order(left) == in_order(right) for left, right in both)


def test_a_file_that_cannot_grow_is_named_with_what_to_do() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with Spool(run_bytes=1) as spool, pytest.raises(VerifyError, match="no room") as caught:
            spool.append(random_records(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "TMPDIR" in (caught.value.hint or "")
