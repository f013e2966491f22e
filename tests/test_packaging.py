"""The distribution and its release: versions agree, and the workflow's own shell steps do what they state."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ROOT
from traceview import __version__

yaml = pytest.importorskip("yaml")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
RELEASE: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step["run"] for job in RELEASE["jobs"].values() for step in job["steps"] if "name" in step}


def test_versions_agree() -> None:
    assert re.findall(r'^version = "(.*)"$', PROJECT, re.MULTILINE) == [__version__]
    supported = re.findall(r"Python :: (3\.\d+)\"", PROJECT)
    assert RELEASE["jobs"]["try"]["strategy"]["matrix"]["python"] == supported
    assert re.findall(r'^requires-python = ">=(.*)"$', PROJECT, re.MULTILINE) == supported[:1]


@pytest.mark.parametrize(
    ("tag", "changes", "reason"),
    [
        (f"v{__version__}", f"## {__version__} (2026-12-01)\n", ""),
        ("v9.9.9", f"## {__version__}\n", "the tag is v9.9.9"),
        (f"v{__version__}", "## Unreleased\n", "CHANGELOG.md has no section"),
    ],
)
def test_tag_must_be_the_version(tmp_path: Path, tag: str, changes: str, reason: str) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "CHANGELOG.md").write_text(changes)
    command = ["bash", "-eo", "pipefail", "-c", STEPS["Tag and version are equal"]]
    done = subprocess.run(
        command, cwd=tmp_path, env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}, capture_output=True, check=False
    )
    assert (done.returncode, reason.encode() in done.stdout) == (bool(reason), True)


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [("NVTX annotations for PyTorch", "is traceview's: pip install"), ("Theirs", "is another package, {}")],
)
def test_error_of_train_says_which_instrument_is_imported(tmp_path: Path, docstring: str, expected: str) -> None:
    """Another distribution has a package of this name too, whose files pip writes over traceview's."""
    package = tmp_path / "instrument"
    package.mkdir()
    shutil.copy(ROOT / "instrument" / "train.py", package)
    (package / "__init__.py").write_text(f'"""{docstring}"""\n')
    command = [sys.executable, "-m", "instrument.train"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: No module named 'instrument.config'; ")
    assert expected.format(package / "__init__.py") in done.stderr


def test_publishing_needs_no_secret() -> None:
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert RELEASE["permissions"] == {}
    writing = {name for name, job in RELEASE["jobs"].items() if "write" in job["permissions"].values()}
    assert writing == {"publish", "docs"}
    assert all("${{" not in run for run in STEPS.values())


def test_actions_are_pinned_to_commits() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    uses = [line for path in workflows for line in path.read_text(encoding="utf-8").splitlines() if "uses: " in line]
    assert len(workflows) == 2 and uses
    assert [line for line in uses if not re.fullmatch(r" +(?:- )?uses: [\w/-]+@[0-9a-f]{40} # v[\d.]+", line)] == []
