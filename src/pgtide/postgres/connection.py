"""Connections to the source, and its refusals as pgtide's errors.

Invariant: no error that leaves here shows a password or a cell value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgtide.config import Source
from pgtide.errors import PgtideError, PreflightError, SourceError, SourceUnreachable

Connection = psycopg.Connection[tuple[Any, ...]]

# A peer that vanished without a word is noticed in about 20 seconds.
_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 2}


def conninfo(source: Source, **more: Any) -> str:
    """The connection string with pgtide's defaults; what the user wrote wins."""
    dsn = source.dsn.get_secret_value()
    given = conninfo_to_dict(dsn)
    settings: dict[str, Any] = {"connect_timeout": 10, "application_name": "pgtide", **_KEEPALIVE}
    settings = {key: value for key, value in settings.items() if key not in given}
    if source.password is not None:
        settings["password"] = source.password.get_secret_value()
    return make_conninfo(dsn, **settings, **more)


@contextmanager
def connect(source: Source) -> Iterator[Connection]:
    """An autocommit connection for SQL, closed at the end. Refusals come out as SourceError."""
    with source_errors(), psycopg.connect(conninfo(source, client_encoding="utf8"), autocommit=True) as connection:
        yield connection


@contextmanager
def source_errors() -> Iterator[None]:
    """Turn the driver's errors into named ones."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: psycopg.Error) -> PgtideError:
    """One named error, with a remedy, for each way in which Postgres refuses."""
    match error:
        case pg.InvalidPassword() | pg.InvalidAuthorizationSpecification():
            return SourceError(
                "the source refuses this user", detail=_primary(error), hint="check user and password of source.dsn"
            )
        case pg.InvalidCatalogName():
            return SourceError("the source database does not exist", detail=_primary(error), hint="check source.dsn")
        case pg.InsufficientPrivilege():
            return PreflightError(
                "the source user lacks a privilege",
                detail=_primary(error),
                hint="run `pgtide check` to see every missing privilege with the SQL that grants it",
            )
        case pg.AdminShutdown() | pg.CrashShutdown() | pg.CannotConnectNow() | pg.TooManyConnections():
            return SourceUnreachable("the source is not available", detail=_primary(error))
        case psycopg.OperationalError() if error.sqlstate is None:
            return _connection_error(str(error))
        case _:
            return SourceError("the source reports an error", detail=_primary(error))


def _connection_error(text: str) -> PgtideError:
    """libpq gives no code for a failed connection, only a text (which never holds the password)."""
    detail = " ".join(text.split())
    unknown_role = "role" in text and "does not exist" in text
    if unknown_role or any(word in text for word in ("password", "authentication", "pg_hba.conf")):
        return SourceError("the source refuses this user", detail=detail, hint="check user and password of source.dsn")
    if "does not exist" in text and "database" in text:
        return SourceError("the source database does not exist", detail=detail, hint="check source.dsn")
    return SourceUnreachable(
        "cannot reach the source", detail=detail, hint="check host and port of source.dsn, and that Postgres is running"
    )


def _primary(error: psycopg.Error) -> str | None:
    """The server's primary message: names and codes; the DETAIL field may hold values and is left out."""
    return error.diag.message_primary or " ".join(str(error).split())
