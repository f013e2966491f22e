"""Plain technical English in docstrings, comments, messages and documentation (CONTRIBUTING.md "Language")."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.captures import ROOT

SOURCES = sorted(path for package in ("traceview", "instrument") for path in (ROOT / package).rglob("*.py"))
COPIED = "changelog.md"  # by `make docs`
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FOLDERS = (ROOT / "docs", ROOT / "docs" / "symptoms")
PAGES += [page for folder in FOLDERS for page in sorted(folder.glob("*.md")) if page.name != COPIED]

# Habits that make a reader stop: an inverted genitive at the start, "is no X", passive riddles, pronouns for things.
HABITS = (
    re.compile(r"^Of (?:the|a|an|so|what|which|all|each|every)\b"),
    re.compile(
        r"(?<![Tt]here )\b(?:is|are|was|were) no "
        r"(?!longer\b|more\b|less\b|fewer\b|later\b|earlier\b|wider\b|larger\b)[a-z]+"
    ),
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


@cache
def comments(path: Path) -> list[tuple[int, str, bool]]:
    """Return the line and text of each comment, and whether it follows code on its line."""
    return [
        (token.start[0], token.string.lstrip("# "), bool(token.line[: token.start[1]].strip()))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        if token.type == tokenize.COMMENT
    ]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, comment and string with several words."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 3:
            yield node.lineno, node.value
    yield from ((line, text) for line, text, _ in comments(path))


def habits(text: str) -> list[str]:
    return [
        match[0]
        for sentence in re.split(r"(?<=[.;:])\s+", text.strip())
        for habit in HABITS
        for match in habit.finditer(sentence)
    ]


def listed(path: Path, *words: object) -> str:
    return f"{path.relative_to(ROOT)}: {' '.join(map(str, words))}"


# Each test lists what is wrong in all files: a test for each file would take longer to start than to run.
def test_sources_are_written_plainly() -> None:
    paths = [*SOURCES, *HELPERS]
    wrong = [listed(path, line, habit) for path in paths for line, text in prose(path) for habit in habits(text)]
    assert not wrong, "\n".join(wrong)


def test_comments_begin_with_their_subject() -> None:
    after_code = [(path, line, text) for path in SOURCES for line, text, follows in comments(path) if follows]
    wrong = [listed(*comment) for comment in after_code if COMMENT_HABIT.match(comment[-1])]
    assert len(after_code) > 500
    assert not wrong, "\n".join(wrong)


def test_pages_are_written_plainly() -> None:
    code = re.compile(r"```.*?```|`[^`]*`|^    .*$", flags=re.DOTALL | re.MULTILINE)
    texts = {path: code.sub("", path.read_text(encoding="utf-8")) for path in PAGES}
    wrong = [listed(path, habit) for path, text in texts.items() for habit in habits(text)]
    assert not wrong, "\n".join(wrong)


def test_names_say_what_they_hold() -> None:
    wrong = [listed(path, name) for path in SOURCES for name in sorted(NAMES & names_in(parsed(path)))]
    assert not wrong, "\n".join(wrong)


def names_in(tree: ast.Module) -> set[str]:
    """Return the names of all parameters and of everything that is assigned."""
    parameters = {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arguments)
        for argument in (*node.posonlyargs, *node.args, *node.kwonlyargs)
    }
    return parameters | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def test_names_of_tests_are_plain() -> None:
    functions = [
        (path, node.name)
        for path in TESTS
        for node in ast.walk(parsed(path))
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_")
    ]
    wrong = [listed(*function) for function in functions if not TEST_NAME.fullmatch(function[1])]
    assert len(functions) > 1000
    assert not wrong, "\n".join([f"a test's name matches {TEST_NAME.pattern}", *wrong])


def test_habits_are_recognised() -> None:
    """Each habit has a text that shows it, so that a change to the patterns cannot switch one off."""
    texts = [
        *("Of the gaps, two.", "it is no file", "what is asked for", "nobody knows", "so many times"),
        *("held against it", "It tells more.", "of equal keys"),
    ]
    assert [text for text in texts if not habits(text)] == []


def test_every_class_name_is_unique() -> None:
    classes = [node.name for path in SOURCES for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)]
    names = [name for name in classes if not name.startswith("_")]  # a private one is used in its module alone
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"two public classes have one of these names, so rename one of them: {twice}"
