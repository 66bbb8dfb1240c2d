"""A network between us and Postgres that can be cut at a chosen word.

It runs in a process of its own: libpq holds Python's lock while it connects, and no thread beside it would get on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
from types import TracebackType
from typing import Any, Self

_LINGER_NOT = b"\1\0\0\0\0\0\0\0"  # on, for zero seconds: closing sends a reset


class Proxy:
    """Forwards connections to a port of this machine.

    `cut_at` is a word from the client at which its connection is cut, `cut_after_bytes` a number of bytes from the
    server; this happens `times` times. `reset` cuts with a reset instead of an orderly end.
    """

    def __init__(
        self, port: int, *, cut_at: bytes = b"", cut_after_bytes: int = 0, times: int = 1, reset: bool = False
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        self._cuts = context.Value("i", 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        network = _Network(self._listener, port, cut_at, cut_after_bytes, times, reset, self._cuts)
        self._process = context.Process(target=network.serve, daemon=True)

    @property
    def cuts(self) -> int:
        return int(self._cuts.value)

    def __enter__(self) -> Self:
        self._process.start()
        self._listener.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()


class _Network:
    def __init__(
        self,
        listener: socket.socket,
        target: int,
        cut_at: bytes,
        cut_after_bytes: int,
        times: int,
        reset: bool,
        cuts: Any,
    ) -> None:
        self._listener = listener
        self._target = target
        self._cut_at = cut_at
        self._cut_after_bytes = cut_after_bytes
        self._times = times
        self._reset = reset
        self._cuts = cuts

    def serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, target, from_client in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=(source, target, from_client), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                passed += len(data)
                if self._due(data, passed, from_client):
                    self._cut(source, target)
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _due(self, data: bytes, passed: int, from_client: bool) -> bool:
        if self._cuts.value >= self._times:
            return False
        if from_client:
            return bool(self._cut_at) and self._cut_at in data
        return bool(self._cut_after_bytes) and passed > self._cut_after_bytes

    def _cut(self, *ends: socket.socket) -> None:
        self._cuts.value += 1
        for end in ends:
            if self._reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            else:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            end.close()
