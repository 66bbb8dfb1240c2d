"""The sink's side: a Delta table, read with its own library and rendered to the same texts and digests.

Each read opens the table anew: the pipeline goes on writing, and a read shows one version of it. The log says which
files make up that version; they are read whole, and the statistics beside them have no part in it. A table that does
not exist has no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.parquet import ParquetFile

from pgtide.errors import SinkError
from pgtide.verify.canonical import TEXT, compute
from pgtide.verify.compare import Keys
from pgtide.verify.digests import RowForm, digests
from pgtide.verify.source import Found, KnownKeys
from pgtide.verify.spool import Spool

# Small, because rows may be wide; large enough for Arrow to be at its best.
_BATCH_ROWS = 32_768

# The files of a version can be vacuumed away while they are read; the next version has others.
_ATTEMPTS = 3

# What a table may ask of its readers without its files meaning anything else than they say.
_HARMLESS_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})

# Arrow's stubs are generic in ways that say nothing here.
Batch = Any
Result = TypeVar("Result")


class SinkReader:
    """Reads one table of the sink as records."""

    def __init__(self, path: Path, form: RowForm) -> None:
        self._path = path
        self._form = form

    def read_all(self) -> Spool:
        """Every row."""
        return self._steadily(lambda: self._spooled(lambda batch: batch))

    def read_keys(self, known: KnownKeys) -> Spool:
        """The rows with these keys."""
        wanted = pa.array(known.texts, TEXT)

        def chosen(batch: Batch) -> Batch:
            return batch.filter(compute.is_in(self._form.key_texts(batch), value_set=wanted))

        return self._steadily(lambda: self._spooled(chosen))

    def resolve(self, keys: Keys) -> Found:
        """For those of these key digests that the sink has, the key's text and its columns as printed."""
        wanted = {key.tobytes() for key in keys}
        return self._steadily(lambda: self._found(wanted))

    def _spooled(self, choose: Callable[[Batch], Batch]) -> Spool:
        spool = Spool()
        try:
            for batch in self._batches(tuple(self._form.forms)):
                spool.append(self._form.records(choose(batch)))
        except BaseException:
            spool.close()
            raise
        return spool

    def _found(self, wanted: set[bytes]) -> Found:
        names = self._form.key
        found: Found = {}
        for batch in self._batches(names):
            texts = self._form.key_texts(batch)
            present = [key.tobytes() for key in digests(texts)]
            rows = [row for row, key in enumerate(present) if key in wanted]
            places = pa.array(rows, pa.int64())
            columns = [self._form.forms[name].render(batch.column(name).take(places)).to_pylist() for name in names]
            for row, text, *printed in zip(rows, texts.take(places).to_pylist(), *columns, strict=True):
                found[present[row]] = (text, printed)
        return found

    def _batches(self, columns: tuple[str, ...]) -> Iterator[Batch]:
        """The table's rows, as of now, in those of these columns that they have."""
        for path in self._files():
            with ParquetFile(path) as file:
                present = [name for name in columns if name in file.schema_arrow.names]
                for batch in file.iter_batches(_BATCH_ROWS, columns=present):
                    yield _without_views(batch)

    def _files(self) -> list[Path]:
        """The files of the newest version. pgtide's tables have no partitions, so all lie in the table's directory."""
        if not DeltaTable.is_deltatable(str(self._path)):
            return []
        table = DeltaTable(str(self._path))
        needed = set(table.protocol().reader_features or ()) - _HARMLESS_FEATURES
        if needed:
            raise SinkError(
                f"Delta table {self._path} uses features that verification does not know",
                detail=", ".join(sorted(needed)),
                hint="pgtide must be the only writer of its tables",
            )
        return [self._path / unquote(PurePosixPath(uri).name) for uri in table.file_uris()]

    def _steadily(self, read: Callable[[], Result]) -> Result:
        """Read, again if the files went away under the reading; what cannot be read is named."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return read()
            except (DeltaError, OSError, pa.ArrowInvalid) as error:
                if left and isinstance(error, FileNotFoundError):
                    continue
                # The reason is named by its kind alone: Arrow's messages may quote a value.
                raise SinkError(
                    f"cannot read Delta table {self._path}",
                    detail=type(error).__name__,
                    hint="check that this user may read it and that nothing but pgtide writes or removes its files",
                ) from None
        raise AssertionError("the last attempt returns or raises")


def _without_views(batch: Batch) -> Batch:
    """A merge leaves texts and bytes as views, which Arrow cannot filter or take: make them ordinary."""
    types = [_without_view(field.type) for field in batch.schema]
    if types == batch.schema.types:
        return batch
    columns = [column.cast(each) for column, each in zip(batch.columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _without_view(kind: Any) -> Any:
    if pa.types.is_list(kind):
        return pa.list_(_without_view(kind.value_type))
    if pa.types.is_string_view(kind):
        return TEXT
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind
