"""The configuration: one model for YAML, environment and command-line options.

Precedence: option, then environment, then YAML, then default. The model is validated whole before anything starts;
an unknown key is an error that names the nearest known one. Secrets (the DSN's password) may be given by
reference, `{env: NAME}` or `{file: PATH}`, are held in SecretStr and are never shown.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from pgtide.errors import ConfigError
from pgtide.schema import TableName, selected_by

DEFAULT_PATH = Path("pgtide.yaml")
# Postgres's own rule for slot names; publications and pipelines follow it too, so that names can go anywhere.
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: Any) -> float:
    """Seconds from `24h`, `30m`, `10s`, `500ms`, `7d`."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a duration: write 500ms, 10s, 30m, 24h or 7d")
    return float(match[1]) * _SECONDS[match[2]]


def _slot_name(value: Any) -> Any:
    if not isinstance(value, str) or not _SLOT_NAME.fullmatch(value):
        raise ValueError("use 1 to 63 lowercase letters, digits and underscores")
    return value


def _resolve_secret(value: Any) -> Any:
    """Follow `{env: NAME}` and `{file: PATH}`."""
    if not isinstance(value, Mapping):
        return value
    match dict(value):
        case {"env": str(name)} if len(value) == 1:
            if name not in os.environ:
                raise ValueError(f"environment variable {name} is not set")
            return os.environ[name]
        case {"file": str(path)} if len(value) == 1:
            try:
                return Path(path).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ValueError(f"cannot read {path}: {error.strerror}") from error
            except UnicodeDecodeError:
                raise ValueError(f"cannot read {path}: it is not text") from None
    raise ValueError("write a text, {env: NAME} or {file: PATH}")


Duration = Annotated[float, BeforeValidator(parse_duration)]
SlotName = Annotated[str, BeforeValidator(_slot_name)]
Secret = Annotated[SecretStr, BeforeValidator(_resolve_secret)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Section):
    """The Postgres to copy from."""

    dsn: Secret = Field(description="libpq connection string or URI; also `{env: NAME}` or `{file: PATH}`")
    password: Secret | None = Field(None, description="password, if it is not in the DSN, .pgpass or a service file")
    slot: SlotName = Field("", description="replication slot; empty: `pgtide_<database>`")
    publication: SlotName = Field("", description="publication; empty: `pgtide_<database>`")
    tables: tuple[str, ...] = Field(("*.*",), description="globs over `schema.table`; a leading `!` excludes")
    snapshot_chunk_bytes: int = Field(
        64 * 1024 * 1024, ge=8192, description="size of one piece of a table's first copy, in bytes on disk"
    )
    snapshot_readers: int = Field(2, ge=1, le=64, description="connections that copy tables at the same time")

    def selects(self, table: TableName) -> bool:
        return selected_by(self.tables, table)


class Journal(_Section):
    """Where changes are kept, and for how long."""

    url: str = Field("./journal", description="a local directory")
    retention: Duration = Field(
        "24h", validate_default=True, description="how long changes are kept once every pipeline has applied them"
    )

    @field_validator("url")
    @classmethod
    def _local(cls, url: str) -> str:
        if "://" in url.removeprefix("file://"):
            raise ValueError("the journal must be a local directory: write a path")
        return url

    @property
    def path(self) -> Path:
        return Path(self.url.removeprefix("file://"))


class DeltaSink(_Section):
    """A Delta table at `<path>/<schema>/<table>` for each source table."""

    type: Literal["delta"] = Field(description="`delta`")
    path: str = Field(description="directory of the lake")
    vacuum_after: Duration = Field(
        "1h",
        validate_default=True,
        ge=3600,
        description="how long replaced files are kept for readers of older versions, in whole hours",
    )


class Pipeline(_Section):
    """Tables, and the sink that gets them."""

    name: SlotName = Field(description="lowercase letters, digits and underscores")
    sink: DeltaSink = Field(description="where the tables go; see below")
    tables: tuple[str, ...] = Field(("*.*",), description="globs over the source's tables, as in source.tables")
    trigger: Duration = Field(
        "0s", validate_default=True, description="least time between two batches; `0s` starts the next at once"
    )
    max_batch_bytes: int = Field(
        128 * 1024 * 1024, ge=1024, description="about how much of the journal one batch takes at most"
    )

    def selects(self, table: TableName) -> bool:
        return selected_by(self.tables, table)


class Config(_Section):
    """All of pgtide.yaml."""

    source: Source
    journal: Journal = Field(default_factory=lambda: Journal.model_validate({}))
    pipelines: tuple[Pipeline, ...] = ()

    @model_validator(mode="after")
    def _pipeline_names_are_unique(self) -> Config:
        names = [pipeline.name for pipeline in self.pipelines]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"pipeline name used twice: {', '.join(doubled)}")
        return self

    @model_validator(mode="after")
    def _sinks_are_apart(self) -> Config:
        """Two pipelines that write the same tables would double their rows."""
        paths = [(pipeline.name, Path(pipeline.sink.path).resolve()) for pipeline in self.pipelines]
        for (name, path), (other, inner) in permutations(paths, 2):
            if inner.is_relative_to(path):
                raise ValueError(f"the sinks of pipelines {name} and {other} share a path")
        return self


