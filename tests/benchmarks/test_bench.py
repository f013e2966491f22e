"""benchmarks/verdicts/bench: captures by address and hash, answers of any command, and the page of the scores."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.captures import ROOT, sample

pytest.importorskip("tomllib")
PROGRAM = ROOT / "benchmarks" / "verdicts" / "bench"
TOOL = """
import json, sys
if sys.argv[1].endswith(".json"):
    sys.exit(3)
print(json.dumps({"first": "copies", "causes": ["pageable"]}))
"""


@pytest.fixture
def bench(tmp_path: Path) -> ModuleType:
    """Return the program as a module, with results in a temporary folder and three captures."""
    loader = importlib.machinery.SourceFileLoader("bench", str(PROGRAM))
    spec = importlib.util.spec_from_loader("bench", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    files = {"a.sqlite": b"one", "b.sqlite": b"two", "c.json": b"three"}
    for name, data in files.items():
        (tmp_path / "public" / "owner" / "name" / "1234").mkdir(parents=True, exist_ok=True)
        (tmp_path / "public" / "owner" / "name" / "1234" / name).write_bytes(data)
    labels: list[dict[str, Any]] = [
        {
            "name": name,
            "file": name,
            "path": name,
            "repository": "owner/name",
            "commit": "1234",
            "round": 1,
            "sha256": hashlib.sha256(data if name != "b.sqlite" else b"other").hexdigest(),
            "causes": ["pageable", "exposed_copies"],
            "why": "1 ms of 2 ms",
        }
        for name, data in files.items()
    ]
    vars(module).update(labels=lambda: labels, RESULTS=tmp_path / "results")
    return module


def act(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *map(str, words)])
    bench.main()


def test_captures_are_fetched_and_tools_scored(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"file://{tmp_path}/public/{{repository}}/{{commit}}/{{path}}"
    act(bench, monkeypatch, "fetch", tmp_path, "--address", address)
    assert (
        capsys.readouterr().out.startswith("b.sqlite: file://") and not (tmp_path / "round1/captures/b.sqlite").exists()
    )
    command = shlex.join([sys.executable, "-c", TOOL])
    act(bench, monkeypatch, "run", tmp_path, f"mine={command} {{capture}}", "broken=false {capture}")
    answers = json.loads((tmp_path / "results" / "mine.json").read_text())
    assert [answer["read"] for answer in answers.values()] == [True, False] and "b.sqlite" not in answers
    act(bench, monkeypatch, "page")
    page = capsys.readouterr().out
    assert "3 public captures of 1 repositories" in page and "the 2 captures of rounds (1) that" in page
    assert "| mine | 1 | 0 | 1 | 100% | 50% | 1 | 50% |" in page and "| broken | 2 | 2 | 0 | 0% | 0% | 0 | 0% |" in page


def test_labels_are_complete(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = runpy.run_path(str(PROGRAM))["labels"]()
    assert len(labels) > 300 and [label["name"] for label in labels if bench.problem(label)] == []
    first, second, third = bench.labels()
    first.update(why="copies take long"), second.update(causes=["slowness"]), third.pop("sha256")
    act(bench, monkeypatch, "fetch", tmp_path, "--only", "a.sqlite", "--only", "b.sqlite")
    wrong, unknown = capsys.readouterr().out.splitlines()
    assert (
        wrong == "a.sqlite: `why` has no figure" and "b.sqlite: slowness is not a cause; choose from after_" in unknown
    )
    act(bench, monkeypatch, "fetch", tmp_path, "--only", "c.json")
    assert capsys.readouterr().out == "c.json: lacks sha256\n"


def test_page_is_that_of_the_kept_answers() -> None:
    written = subprocess.run([sys.executable, str(PROGRAM), "page"], capture_output=True, text=True, check=True).stdout
    assert written == (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in written for name in ("traceview", "nsys", "nsys-ai", "hta", "tracelens"))


def test_answer_of_traceview() -> None:
    command = [sys.executable, str(PROGRAM.parent / "answers" / "traceview"), str(sample("serial.sqlite"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "pageable" in json.loads(done.stdout)["causes"]
