"""Plain technical English in docstrings, comments, messages and documentation (CONTRIBUTING.md "Language")."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.captures import ROOT

SOURCES = sorted(path for package in ("traceview", "instrument") for path in (ROOT / package).rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# Habits that make a reader stop: an inverted genitive at the start, "is no X", passive riddles, pronouns for things.
HABITS = (
    re.compile(r"^Of (?:the|a|an|so|what|which|all|each|every)\b"),
    re.compile(r"\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|later\b|earlier\b|wider\b|larger\b)[a-z]+"),
    re.compile(r"\b(?:is|are|was|were|be) (?:said|told|asked)\b"),
    re.compile(r"\bnobody(?:'s)?\b|\bwho(?:ever|m)? (?:asks|wants)\b"),
    re.compile(r"\bwhat (?:stands|is) (?:twice|there)\b|\bso many times\b"),
    re.compile(r"\b(?:held against|puts? into words|has it so)\b"),
    # A capture, a name or a row states, contains or shows something; it does not tell.
    re.compile(r"\b(?:[Tt]ells?|told)\b(?! (?:[a-z ]+ )?(?:apart|from)\b)"),
    re.compile(r"\b(?:itself included|of equals|of equal (?:keys|ones))\b"),
)
# A comment begins with its subject: "share of the GPU work", not "of the GPU work".
COMMENT_HABIT = re.compile(r"^of ")
NAMES = {"of", "one", "found", "told"}
HELPERS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "test_language.py"]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
# A test's name states a subject and its behaviour. It has no article, no question word and no "said".
TEST_NAME = re.compile(r"test_(?!(?:a|an|the|what|who|nobody|it)_)(?!.*_(?:said|told|asked_for)(?:_|$))[a-z0-9_]+")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, comment and string with several words."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 3:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def comments_after_code(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each comment that follows code on its line."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
            yield token.start[0], token.string.lstrip("# ")


def habits(text: str) -> list[str]:
    return [
        match[0]
        for sentence in re.split(r"(?<=[.;:])\s+", text.strip())
        for habit in HABITS
        for match in habit.finditer(sentence)
    ]


@pytest.mark.parametrize("path", [*SOURCES, *HELPERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_are_written_plainly(path: Path) -> None:
    assert [(line, found) for line, text in prose(path) for found in habits(text)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_comments_begin_with_their_subject(path: Path) -> None:
    assert [(line, text) for line, text in comments_after_code(path) if COMMENT_HABIT.match(text)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_written_plainly(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`|^    .*$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert habits(text) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_what_they_hold(path: Path) -> None:
    tree = parsed(path)
    parameters = {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arguments)
        for argument in (*node.posonlyargs, *node.args, *node.kwonlyargs)
    }
    locals_ = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert sorted(NAMES & (parameters | locals_)) == []


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_names_of_tests_are_plain(path: Path) -> None:
    names = [node.name for node in ast.walk(parsed(path)) if isinstance(node, FUNCTIONS)]
    assert [name for name in names if name.startswith("test_") and not TEST_NAME.fullmatch(name)] == []


def test_every_class_name_is_unique() -> None:
    names = [node.name for path in SOURCES for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)]
    assert sorted({name for name in names if names.count(name) > 1}) == []
