"""The owner's end of the guard: start a process in a private directory, ask it to stop, hear it end.

This module knows the conversation that `guard.py` describes and nothing of Postgres. Only the process
that made a `Guarded` should use it: a forked child shares the pipe, but the guard watches its parent.

Invariant: once `close` has returned, the guard, its child and its directory are gone.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgtide.embedded import guard
from pgtide.embedded.account import Account
from pgtide.errors import EmbeddedError

_ANSWER_SECONDS = 30.0


class Guarded:
    """A guard with its directory, and at most one child that runs in it."""

    def __init__(self, parent: Path, account: Account | None) -> None:
        # The server's account has to pass through the directory, but not to look around in it.
        mode = 0o700 if account is None else 0o711
        self._account = account
        self._unread = b""
        self._running = False
        self.exit_code: int | None = None
        # By path and without site-packages: the guard starts the same way however pgtide was imported.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(parent), f"{mode:o}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=_plain_environment(),
        )
        try:
            self.directory = Path(self._expect("directory"))
        except BaseException:
            self.close()
            raise

    @property
    def log_path(self) -> Path:
        return self.directory / guard.LOG_NAME

    @property
    def data_path(self) -> Path:
        return self.directory / guard.DATA_NAME

    def start(self, argv: Sequence[str]) -> int:
        """Start the child and return its process id. Its output goes to the log."""
        self._send(start=list(argv), user=self._account and [self._account.uid, self._account.gid])
        event = self._next_event(_ANSWER_SECONDS)
        if event is None or "started" not in event:
            reason = "the guard does not answer" if event is None else str(event.get("refused"))
            raise EmbeddedError(f"could not start {Path(argv[0]).name}", detail=reason)
        self._running = True
        return int(event["started"])

    def signal(self, number: int) -> None:
        """Send the child a signal."""
        self._send(signal=int(number))

    def crash(self) -> None:
        """Kill the child and all its children at one stroke."""
        self._send(crash=True)

    def running(self) -> bool:
        return self._running and not self.wait(0)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the child and all its children are gone; false if the time runs out before."""
        if self._running:
            event = self._next_event(timeout_seconds)
            if event is None:
                return False
            self.exit_code = int(event["exited"])
            self._running = False
        return True

    def close(self) -> None:
        """End the guard and with it everything it started and made. May be called again."""
        for pipe in (self._guard.stdin, self._guard.stdout):
            assert pipe is not None
            pipe.close()
        self._guard.wait()
        self._running = False

    def _expect(self, name: str) -> Any:
        event = self._next_event(_ANSWER_SECONDS)
        if event is None or name not in event:
            raise EmbeddedError("the guard of the embedded postgres does not answer")
        return event[name]

    def _send(self, **command: object) -> None:
        assert self._guard.stdin is not None
        try:
            os.write(self._guard.stdin.fileno(), json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            raise _guard_is_gone() from None

    def _next_event(self, timeout_seconds: float) -> dict[str, Any] | None:
        """The next line from the guard, or None if none comes in time."""
        assert self._guard.stdout is not None
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._unread:
            remaining = max(0.0, deadline - time.monotonic())
            if not select.select([self._guard.stdout], [], [], remaining)[0]:
                return None
            data = os.read(self._guard.stdout.fileno(), 65536)
            if not data:
                raise _guard_is_gone()
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event


def _guard_is_gone() -> EmbeddedError:
    return EmbeddedError(
        "the guard of the embedded postgres is gone",
        hint="something ended the process that watches over it; start a new embedded postgres",
    )


def _plain_environment() -> dict[str, str]:
    """The owner's environment without what would change how Postgres behaves or what it says."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "PYTHON")) and name not in ("LANG", "LANGUAGE", "TZ")
    }
    return kept | {"LC_ALL": "C"}
