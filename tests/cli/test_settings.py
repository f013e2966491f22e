"""Settings of a project: which file counts, what it sets, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import sample
from tests.cli.command import Command
from traceview.cli.settings import default_map
from traceview.errors import RequestError


def test_nearest_file_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert default_map(inner) == {}
    (tmp_path / "pyproject.toml").write_text("[tool.traceview]\nskip = 3\n")
    assert default_map(inner)["fleet"]["skip"] == 3
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\nskip = 4\n")
    assert default_map(inner)["fleet"]["skip"] == 3, "a file without our table does not count"
    (tmp_path / "a" / "traceview.toml").write_text("iteration = 'step'\nredaction = 'hash'\n")
    found = default_map(inner)
    assert found["whatif"] == {"iteration": "step"} and found["redact"] == {"names": "hash"}
    assert found["compare"] == {"names": "hash", "iteration": "step", "conditions": ()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("skipp = 3", "unknown key 'skipp'; did you mean skip?"),
        ("xyz = 3", "unknown key 'xyz'; use iteration, skip, budgets, redaction"),
        ("[budgets]\nanalyse = []", "unknown key 'budgets.analyse'; did you mean budgets.analyze?"),
        ("skip = true", "skip must be"),
        ("iteration = 3", "iteration must be"),
        ("redaction = 'all'", "redaction must be"),
        ("budgets = 3", "budgets must be"),
        ("[budgets]\nfleet = 'straggler > 5%'", "budgets.fleet must be"),
        ("skip = ", "invalid TOML"),
        ("iteration = '(?=a)'", "iteration '(?=a)' is not a regular expression that can be searched (look-around"),
        (f"iteration = '{'a' * 2_000}'", "iteration has 2000 characters"),
        (f"{'a' * 1_000_000} = 3", "more than 64 KB"),
        (f"{'a' * 60_000} = 3", "unknown key 'aaaa"),
    ],
)
def test_errors_take_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "traceview.toml").write_text(text)
    with pytest.raises(RequestError) as raised:
        default_map(tmp_path)
    line = str(raised.value)
    assert line.startswith("traceview.toml: ") and words in line and "\n" not in line


def test_large_projects(tmp_path: Path) -> None:
    """A large `pyproject.toml` is refused only where it has settings."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.other]\na = '{'a' * 100_000}'\n")
    assert default_map(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text(f"[tool.traceview]\nskip = 1\n[a]\na = '{'a' * 100_000}'\n")
    with pytest.raises(RequestError, match=r"pyproject\.toml: more than 64 KB"):
        default_map(tmp_path)
    for text in ("tool = 3 # tool.traceview", "[tool]\ntraceview = 3 # tool.traceview"):
        (tmp_path / "pyproject.toml").write_text(text)
        assert default_map(tmp_path) == {}


def test_output_names_the_file_and_its_defaults(
    tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of a parent folder changed figures without a word."""
    (tmp_path / "work").mkdir()
    (tmp_path / "traceview.toml").write_text("skip = 2\niteration = 'iteration'\nredaction = 'hash'\n")
    monkeypatch.chdir(tmp_path / "work")
    capture, out = sample("cudagraph.sqlite"), tmp_path / "out.sqlite"
    skip = "traceview: defaults from ../traceview.toml: iteration = 'iteration', skip = 2"
    assert traceview("analyze", capture, "--no-html").err.startswith(f"{skip}\n")
    assert traceview("analyze", capture, "--no-html", "--quiet").err.count("defaults from") == 0
    assert traceview("whatif", capture).err.startswith(f"{skip}\n")
    assert traceview("redact", capture, out).err == "traceview: defaults from ../traceview.toml: redaction = 'hash'\n"
    assert traceview("info", capture).err == traceview("compare", "--baselines", "--quiet").err == ""


def test_budgets_and_flags(tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.traceview.budgets]\nanalyze = ['idle > 2%']\n")
    words = ("analyze", sample("cudagraph.sqlite"), "--no-html", "--quiet")
    code, _, error = traceview(*words)
    assert code == 1 and error.startswith("traceview: --fail-if idle > 2%: ")
    assert traceview(*words, "--fail-if", "idle > 99%").code == 0
    (tmp_path / "pyproject.toml").write_text("[tool.traceview.budgets]\nanalyze = ['idel > 2%']\n")
    code, _, error = traceview(*words)
    assert code == 2 and "idle" in error and error.count("\n") == 1
