"""Commands, options, settings and baselines of earlier versions: one line that names the new way, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import sample
from tests.cli.command import Command
from traceview import cli

COMMANDS, OPTIONS = cli.removed("commands"), cli.removed("options")


@pytest.mark.parametrize("name", COMMANDS)
def test_removed_command(traceview: Command, name: str) -> None:
    code, out, err = traceview(name, "report.sqlite", "--json", "-")
    assert name not in cli.COMMANDS
    assert (code, out, err) == (2, "", f"traceview: error: `traceview {name}` is gone: {COMMANDS[name]}\n")


@pytest.mark.parametrize("option", OPTIONS)
def test_removed_option(traceview: Command, option: str) -> None:
    code, out, err = traceview(*option.split())
    assert (code, out, err) == (2, "", f"traceview: error: `traceview {option}` is gone: {OPTIONS[option]}\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [("traceview.toml", "skip = 3\n"), ("pyproject.toml", "[project]\n\n[tool.traceview.budgets]\nanalyze = []\n")],
)
def test_settings_file(
    traceview: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path / "inner")
    code, out, err = traceview("info", sample("dual.sqlite"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"traceview: error: ../{name}: holds settings of an earlier version") and "--fail-if" in err


def test_projects_of_other_tools(traceview: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ruff]\n# [tool.traceview]\n[tool.traceviewer]\nname = "x"\n')
    monkeypatch.chdir(tmp_path)
    assert traceview("info", sample("dual.sqlite")).code == 0


@pytest.mark.parametrize("command", ["analyze", "compare"])
def test_named_baseline(traceview: Command, command: str) -> None:
    code, out, err = traceview(command, "baseline:main")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "baseline:main: names a baseline of an earlier version" in err and "analyze --json" in err
