"""The steps of action.yml, run here as GitHub runs them: `bash -eo pipefail` with the inputs as variables."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest

from tests.captures import ROOT, SAMPLES, sample

yaml = pytest.importorskip("yaml")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
BASH = shutil.which("bash") or "/bin/bash"
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
# What `gh` does here: it lists the artifacts in `artifacts.json`, gives the one in `kept.zip`, notes each other call,
# and, after the first comment is written, lists one.
GH = """#!/bin/bash
case "$*" in
  *artifacts\\?name=*) jq -r "${@: -1}" < "$RUNNER_TEMP/artifacts.json" ;;
  *artifacts/7/zip) cat "$RUNNER_TEMP/kept.zip" ;;
  *--paginate*) if [ -e "$RUNNER_TEMP/calls" ]; then echo 77; fi ;;
  *) echo "$*" >> "$RUNNER_TEMP/calls" ;;
esac
"""


class Runner:
    """A job with one composite action. `run` does a step and returns its exit code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary = folder / "summary"
        programs = folder / "bin"
        programs.mkdir()
        (programs / "traceview").write_text(f'#!/bin/bash\nexec {sys.executable} -m traceview "$@"\n')
        (programs / "gh").write_text(GH)
        for program in programs.iterdir():
            program.chmod(0o755)
        self.variables = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RUNNER_TEMP": str(folder),
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_WORKFLOW": "benchmark",
            "GITHUB_JOB": "compare",
        }

    def run(self, name: str, **given: str) -> subprocess.CompletedProcess[str]:
        step = STEPS[name]
        given = {"program": str(self.folder / "bin" / "traceview"), "action_path": str(ROOT), **given}
        env = {variable: self.value(text, given) for variable, text in step.get("env", {}).items()}
        command = [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(
            command, cwd=self.folder, env={**self.variables, **env}, capture_output=True, text=True, check=False
        )

    def value(self, text: str, given: dict[str, str]) -> str:
        expression = re.fullmatch(r"\$\{\{ (?:toJSON\()?([\w.]+)\)?(?: \|\| ([\w.]+))? \}\}", text)
        assert expression is not None, f"{text}: an input reaches the shell as a variable"
        first, second = (part and part.rpartition(".")[2] for part in expression.groups())
        values = given | self.outputs() | given
        return values[first] if second is None else values.get(first) or values.get(second, "")

    def outputs(self) -> dict[str, str]:
        path = self.folder / "output"
        lines = path.read_text().splitlines() if path.exists() else []
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def captures(before: str, after: str) -> dict[str, str]:
    return {"command": "compare", "before": str(sample(before)), "after": str(sample(after))}


def comment(runner: Runner, matrix: str = "null") -> subprocess.CompletedProcess[str]:
    assert runner.run("Key", command="compare", key="", matrix=matrix).returncode == 0
    return runner.run("Comment", token="t", number="12")


def kept(runner: Runner, *artifacts: dict[str, object]) -> subprocess.CompletedProcess[str]:
    """Run the step that gets the document of main from the artifacts of the repository."""
    (runner.folder / "artifacts.json").write_text(json.dumps({"artifacts": artifacts}))
    return runner.run("Base", token="t", key="0", base_ref="main")


def artifact(number: int, branch: str = "main", repository: int = 1, expired: bool = False) -> dict[str, object]:
    run = {"head_branch": branch, "repository_id": 1, "head_repository_id": repository}
    return {"id": number, "expired": expired, "workflow_run": run}


def test_gate_fails_after_the_report(runner: Runner) -> None:
    gate = "regression\niteration > 1000%\n"
    done = runner.run("Report", **captures("dual.sqlite", "serial.sqlite"), gate=gate)
    assert done.returncode == 0, done.stderr
    outputs = runner.outputs()
    assert (outputs["code"], outputs["verdict"]) == ("1", "slower")
    assert json.loads(Path(outputs["json"]).read_text())["against"][0]["verdict"] == "slower"
    summary = runner.summary.read_text()
    assert "`dual.sqlite` → `serial.sqlite`: slower" in summary
    assert "| `--fail-on-regression` | **failed** | serial.sqlite is slower" in summary
    assert "| `--fail-if iteration > 1000%` | passed | iteration changed by +120" in summary
    for number in ("first", "second"):
        assert comment(runner).returncode == 0, number
    calls = (runner.folder / "calls").read_text()
    assert "--method POST repos/owner/name/issues/12/comments" in calls
    assert "--method PATCH repos/owner/name/issues/comments/77" in calls
    assert re.match(r"<!-- traceview \w{16} -->\n### `dual.sqlite`", (runner.folder / "comment.md").read_text())
    assert runner.run("Gate").returncode == 1


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, whose expressions gh evaluates")
def test_document_of_main_is_the_base(runner: Runner) -> None:
    """The document that a run of main keeps is what a pull request is compared with."""
    given = {"command": "compare", "before": "", "after": str(sample("dual.sqlite")), "gate": "regression"}
    assert kept(runner).stdout.startswith("::notice::no run of main has kept a document yet")
    assert runner.run("Document", **given).returncode == 0
    assert runner.run("Report", **given).returncode == 0 and not runner.summary.exists()
    assert STEPS["Keep"]["with"]["path"] == "${{ steps.document.outputs.document }}"
    with ZipFile(runner.folder / "kept.zip", "w") as archive:
        document = Path(runner.outputs()["document"])
        archive.write(document, document.name)
    (runner.folder / "output").unlink()
    others = (artifact(9, expired=True), artifact(8, repository=2), artifact(6, branch="other"))
    assert kept(runner, *others).stdout.startswith("::notice::") and kept(runner, *others, artifact(7)).stdout == ""
    assert Path(runner.outputs()["kept"]).read_bytes() == document.read_bytes()
    done = runner.run("Report", **given | {"after": str(sample("serial.sqlite"))})
    assert done.returncode == 0, done.stderr
    assert (runner.outputs()["code"], runner.outputs()["verdict"]) == ("1", "slower")
    assert "`base.json` → `serial.sqlite`: slower" in runner.summary.read_text()


def test_kept_document_that_may_not_be_read(runner: Runner) -> None:
    (runner.folder / "bin" / "gh").write_text("#!/bin/bash\necho 'gh: Forbidden (HTTP 403)' >&2; exit 1\n")
    done = kept(runner)
    assert done.returncode == 2 and done.stdout.count("\n") == 1
    assert done.stdout.startswith("::error::the kept document cannot be read: gh: Forbidden (HTTP 403)")


def test_hostile_inputs_are_not_run(runner: Runner) -> None:
    hostile = "$(touch ran); `touch ran`"
    done = runner.run("Report", command="compare", before=hostile, after=str(sample("dual.sqlite")), gate="")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert not (runner.folder / "ran").exists() and not runner.summary.exists()


def test_passed_gate_and_refused_comment(runner: Runner) -> None:
    assert runner.run("Report", **captures("dual.sqlite", "dual.sqlite"), gate="iteration > 3%").returncode == 0
    assert "failed" not in runner.summary.read_text() and runner.run("Gate").returncode == 0
    for text, reason in (
        ("gh: Resource not accessible by integration (HTTP 403)", "it needs permissions: pull-requests: write"),
        ("error connecting to api.github.com", "no comment: error connecting to api.github.com \n"),
    ):
        (runner.folder / "bin" / "gh").write_text(f"#!/bin/bash\necho '{text}' >&2; exit 1\n")
        done = comment(runner)
        assert done.returncode == 0 and done.stdout.startswith("::warning::") and reason in done.stdout
    (runner.folder / "bin" / "gh").unlink()
    runner.variables["PATH"] = str(runner.folder / "bin")
    done = runner.run("Comment", token="t", number="12")
    assert (done.returncode, done.stdout.count("has no program gh")) == (0, 1)


def test_jobs_of_a_matrix_have_their_own_comments(runner: Runner) -> None:
    assert runner.run("Report", **captures("dual.sqlite", "dual.sqlite"), gate="").returncode == 0
    marks = []
    for matrix in ('{"gpu": "a"}', '{"gpu": "b"}', '{"gpu": "a"}'):
        assert comment(runner, matrix).returncode == 0
        marks.append((runner.folder / "comment.md").read_text().partition("\n")[0])
    assert marks[0] == marks[2] != marks[1]


@pytest.mark.parametrize(("command", "after"), [("analyze", sample("dual.sqlite")), ("fleet", SAMPLES / "ranks")])
def test_other_commands(runner: Runner, command: str, after: Path) -> None:
    given = {"command": command, "before": "", "after": str(after), "gate": "nothing > 1"}
    assert runner.run("Report", **given).returncode == 2
    done = runner.run("Report", **{**given, "gate": ""})
    assert done.returncode == 0, done.stderr
    assert runner.summary.read_text().startswith("### ") and runner.outputs()["verdict"] == ""
    assert ElementTree.parse(runner.outputs()["junit"]).getroot().get("tests") == "0"
    assert json.loads(Path(runner.outputs()["json"]).read_text())["schema_version"] == 1


def test_changed_lines_are_annotated(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    program = tmp_path / "src" / "train.py"
    program.parent.mkdir()
    git("init", "--quiet")
    program.write_text("a\nb\nc\nd\n")
    git("add", "."), git("commit", "--quiet", "-m", "base")
    base = git("rev-parse", "HEAD")
    program.write_text("a\nB\nc\nd\nE\n")
    (tmp_path / "lines.json").write_text(
        json.dumps({"lines": [{"file": "train.py", "line": line, "idle_ns": 12_345_678} for line in (1, 2, 3, 5)]})
    )
    command = [sys.executable, "-I", str(ROOT / "scripts" / "annotate-lines"), "lines.json"]
    done = subprocess.run([*command, base], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.partition("::The")[0] for line in done.stdout.splitlines()] == [
        "::warning file=src/train.py,line=2,title=GPU idle",
        "::warning file=src/train.py,line=5,title=GPU idle",
    ]
    done = subprocess.run([*command, "0" * 40], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("::warning::no line is marked")


def test_no_file_of_the_checkout_runs(runner: Runner) -> None:
    """The working folder is the checkout of a pull request."""
    wheel = runner.folder / "traceview-0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("traceview-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: traceview\nVersion: 0\n")
        archive.writestr(
            "traceview-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("traceview-0.dist-info/RECORD", "")
    for name in ("json", "venv", "ensurepip", "pip", "subprocess"):
        (runner.folder / f"{name}.py").write_text(f"open('ran', 'a').write('{name} ')\n")
    runner.variables |= {"PIP_NO_INDEX": "1", "PYTHONPATH": ""}
    assert runner.run("Install traceview", version="", action_path=str(wheel)).returncode == 0
    runner.variables["PYTHONPATH"] = str(ROOT)
    assert runner.run("Report", **captures("dual.sqlite", "dual.sqlite"), gate="").returncode == 0
    assert runner.outputs()["verdict"] == "noise" and not (runner.folder / "ran").exists()


def test_inputs_and_outputs_exist() -> None:
    text = json.dumps(ACTION)
    used = set(re.findall(r"\binputs\.(\w+)", text))
    assert used == set(ACTION["inputs"])
    assert all("${{" not in step.get("run", "") for step in STEPS.values())
    results: dict[str, Any] = ACTION["outputs"]
    assert {re.findall(r"outputs\.(\w+)", item["value"])[0] for item in results.values()} == set(results)
