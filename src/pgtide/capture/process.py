"""Capture in a process of its own.

It shares nothing with its owner but two pipes: down comes the end (closing it, or the owner's death, stops capture), up
go progress and, at last, the error. So capture keeps running whatever the JVM or a sink does, and never outlives
its owner.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pgtide.capture.loop import Capture, Progress
from pgtide.config import Config
from pgtide.errors import PgtideError

_REPORT_SECONDS = 0.25


class PipeStop:
    """Set when the other end of a pipe is closed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._set = False

    def fileno(self) -> int:
        return self._pipe.fileno()

    def is_set(self) -> bool:
        if not self._set:
            self._set = bool(select.select([self._pipe], [], [], 0)[0])
        return self._set


class CaptureProcess:
    """Owns a capture process: starts it, hears from it, stops it."""

    def __init__(self, config: Config) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._config = config
        self.progress = Progress()
        self._error: BaseException | None = None

    def start(self) -> None:
        stop_receiver, self._stop_sender = self._context.Pipe(duplex=False)
        self._reports, report_sender = self._context.Pipe(duplex=False)
        arguments = (self._config, stop_receiver, self._stop_sender, report_sender)
        self._process = self._context.Process(target=_main, args=arguments, name="pgtide-capture", daemon=True)
        self._process.start()
        stop_receiver.close()
        report_sender.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> Progress:
        """Take in what capture has said. Raises its error if it has failed."""
        # Asked before listening: what it said before it ended is then heard for certain.
        alive = self._process.is_alive()
        with contextlib.suppress(EOFError, OSError):
            while self._reports.poll():
                self._hear(self._reports.recv())
        if self._error is not None:
            raise self._error
        if not alive and self._process.exitcode:
            raise PgtideError(
                "the capture process ended unexpectedly",
                detail=f"exit status {self._process.exitcode}",
                hint="run the same command again: it continues where the journal ends",
            )
        return self.progress

    def wait_until_streaming(self, timeout_seconds: float = 60.0, stopping: Callable[[], bool] = lambda: False) -> None:
        """Return once capture reads the stream, or when told to stop; raise its error if it cannot."""
        deadline = time.monotonic() + timeout_seconds
        while self.poll().state != "streaming" and not stopping():
            if time.monotonic() > deadline:
                raise PgtideError(
                    "capture does not begin to stream", detail=self.progress.problem or self.progress.state
                )
            time.sleep(0.02)

    def stop(self, timeout_seconds: float = 30.0) -> None:
        """Ask capture to finish its block and end; make sure that it does."""
        self._stop_sender.close()
        self._process.join(timeout_seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _hear(self, message: Any) -> None:
        if isinstance(message, Progress):
            self.progress = message
        elif isinstance(message, BaseException):
            self._error = message


def _main(config: Config, stop: Connection, stop_sender: Connection, reports: Connection) -> None:
    # Our copy of the sending end must go, or the pipe would never close.
    stop_sender.close()
    # A signal may go to the whole group; the owner decides what it means, and ends us by closing the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    last = 0.0
    last_state = ""

    def report(progress: Progress) -> None:
        nonlocal last, last_state
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS or progress.state != last_state:
            last, last_state = now, progress.state
            with contextlib.suppress(OSError):
                reports.send(progress)

    try:
        Capture(config, PipeStop(stop), report).run()
    except PgtideError as error:
        with contextlib.suppress(OSError):
            reports.send(error)
        raise SystemExit(1) from None
