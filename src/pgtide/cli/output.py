"""What commands say, for people or for programs.

Commands never print: they give an Output text lines for people and one document for programs. With `--json` standard
output has the document alone; errors are a document too, and the exit status is the same.

Exit status: 0 success; 1 an error; 2 wrong usage; 3 the command worked, but what it checked did not pass;
130 interrupted.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape

from pgtide.errors import PgtideError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_PASSED = 3
EXIT_INTERRUPTED = 130


class Output:
    """One command's output."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, soft_wrap=True)
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, line: str = "", *, style: str | None = None) -> None:
        """A line for people."""
        if not self.as_json:
            self.console.print(escape(line), style=style)

    def show(self, renderable: Any) -> None:
        """A table or the like, for people."""
        if not self.as_json:
            self.console.print(renderable)

    def document(self, document: Any) -> None:
        """The document for programs, on one line."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, default=str) + "\n")
            sys.stdout.flush()

    def error(self, error: PgtideError) -> None:
        """One clear message, what was found, what to do."""
        if self.as_json:
            fields = {"message": error.message, "detail": error.detail, "hint": error.hint}
            self.document({"error": {"type": type(error).__name__, **fields}})
            return
        self.errors.print(f"[bold red]Error:[/] {escape(error.message)}")
        if error.detail:
            self.errors.print(f"  {escape(error.detail)}")
        if error.hint:
            self.errors.print(f"[bold]Try:[/] {escape(error.hint)}")


def bytes_text(count: float) -> str:
    """A size for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number_text(count: float) -> str:
    return f"{count:,.0f}"
