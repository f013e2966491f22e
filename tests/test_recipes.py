"""docs/recipes.md names commands, options, files, rules and JSON paths that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any, NamedTuple

import click
import pytest

from tests.captures import ROOT, analyzed, sample
from tests.schemas import SCHEMAS
from traceview.captures.export.tables import FILES
from traceview.cli import COMMANDS, cli

PAGE = (ROOT / "docs" / "page.md").read_text(encoding="utf-8")
RULES = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "traceview" / "rules").rglob("*.py"))
CODE, ITALICS = re.compile(r"`([^`]+)`"), re.compile(r"(?<!\*)\*([^*]+)\*(?!\*)")


class Row(NamedTuple):
    """A row of a table: the names of recipes, the command or "", and where its answer stands."""

    recipes: str
    command: str
    answer: str


def rows() -> list[Row]:
    lines = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [Row(*row) for row in cells if row[1] != "command" and not row[0].startswith("---")]


def has_path(schema: Any, path: list[str], definitions: Any) -> bool:
    """Return whether documents of a schema can have a path: keys, and [] for the items of a list."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if not path:
        return True
    inside = [schema["items"]] if path[0] == "[]" and "items" in schema else []
    inside += [schema["properties"][path[0]]] if path[0] in schema.get("properties", {}) else []
    return any(has_path(each, path[1:], definitions) for each in inside) or any(
        has_path(each, path, definitions) for each in schema.get("anyOf", ())
    )


def command_called(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, name
    return found


def is_in_a_document(text: str, command: str) -> bool:
    path = re.findall(r"\w+|\[\]", text)
    schemas = [SCHEMAS[name]() for name in (command, "analyze") if name in SCHEMAS]
    return any(has_path(schema, path, schema.get("$defs")) for schema in schemas)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.recipes[:40])
def test_answers_exist(row: Row) -> None:
    assert row.recipes and (row.command == "") == row.answer.startswith("**No**")
    words = shlex.split(CODE.fullmatch(row.command)[1])[1:] if row.command else [""]  # type: ignore[index]
    if row.command:
        command_called(words[0]).make_context(
            words[0], [str(sample("dual.sqlite")) if word == "R" else word for word in words[1:]]
        )
    for text in CODE.findall(row.answer):
        path, _, finding = text.partition("=")
        if text.endswith(".parquet"):
            assert text in FILES and "parquet" in words
        elif table := re.fullmatch(r'analysis\.table\("(\w+)"\)', text):
            assert len(analyzed(sample("dual.sqlite")).table(table[1])) > 0
        elif text.startswith("--"):
            assert any(text in option.opts for option in command_called("analyze").params)
        elif text.removeprefix("traceview ") not in {*COMMANDS, *names(rows())}:
            assert is_in_a_document(path, words[0]), path
            assert not finding or f'"{finding}"' in RULES, finding
    assert [title for title in ITALICS.findall(row.answer) if title not in PAGE] == []


def names(table: list[Row]) -> set[str]:
    """Return the recipes that a table names."""
    return {name for row in table for name in CODE.findall(row.recipes)}


def test_every_recipe_of_nsys_is_listed(nsys: str) -> None:
    text = subprocess.run([nsys, "recipe", "--help"], capture_output=True, text=True, check=True).stdout
    recipes = set(re.findall(r"^  (\w+) -- ", text, re.MULTILINE))
    assert len(recipes) > 20 and recipes - names(rows()) == set()
