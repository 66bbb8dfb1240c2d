"""A network between us and Postgres that can be cut at a chosen word."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections to a port of this machine.

    `cut_at` is a word from the client at which its connection is cut, `cut_after_bytes` a number of bytes from the
    server; each takes effect `times` times. `reset` cuts with a reset instead of an orderly end.
    """

    def __init__(
        self, port: int, *, cut_at: bytes = b"", cut_after_bytes: int = 0, times: int = 1, reset: bool = False
    ) -> None:
        self._target = port
        self._cut_at = cut_at
        self._cut_after_bytes = cut_after_bytes
        self._reset = reset
        self._left = times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
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
        if not self._left:
            return False
        if from_client:
            return bool(self._cut_at) and self._cut_at in data
        return bool(self._cut_after_bytes) and passed > self._cut_after_bytes

    def _cut(self, *ends: socket.socket) -> None:
        self._left -= 1
        self.cuts += 1
        for end in ends:
            if self._reset:
                # A linger of zero seconds: closing sends a reset.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
