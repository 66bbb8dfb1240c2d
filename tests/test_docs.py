"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from pgtide.cli import app
from pgtide.cli.reference import cli_reference, config_reference
from pgtide.journal import format as journal_format

ROOT = Path(__file__).parent.parent


def commands() -> list[tuple[str, Any]]:
    root: Any = typer.main.get_command(app)
    found: list[tuple[str, Any]] = []
    for name, command in root.commands.items():
        nested = getattr(command, "commands", None)
        found += [(f"{name} {each}", nested[each]) for each in nested] if nested else [(name, command)]
    return found


def test_the_command_reference_is_what_the_commands_say() -> None:
    assert (ROOT / "docs/cli.md").read_text() == cli_reference(), "run: python -m pgtide.cli.reference"


def test_the_configuration_reference_is_what_the_model_says() -> None:
    assert (ROOT / "docs/config.md").read_text() == config_reference(), "run: python -m pgtide.cli.reference"


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_has_json_and_help_with_examples(name: str, command: Any) -> None:
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    assert "**Examples**" in command.help
    assert f"pgtide {name}" in command.help
    assert all(parameter.help for parameter in command.params)


@pytest.mark.parametrize(
    ("heading", "size"),
    [
        ("Segment header", journal_format.SEGMENT_HEADER_SIZE),
        ("Block header", journal_format.BLOCK_HEADER_SIZE),
        ("Head", journal_format.HEAD_SIZE),
    ],
)
def test_the_journal_format_page_has_the_sizes_of_the_code(heading: str, size: int) -> None:
    page = (ROOT / "docs/journal-format.md").read_text()
    section = page.split(f"## {heading}, {size} bytes", 1)[1].split("\n## ", 1)[0]
    rows = [tuple(map(int, row)) for row in re.findall(r"^\| (\d+) \| (\d+) \|", section, re.MULTILINE)]
    ends = [offset + length for offset, length in rows]
    assert [offset for offset, _ in rows] == [0, *ends[:-1]]
    assert ends[-1] == size


def test_the_readme_names_only_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"bin/pgtide (\w+)", readme))
    assert named
    assert named <= {name.split()[0] for name, _ in commands()}


def test_every_relative_link_of_the_documents_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
