"""Test that every promise of docs/trust.md names an existing test."""

from __future__ import annotations

import ast
import re

from tests.captures import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (?!\*\*|---|promise|run|\[)(.+?) \| (.+) \|$", re.MULTILINE)


def test_promises_name_existing_tests() -> None:
    table = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8").partition("## ")[0]
    rows = ROW.findall(table)
    assert len(rows) > 20
    for promise, tests in rows:
        named = NAMED.findall(tests)
        assert len(named) == tests.count("::") > 0, f"{promise!r} names no test"
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{file}::{name}"
