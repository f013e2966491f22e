"""docs/api.md has every public name of instrument, and names only what exists."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

pytest.importorskip("torch")

import instrument
from tests.captures import ROOT

SECTION = re.compile(r"^::: (instrument[\w.]*)\n    options:\n      members: \[([^]]+)\]", re.MULTILINE)
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
LISTED = {module: members.split(", ") for module, members in SECTION.findall(PAGE)}
OPTIONAL = {"instrument.hf", "instrument.lightning", "instrument.accelerate"}


def test_page_has_every_public_name() -> None:
    exported = {name: getattr(instrument, name) for name in instrument.__all__}
    on_page = [(module, name) for module, names in LISTED.items() for name in names if module not in OPTIONAL]
    documented = {name: getattr(import_module(module), name) for module, name in on_page}
    assert {name for name in exported if documented.get(name) is not exported[name]} == set()
    assert PAGE.count("::: instrument") == len(LISTED)


def test_every_listed_name_has_a_docstring() -> None:
    for module, names in LISTED.items():
        if module in OPTIONAL:
            continue
        for name in names:
            assert getattr(import_module(module), name).__doc__, f"{module}.{name}"


def test_list_in_the_docstring_is_complete() -> None:
    text = str(instrument.__doc__)
    assert [name for name in instrument.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("module", sorted(OPTIONAL))
def test_names_for_other_libraries_exist(module: str) -> None:
    try:
        made = import_module(module)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    assert [name for name in LISTED[module] if not hasattr(made, name)] == []
