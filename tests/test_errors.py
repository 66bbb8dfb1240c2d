"""The tree of errors: drawn once, true, and able to cross process borders."""

from __future__ import annotations

import ast
import importlib
import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import pgtide
from pgtide import errors, retry
from pgtide.errors import PgtideError


def error_classes() -> Iterator[type[PgtideError]]:
    """Every error of the package, wherever it is defined. Only the modules that define one are imported."""
    known = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, PgtideError)}
    root = Path(pgtide.__path__[0])
    for path in sorted(root.rglob("*.py")):
        module = ".".join(["pgtide", *path.relative_to(root).with_suffix("").parts])
        for node in ast.parse(path.read_text()).body:
            bases = {base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)}
            if isinstance(node, ast.ClassDef) and (bases & known or node.name == "PgtideError"):
                yield getattr(importlib.import_module(module), node.name)


ERRORS = list(error_classes())


def tree_in_docstring() -> dict[str, str | None]:
    """Each name in the drawing, and the name that it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        drawing = line.removeprefix("    ")
        name = drawing.lstrip("│├└─ ").split(" ", 1)[0]
        if not name.isidentifier() or not hasattr(errors, name) or not line.startswith("    "):
            continue
        depth = (len(drawing) - len(drawing.lstrip("│├└─ "))) // 4
        path = [*path[:depth], name]
        parents[name] = path[depth - 1] if depth else None
    return parents


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("detail", "hint"), [(None, None), ("found", None), (None, "do"), ("found", "do")])
def test_each_error_survives_pickling(kind, detail, hint):
    error = kind("a message", detail=detail, hint=hint)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.detail, again.hint, str(again)) == ("a message", detail, hint, str(error))


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    classes = {
        each.__name__: each.__mro__[1].__name__ if each is not PgtideError else None
        for each in ERRORS
        if each.__module__ == errors.__name__
    }
    assert tree_in_docstring() == classes


def test_errors_defined_elsewhere_hang_from_one_in_the_tree():
    for kind in ERRORS:
        assert kind.__mro__[1].__name__ in {*tree_in_docstring(), "Exception"}


def test_an_error_shows_message_detail_and_hint_in_this_order():
    error = PgtideError("it broke", detail="there", hint="mend it")
    assert str(error) == "it broke\ndetail: there\nhint: mend it"
    assert str(PgtideError("it broke")) == "it broke"
    assert str(PgtideError("it broke", hint="mend it")) == "it broke\nhint: mend it"


def test_only_what_passes_by_itself_is_tried_again():
    retried = {kind.__name__ for kind in ERRORS if retry.verdict(kind("x")) is retry.Verdict.RETRY}
    assert retried == {"SourceUnreachable", "JournalFull"}
    assert retry.verdict(ValueError()) is retry.Verdict.STOP


def test_waiting_times_double_up_to_a_limit():
    delays = retry.backoff(0.1, 5.0)
    seen = [next(delays) for _ in range(12)]
    assert 0.08 <= seen[0] <= 0.12
    assert all(0.8 * 5 <= each <= 1.2 * 5 for each in seen[7:])
    assert all(later > earlier for earlier, later in pairwise(seen[:6]))
