"""The sink's side: a Delta table, read with its own library and rendered to the same texts and digests.

Each read opens the table anew: the pipeline goes on writing, and a read shows one version of it. A table that does not
exist has no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from pgtide.verify.canonical import TEXT, compute
from pgtide.verify.compare import Keys
from pgtide.verify.digests import RowForm, digests
from pgtide.verify.source import KnownKeys
from pgtide.verify.spool import Spool

# Few and small, because the rows may be wide: what is read ahead is in memory.
_BATCH_ROWS = 32_768
_BATCHES_AHEAD = 4
_FILES_AHEAD = 2

# A version's files can be vacuumed away while they are read; the next version has others.
_ATTEMPTS = 3

Take = Callable[[pa.RecordBatch], None]


class SinkReader:
    """Reads one table of the sink as records."""

    def __init__(self, path: Path, form: RowForm) -> None:
        self._path = path
        self._form = form

    def read_all(self) -> Spool:
        """Every row."""
        return self._read(lambda batch: batch)

    def read_keys(self, known: KnownKeys) -> Spool:
        """The rows with these keys."""
        wanted = pa.array(known.texts, TEXT)

        def chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch.filter(compute.is_in(self._form.key_texts(batch), value_set=wanted))

        return self._read(chosen)

    def resolve(self, keys: Keys) -> dict[bytes, tuple[str, list[str]]]:
        """For those of these key digests that the sink has, the key's text and its columns as printed."""
        wanted = {key.tobytes() for key in keys}
        names = self._form.key
        found: dict[bytes, tuple[str, list[str]]] = {}

        def note(batch: pa.RecordBatch) -> None:
            texts = self._form.key_texts(batch)
            present = [key.tobytes() for key in digests(texts)]
            rows = pa.array([row for row, key in enumerate(present) if key in wanted], pa.int64())
            if not len(rows):
                return
            columns = [self._form.forms[name].render(batch.column(name).take(rows)).to_pylist() for name in names]
            for row, text, *printed in zip(rows.to_pylist(), texts.take(rows).to_pylist(), *columns, strict=True):
                found[present[row]] = (text, printed)

        self._scan(note, list(names))
        return found

    def _read(self, choose: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Spool:
        for attempt in range(_ATTEMPTS):
            spool = Spool()
            try:
                self._scan(lambda batch, spool=spool: spool.append(self._form.records(choose(batch))))
            except BaseException as error:
                spool.close()
                if not isinstance(error, FileNotFoundError) or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return spool
        raise AssertionError("unreachable")
