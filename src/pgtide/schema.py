"""Tables as pgtide knows them: columns, keys and the types behind them.

A table description is what a reader needs to turn wire tuples into columns and a sink to find a row
again. It is immutable and has a JSON form, because it travels inside the journal next to the data it
describes. It knows nothing of Arrow, Spark or of how to ask Postgres.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class TableName(NamedTuple):
    """Schema and name, unquoted."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `schema.name`; a bare name is in `public`."""
        schema, dot, name = text.partition(".")
        return cls(schema, name) if dot else cls("public", schema)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def selected_by(globs: Sequence[str], table: TableName) -> bool:
    """True if the globs choose this table: the last one that matches decides, `!` excludes.

    A list that begins with an exclusion begins with every table.
    """
    selected = bool(globs) and globs[0].startswith("!")
    for glob in globs:
        if fnmatchcase(str(table), glob.removeprefix("!")):
            selected = not glob.startswith("!")
    return selected


@dataclass(frozen=True)
class TypeInfo:
    """What pg_type says of one type. `kind` is typtype, or `a` for an array.

    `base` is the domain's base type, `element` the array's element type, else 0. `binary` is false for
    the few types without a send function, which arrive as text.
    """

    oid: int
    name: str
    kind: str
    base: int = 0
    base_modifier: int = -1
    element: int = 0
    binary: bool = True


@dataclass(frozen=True)
class Column:
    """One column, in the order in which Postgres sends it.

    `key`: part of the replica identity. `type_name`: as format_type() writes it, for people and for casts.
    """

    name: str
    type_oid: int
    type_modifier: int = -1
    key: bool = False
    attnum: int = 0
    not_null: bool = False
    type_name: str = ""
    has_default: bool = False


@dataclass(frozen=True)
class Table:
    """A version of a table.

    `key` names the columns that identify a row for a sink: the primary key, else the replica
    identity's index. It is empty for a table whose rows are only known by their whole content
    (REPLICA IDENTITY FULL without a primary key): such a table is a multiset.
    """

    oid: int
    name: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    replica_identity: str = "d"
    types: Mapping[int, TypeInfo] = field(default_factory=dict)

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def keyless(self) -> bool:
        return not self.key

    def to_json(self) -> str:
        """A stable text form: the same table always gives the same text."""
        document = {
            "oid": self.oid,
            "schema": self.name.schema,
            "name": self.name.name,
            "replica_identity": self.replica_identity,
            "key": list(self.key),
            "columns": [asdict(column) for column in self.columns],
            "types": [asdict(self.types[oid]) for oid in sorted(self.types)],
        }
        return json.dumps(document, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Table:
        document: dict[str, Any] = json.loads(text)
        types = [TypeInfo(**each) for each in document["types"]]
        return cls(
            oid=document["oid"],
            name=TableName(document["schema"], document["name"]),
            columns=tuple(Column(**each) for each in document["columns"]),
            key=tuple(document["key"]),
            replica_identity=document["replica_identity"],
            types={each.oid: each for each in types},
        )
