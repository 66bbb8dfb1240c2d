"""`pgtide capture`."""

from __future__ import annotations

import signal
import time

from pgtide.capture.process import CaptureProcess
from pgtide.cli.options import ConfigOption, DsnOption, JsonOption
from pgtide.cli.output import Output, bytes_text, number_text
from pgtide.config import load_config
from pgtide.service.supervisor import require_runnable

_REPORT_SECONDS = 5.0


def command(config: ConfigOption = None, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Capture into the journal only, without snapshot or pipelines, until stopped.

    For machines where Spark runs elsewhere. Ctrl-C stops it cleanly. With --json, one document every few seconds.

    **Examples**

        pgtide capture -c pgtide.yaml
    """
    output = Output(as_json=as_json)
    settings = load_config(config, dsn=dsn)
    require_runnable(settings)
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    capture = CaptureProcess(settings)
    capture.start()
    try:
        capture.wait_until_streaming()
        output.say(f"capturing slot {settings.source.slot} into {settings.journal.path}; Ctrl-C stops")
        reported = 0.0
        while not stopping:
            progress = capture.poll()
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                output.say(
                    f"{progress.state}: {number_text(progress.changes)} frames, {bytes_text(progress.bytes)}, "
                    f"synced to {progress.restart_lsn}"
                )
                output.document({"state": progress.state, "frames": progress.changes, "lsn": progress.restart_lsn})
            time.sleep(0.1)
    finally:
        capture.stop()
    output.say("stopped")
