"""docs/cli.md and docs/config.md, from the commands and the configuration model themselves.

`python -m pgtide.cli.reference` writes them; a test compares them with what this module gives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from pgtide.cli import app
from pgtide.config import DeltaSink, Journal, Pipeline, Source

_CLI_HEAD = """# Commands

Generated from the commands themselves. Every command has `--help`, and `--json` for programs: standard output then has
JSON alone, one document (a line each where the command goes on), and errors are
`{"error": {"type", "message", "detail", "hint"}}`.

Exit status: 0 success; 1 an error; 2 wrong usage; 3 the command worked, but what it checked did not pass; 130
interrupted.
"""

_CONFIG_HEAD = """# Configuration

Generated from the configuration model. The file is `pgtide.yaml`, or what `-c` names. Options win over the environment,
the environment over the file. An unknown key is an error.

Environment: `PGTIDE_SOURCE_DSN` is `source.dsn`; without it and without `source.dsn`, `POSTGRES_HOST`, `POSTGRES_PORT`,
`POSTGRES_DB`, `POSTGRES_USER` and `POSTGRES_PASSWORD` make one. libpq's own variables (`PGPASSWORD`, `PGSERVICE`,
`PGSSLMODE`, …) work too.

Durations are written `500ms`, `10s`, `30m`, `24h` or `7d`.
"""

_SECTIONS: list[tuple[str, type[Any]]] = [
    ("source", Source),
    ("journal", Journal),
    ("pipelines[]", Pipeline),
    ("pipelines[].sink", DeltaSink),
]


def cli_reference() -> str:
    """The text of docs/cli.md."""
    root: Any = typer.main.get_command(app)
    return "\n".join([_CLI_HEAD, *_commands(root, "pgtide")])


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
            continue
        yield f"## {path} {name}\n"
        yield f"{_dedented(command.help)}\n"
        yield "| option | what |\n|---|---|"
        for option in command.params:
            yield f"| `{', '.join(option.opts)}` | {option.help}{_default(option)} |"
        yield ""


def _default(option: Any) -> str:
    shown = option.default not in (None, False, ()) and "[default" not in (option.help or "")
    return f" [default: {option.default}]" if shown else ""


def _dedented(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def config_reference() -> str:
    """The text of docs/config.md."""
    return "\n".join([_CONFIG_HEAD, *(_section(name, model) for name, model in _SECTIONS)])


def _section(name: str, model: type[Any]) -> str:
    lines = [f"## {name}\n", f"{model.__doc__}\n", "| key | default | what |", "|---|---|---|"]
    for key, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{_plain(field.get_default(call_default_factory=True))}`"
        lines.append(f"| `{key}` | {default} | {field.description or ''} |")
    return "\n".join([*lines, ""])


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return "" if value is None else str(value)


def main() -> None:
    docs = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    (docs / "cli.md").write_text(cli_reference(), encoding="utf-8")
    (docs / "config.md").write_text(config_reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
