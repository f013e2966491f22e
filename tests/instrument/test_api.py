"""docs/api.md has every public name of instrument, and names only what exists."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest

import instrument
from tests.captures import ROOT

SECTION = re.compile(r"^::: (instrument[\w.]*)\n    options:\n      members: \[([^]]+)\]", re.MULTILINE)
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
LISTED = {module: members.split(", ") for module, members in SECTION.findall(PAGE)}
OPTIONAL = {"instrument.hf"}


def exported(name: str) -> Any:
    """Return what a name stands for, also where the command `instrument.train` has been imported."""
    return instrument.__getattr__(name) if name in instrument._MODULES else getattr(instrument, name)


def place(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def test_page_has_every_public_name() -> None:
    on_page = [(module, name) for module, names in LISTED.items() for name in names if module not in OPTIONAL]
    documented = {place(getattr(import_module(module), name)) for module, name in on_page}
    assert [name for name in instrument.__all__ if place(exported(name)) not in documented] == []
    assert PAGE.count("::: instrument") == len(LISTED)


def test_every_listed_name_has_a_docstring() -> None:
    for module, names in LISTED.items():
        if module in OPTIONAL:
            continue
        for name in names:
            assert getattr(import_module(module), name).__doc__, f"{module}.{name}"


@pytest.mark.parametrize("module", sorted(OPTIONAL))
def test_names_for_other_libraries_exist(module: str) -> None:
    try:
        made = import_module(module)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    assert [name for name in LISTED[module] if not hasattr(made, name)] == []
