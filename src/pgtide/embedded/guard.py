"""The guard: a small process that cannot let its owner's Postgres outlive the owner.

The guard makes the private directory, starts every process that works in it, and holds the reading
end of a pipe whose writing end only the owner has. However the owner ends, by returning, by an
exception or by SIGKILL, the pipe closes; the guard then stops what it started, removes the directory
and goes. It runs in a session of its own, so that what strikes the owner's process group does not
strike it, and it adopts whatever the postmaster leaves behind, so that "the guard has no children"
means "nothing of this Postgres runs any more".

Owner and guard exchange lines of JSON. The owner sends `{"start": argv, "user": [uid, gid] or null}`,
`{"signal": number}` and `{"crash": true}`; the guard answers `{"directory": path}` once, then
`{"started": pid}` or `{"refused": reason}` for each start, and `{"exited": code}` when nothing of it is
left. One child at a time.

It knows nothing of Postgres's configuration, and uses the standard library alone: it runs without
site-packages, which makes it start in some 40 ms.

Invariant: everything that exists because of the guard is gone before the guard is.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

LOG_NAME = "postgres.log"
DATA_NAME = "data"

# A postmaster told to quit gives its children five seconds before it kills them itself.
_QUIT_GRACE_SECONDS = 8.0
_PR_SET_CHILD_SUBREAPER = 36
_IPC_RMID = 0


class Guard:
    """The children of one private directory, and the conversation with the owner."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        self._exit_code = 0
        self._unread = b""

    def serve(self, owner_pid: int) -> None:
        """Obey the owner until it closes the pipe or dies."""
        self._tell(directory=str(self._directory))
        with selectors.DefaultSelector() as selector, _child_signals() as child_signals:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ, "owner")
            selector.register(child_signals, selectors.EVENT_READ, "child")
            owner = _watch(owner_pid)
            if owner is not None:
                selector.register(owner, selectors.EVENT_READ, "owner's death")
            while True:
                for key, _ in selector.select():
                    if key.data == "owner's death":
                        return
                    if key.data == "child":
                        child_signals.recv(4096)
                        self._reap()
                    elif not self._read_commands():
                        return

    def end(self) -> None:
        """Stop whatever still runs: first by asking, then by force."""
        if self._child is not None:
            self._send(signal.SIGQUIT)
            if not self._gone_within(_QUIT_GRACE_SECONDS):
                self._crash()
                self._gone_within(_QUIT_GRACE_SECONDS)
        release_shared_memory(self._directory / DATA_NAME)

    def _read_commands(self) -> bool:
        """Carry out the lines that have arrived. False: the owner has closed its end."""
        data = os.read(sys.stdin.fileno(), 65536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(data)

    def _obey(self, command: dict[str, Any]) -> None:
        if "start" in command:
            self._start(command["start"], command["user"])
        elif "signal" in command:
            self._send(command["signal"])
        elif "crash" in command:
            self._crash()

    def _start(self, argv: list[str], user: list[int] | None) -> None:
        uid, gid = user or (None, None)
        try:
            with open(self._directory / LOG_NAME, "ab") as log:
                self._child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    user=uid,
                    group=gid,
                    extra_groups=None if user is None else [],
                    umask=0o077,
                )
        except OSError as error:
            self._tell(refused=str(error))
        else:
            self._tell(started=self._child.pid)

    def _send(self, number: int) -> None:
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def _crash(self) -> None:
        """Kill postmaster and backends at one stroke, as a power cut would.

        The postmaster is halted first, or it could start a process that is on no list, and killed last,
        or a backend that misses it could still say good-bye to its client.
        """
        if self._child is None:
            return
        self._send(signal.SIGSTOP)
        # Our own children are the postmaster, if it lives, and what one that died has left us.
        ours = _children(os.getpid()) or [self._child.pid]
        for each in [*(child for parent in ours for child in _children(parent)), *ours]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def _reap(self) -> None:
        """Collect the dead; tell the owner once none is alive."""
        while self._child is not None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._child = None
                self._tell(exited=self._exit_code)
                return
            if pid == 0:
                return
            if pid == self._child.pid:
                self._exit_code = self._child.returncode = os.waitstatus_to_exitcode(status)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._child is not None and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        return self._child is None

    def _tell(self, **event: object) -> None:
        """Report to the owner, who may be dead: then there is nobody to report to."""
        with contextlib.suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def release_shared_memory(data_directory: Path) -> None:
    """Remove the System V segment of a postmaster that could not do it itself.

    A Postgres that ends in any orderly way removes it together with its pid file. One that was killed
    leaves both, for its next start to find; here there will be none.
    """
    try:
        lines = (data_directory / "postmaster.pid").read_text().splitlines()
        segment = int(lines[6].split()[1])
    except (OSError, IndexError, ValueError):
        return
    ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # not Linux: the backends end by themselves when they miss their postmaster


def _watch(pid: int) -> int | None:
    """A descriptor that becomes readable when the process dies, where the system has such a thing.

    The pipe alone does not tell of the owner's death while a process that the owner forked, and that
    inherited the pipe, lives on.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _adopt_orphans() -> None:
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def _child_signals() -> Iterator[socket.socket]:
    """A socket that becomes readable when a child ends."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(-1)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def main(owner_pid: int, parent: str, mode: int) -> None:
    """Make the directory below `parent`, serve the owner, and leave nothing behind."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _adopt_orphans()
    directory = Path(tempfile.mkdtemp(prefix="pgtide-postgres-", dir=parent))
    guard = Guard(directory)
    try:
        directory.chmod(mode)
        # The owner may have died before we began to watch it.
        if os.getppid() == owner_pid:
            guard.serve(owner_pid)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        guard.end()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3], 8))
