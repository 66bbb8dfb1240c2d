"""Which user an embedded Postgres runs as, and what that user can reach.

An ordinary user's Postgres runs as that user. Postgres refuses to run as root, and root's Postgres
therefore runs as `nobody`: an account that every machine has, so that pgtide leaves no footprint in the
user database, and one that owns nothing, so that the server can harm nothing.

Invariant: what is shared with `nobody` is either owned by root and closed to its writing, or part of a
private directory that only root can list.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pgtide.errors import EmbeddedError


@dataclass(frozen=True)
class Account:
    """A user to become: the ids, and no supplementary groups."""

    uid: int
    gid: int


def server_account() -> Account | None:
    """The user to run Postgres as, or None for the current one."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedError(
            "there is no user to run postgres as",
            detail="postgres refuses to run as root, and this machine has no user nobody",
            hint="run pgtide as an ordinary user",
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


def can_execute(account: Account | None, path: Path) -> bool:
    """Whether the account may execute the file, or search the directory, and all directories above."""
    if account is None:
        return os.access(path, os.X_OK)
    resolved = path.resolve()
    return all(_may_pass(account, each.stat()) for each in (resolved, *resolved.parents))


def _may_pass(account: Account, status: os.stat_result) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def temporary_directory(account: Account | None) -> Path:
    """The temporary directory, or the nearest thing to it that the account can reach."""
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - a fall-back
    for candidate in candidates:
        if candidate.is_dir() and can_execute(account, candidate):
            return candidate
    raise EmbeddedError(
        "no temporary directory is open to the user that postgres runs as",
        detail=f"tried {', '.join(map(str, candidates))} for user id {account and account.uid}",
        hint="set TMPDIR to a directory that every user may pass through",
    )


def own_directory(parent: Path, name: str, mode: int) -> Path:
    """A directory of this user's that lasts, made now or found again.

    The parent is open to every user, so another may have taken the name first: a directory that is
    not ours alone to write is refused rather than trusted.
    """
    directory = parent / name
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        status = directory.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise EmbeddedError(
                f"{directory} is not safe to use",
                detail="it is not a directory that only the current user can write",
                hint="remove it, or set TMPDIR to another directory",
            ) from None
    directory.chmod(mode)
    return directory
