"""A Spark session that starts quietly and anywhere.

Java is the machine's own or the bundled one. Spark's log goes to standard error from level ERROR on, so nothing
stands between the command and its first line. Whatever a user puts under `spark:` wins.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from pgtide.embedded.java import java_environment
from pgtide.spark.source import PgtideSource

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
# The shell's own logger has the root's level, or Spark would announce that it changes it.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
# A stopped pipeline interrupts its tasks, and a failed one is reported by pgtide: neither is Spark's to tell.
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.sources.name = org.apache.spark.sql.execution.datasources.v2
logger.sources.level = off
logger.python.name = org.apache.spark.sql.execution.python
logger.python.level = off
"""

_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.app.name": "pgtide",
    "spark.driver.memory": "1g",
    # The JVM only coordinates: work is done in Python and Rust. Compiling less, with one collector thread, starts Spark
    # in two thirds of the time and leaves the cores to the work. Deep stacks: Spark searches the text of a failed query
    # with regular expressions that recurse.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xss8m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Batches are small and many: two partitions beat two hundred.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    # A pipeline's state is the journal and the sink; the query's own history is of no use.
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.task.maxFailures": "1",
}


def start_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, started if there is none yet."""
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ.update(java_environment())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Arrow and numpy bring thread pools of their own; a task is one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    directory = _scratch_directory()
    (directory / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    os.environ["SPARK_CONF_DIR"] = str(directory)
    builder = SparkSession.builder
    warehouse = {"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.local.dir": str(directory)}
    for key, value in {**_DEFAULTS, **warehouse, **(settings or {})}.items():
        builder = builder.config(key, value)
    with _own_signal_handlers():
        session = builder.getOrCreate()
    session.dataSource.register(PgtideSource)
    return session


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Let signals mean what this process says.

    A new Spark context puts a handler for Ctrl-C in place that raises at once: ours is put back. And a JVM that is
    started while SIGTERM is ignored ignores it too: a signal to the whole group then stops Spark in order, by us.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _scratch_directory() -> Path:
    """A directory for this process, removed when it ends; what killed processes left is removed as well."""
    base = Path(tempfile.gettempdir()) / f"pgtide-spark-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    for each in base.iterdir():
        if each.name.isdigit() and not psutil.pid_exists(int(each.name)):
            shutil.rmtree(each, ignore_errors=True)
    directory = base / str(os.getpid())
    directory.mkdir(mode=0o700, exist_ok=True)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
