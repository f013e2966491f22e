"""The scorer of blind rounds knows every finding, and its labels use its classes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ROOT

VERDICTS = ROOT / "benchmarks" / "verdicts"

if sys.version_info < (3, 11):
    pytest.skip("the scorer needs Python 3.11", allow_module_level=True)
import tomllib  # noqa: E402


def classes() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    found: dict[str, Any] = runpy.run_path(str(VERDICTS / "score_round"), run_name="scorer")
    known: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = found["CLASSES"]
    return known


def test_every_finding_has_classes() -> None:
    texts = {path.stem for path in (ROOT / "traceview" / "rules" / "texts").glob("*.toml")} - {"shared"}
    assert set(classes()) == texts


@pytest.mark.parametrize("path", sorted((VERDICTS / "rounds").glob("round*.toml")), ids=lambda path: path.stem)
def test_labels_use_known_classes(path: Path) -> None:
    words = (VERDICTS / "rounds" / "README.md").read_text().partition("\nCauses:")[2]
    labels = tomllib.loads(path.read_text())["capture"]
    assert len(labels) >= 20 and len({label["repository"] for label in labels}) >= 15
    for label in labels:
        assert all(f"`{name}`" in words for name in (*label["causes"], *label["remedies"])), label["name"]
        assert len(label["sha256"]) == 64 and len(label["commit"]) == 40
