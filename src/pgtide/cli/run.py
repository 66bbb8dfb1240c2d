"""`pgtide run`."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from pgtide.cli.options import ConfigOption, DsnOption, JsonOption
from pgtide.cli.output import EXIT_INTERRUPTED, Output
from pgtide.cli.progress import make_display
from pgtide.config import load_config
from pgtide.errors import ConfigError
from pgtide.service.supervisor import Supervisor

# One Ctrl-C may arrive twice, from the terminal and from a parent process that passes it on.
_SECOND_SIGNAL_SECONDS = 1.0


def command(config: ConfigOption = None, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Capture, copy and apply, until stopped.

    Tables that have not been copied yet are copied first, while changes are already streamed. Ctrl-C stops cleanly; the
    same command continues, also after a crash. With --json, one document a second.

    **Examples**

        pgtide run -c pgtide.yaml

        PGTIDE_SOURCE_DSN=postgresql://… pgtide run --json
    """
    output = Output(as_json=as_json)
    settings = load_config(config, dsn=dsn)
    if not settings.pipelines:
        raise ConfigError(
            "the configuration has no pipelines",
            hint="add one, for example: pipelines: [{name: lake, sink: {type: delta, path: ./lake}}]; "
            "or use `pgtide capture` to fill the journal only",
        )
    with make_display(output) as display:
        supervisor = Supervisor(settings, display.update)
        _stop_on_signals(supervisor)
        supervisor.run()
    output.say("stopped; the same command continues from here")


def _stop_on_signals(supervisor: Supervisor) -> None:
    """The first Ctrl-C asks for a clean end, the second ends at once: everything durable is safe either way."""

    asked_at: float | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked_at
        if asked_at is None:
            asked_at = time.monotonic()
            supervisor.stop()
        elif time.monotonic() - asked_at > _SECOND_SIGNAL_SECONDS:
            os._exit(EXIT_INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
