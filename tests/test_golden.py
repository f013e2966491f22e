"""Tests of the five strategies' figures against golden files.

`python -m tests.oracle` writes tests/golden/NAME.json; traceview does not. An intended change of a figure changes this
file too. A failed test saves the actual figures as NAME.actual.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.captures import analyzed, sample
from traceview.report.analysis import document

GOLDEN = Path(__file__).resolve().parent / "golden"
NAMES = ["h200_serial", "h200_dual", "h200_quad", "h200_ddp2", "h200_cudagraph"]


def as_in(golden: Any, found: Any) -> Any:
    """Return the part of `found` that the golden file has, with its order of keys."""
    if isinstance(golden, dict) and isinstance(found, dict):
        return {key: as_in(value, found[key]) for key, value in golden.items() if key in found}
    if isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        return [as_in(one, other) for one, other in zip(golden, found, strict=True)]
    return found


def text(figures: Any) -> str:
    return json.dumps(figures, indent=1, ensure_ascii=False) + "\n"


def check(name: str, capture: Path, golden_folder: Path = GOLDEN) -> None:
    expected_file = golden_folder / f"{name}.json"
    actual_file = golden_folder / f"{name}.actual.json"
    expected = expected_file.read_text(encoding="utf-8")
    actual = text(as_in(json.loads(expected), document(analyzed(capture))))
    if actual != expected:
        actual_file.write_text(actual, encoding="utf-8")
        pytest.fail(f"{capture.name} differs: compare {expected_file} with {actual_file}")
    actual_file.unlink(missing_ok=True)


@pytest.mark.parametrize("name", NAMES)
def test_samples_have_golden_figures(name: str) -> None:
    check(name, sample(f"{name.removeprefix('h200_')}.sqlite"))


def test_changed_figure_fails_and_is_saved(tmp_path: Path) -> None:
    golden = json.loads((GOLDEN / "h200_cudagraph.json").read_text(encoding="utf-8"))
    right = golden["devices"][0]["busy_ns"]
    golden["devices"][0]["busy_ns"] = right + 1
    (tmp_path / "h200_cudagraph.json").write_text(text(golden), encoding="utf-8")
    with pytest.raises(pytest.fail.Exception, match="differs"):
        check("h200_cudagraph", sample("cudagraph.sqlite"), tmp_path)
    saved = json.loads((tmp_path / "h200_cudagraph.actual.json").read_text(encoding="utf-8"))
    assert saved["devices"][0]["busy_ns"] == right
