"""`pgtide version`."""

from __future__ import annotations

import platform
from importlib.metadata import version

from pgtide import __version__
from pgtide.cli.options import JsonOption
from pgtide.cli.output import Output


def command(as_json: JsonOption = False) -> None:
    """Show the versions of pgtide and of what it stands on.

    **Examples**

        pgtide version

        pgtide version --json
    """
    output = Output(as_json=as_json)
    packages = ("pyspark", "psycopg", "pyarrow", "deltalake")
    versions = {
        "pgtide": __version__,
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }
    for name, number in versions.items():
        output.say(f"{name} {number}")
    output.document(versions)
