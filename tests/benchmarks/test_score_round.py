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


ROUNDS = sorted((VERDICTS / "rounds").glob("round*.toml"))
PARTS = sorted((VERDICTS / "rounds").glob("part*.toml"))  # of fewer repositories than a round


def labels_of(path: Path) -> list[dict[str, Any]]:
    labels: list[dict[str, Any]] = tomllib.loads(path.read_text())["capture"]
    return labels


@pytest.mark.parametrize("path", ROUNDS, ids=lambda path: path.stem)
def test_round_has_captures_of_many_repositories(path: Path) -> None:
    labels = labels_of(path)
    assert len(labels) >= 20 and len({label["repository"] for label in labels}) >= 15


@pytest.mark.parametrize("path", [*ROUNDS, *PARTS], ids=lambda path: path.stem)
def test_labels_use_known_classes(path: Path) -> None:
    words = (VERDICTS / "rounds" / "README.md").read_text().partition("\nCauses:")[2]
    for label in labels_of(path):
        assert all(f"`{name}`" in words for name in (*label["causes"], *label["remedies"])), label["name"]
        assert len(label["sha256"]) == 64 and len(label["commit"]) == 40