def load_config(path: Path | None = None, *, dsn: str | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and validate the configuration.

    With no path, `pgtide.yaml` is used if it is there. Raises ConfigError with every problem that was found.
    """
    document = _read_yaml(path)
    source = document.setdefault("source", {}) if isinstance(document, dict) else {}
    if isinstance(source, dict):
        given = dsn or environ.get("PGTIDE_SOURCE_DSN") or source.get("dsn") or _dsn_from_environment(environ)
        if given:
            source["dsn"] = given
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        raise _config_error(error, path or DEFAULT_PATH) from None
    return _with_default_names(config)


def load_journal_config(path: Path | None = None) -> Journal:
    """The journal's section alone, for commands that do not need a source."""
    document = _read_yaml(path)
    section = document.get("journal", {}) if isinstance(document, dict) else {}
    try:
        return Journal.model_validate(section)
    except ValidationError as error:
        raise _config_error(error, path or DEFAULT_PATH) from None


def _read_yaml(path: Path | None) -> Any:
    if path is None and not DEFAULT_PATH.exists():
        return {}
    path = path or DEFAULT_PATH
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}", detail=error.strerror, hint="name the file with -c, or run in its directory"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        # What the parser quotes may be a secret: an unquoted password with a * in front is an alias to it.
        problem = re.sub(r"'.*'", "…", getattr(error, "problem", None) or "it is not YAML")
        raise ConfigError(f"cannot read {path}", detail=f"{place}{problem}") from None
    if document is not None and not isinstance(document, dict):
        raise ConfigError(
            f"{path} is not a configuration",
            detail="it has to be keys and values",
            hint="begin with `source:`; docs/config.md lists every key",
        )
    return {} if document is None else document


def _dsn_from_environment(environ: Mapping[str, str]) -> str | None:
    """The POSTGRES_* names, which many deployments already set."""
    names = {"host": "HOST", "port": "PORT", "dbname": "DB", "user": "USER", "password": "PASSWORD"}
    parts = {key: environ.get(f"POSTGRES_{name}") for key, name in names.items()}
    if not any(parts.values()):
        return None
    quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in parts.items() if value}
    return " ".join(f"{key}='{value}'" for key, value in quoted.items())


def _with_default_names(config: Config) -> Config:
    """Fill in slot and publication, `pgtide_<database>`. Refuses a dsn that is none, whatever is filled in."""
    source = config.source
    default = f"pgtide_{_slot_safe(_database_name(source.dsn.get_secret_value()))}"[:63]
    source = source.model_copy(update={"slot": source.slot or default, "publication": source.publication or default})
    return config.model_copy(update={"source": source})


def _database_name(dsn: str) -> str:
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import ProgrammingError

    try:
        parts = conninfo_to_dict(dsn)
    except ProgrammingError:
        raise ConfigError(
            "source.dsn is not a Postgres connection string",
            hint="write postgresql://user@host:5432/database or host=… dbname=… user=…",
        ) from None
    if "@" in str(parts.get("host") or ""):
        # The part before the @ may belong to a password: it must not get into a message about an unknown host.
        raise ConfigError(
            "source.dsn has an @ that is not escaped",
            hint="write special characters of a password as %40 (@), %2F (/), %3A (:), or give it by PGPASSWORD",
        )
    return str(parts.get("dbname") or os.environ.get("PGDATABASE") or parts.get("user") or "postgres")


def _slot_safe(name: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def _config_error(error: ValidationError, path: Path) -> ConfigError:
    problems = [_problem(each) for each in error.errors(include_input=False, include_url=False)]
    missing_dsn = any(each["loc"] == ("source", "dsn") and each["type"] == "missing" for each in error.errors())
    return ConfigError(
        f"the configuration is not valid ({path})",
        detail="; ".join(problems),
        hint="give the source's address with --dsn, PGTIDE_SOURCE_DSN or source.dsn in the file"
        if missing_dsn
        else None,
    )


def _problem(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {place}{_nearest(error['loc'])}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {message[:1].lower()}{message[1:]}" if place else message


def _nearest(location: tuple[str | int, ...]) -> str:
    """`, did you mean …?` for a misspelt key."""
    section: Any = Config
    for part in location[:-1]:
        section = _SECTIONS.get(str(part), section)
    known = list(section.model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f", did you mean {close[0]}?" if close else f" (known: {', '.join(known)})"


_SECTIONS: dict[str, type[BaseModel]] = {
    "source": Source,
    "journal": Journal,
    "pipelines": Pipeline,
    "sink": DeltaSink,
}
