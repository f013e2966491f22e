"""No command runs code of the working folder: no Python that it starts imports a file from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import ROOT, sample
from traceview.process import python_command

PACKAGES = ("traceview", "polars", "numpy", "click", "plotly", "isal", "tomli", "nvtx", "zstandard", "distributed")
NOT_FROM_A_FILE = {*sys.builtin_module_names, "instrument"}
PROGRAM = "import sys\nfrom traceview.__main__ import run\nif __name__ == '__main__':\n    sys.exit(run())\n"
# Stands in for nsys: writes a report, and runs the program.
NSYS = """#!/bin/sh
case "$1" in
  --version) echo "NVIDIA Nsight Systems version 2024.2.1"; exit;;
  profile) shift;;
  *) exit 1;;
esac
while [ "${{1#-}}" != "$1" ]; do
  case "$1" in --output=*) cp {report} "${{1#--output=}}.nsys-rep";; esac
  shift
done
exec "$@"
"""
COMMANDS = {
    "fleet": ("fleet", ".", "--workers", "2", "--no-html"),
    "export": ("export", "rank0.sqlite", "--format", "perfetto"),
    "doctor": ("doctor",),
    "record": ("record", "--no-html", "--", "true"),
}


class WorkingFolder:
    """A folder with a module of every name that a Python can import; each leaves a mark when it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder / "checkout", folder / "marks"
        self.folder.mkdir()
        self.names = sorted({*sys.stdlib_module_names, *PACKAGES} - NOT_FROM_A_FILE)
        for name in self.names:
            self.plant(name)
        programs = folder / "bin"
        programs.mkdir()
        self.program = programs / "traceview"
        self.program.write_text(PROGRAM)
        nsys = programs / "nsys"
        nsys.write_text(NSYS.format(report=sample("dual.sqlite")))
        nsys.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "POLARS_MAX_THREADS": "2",
        }

    def plant(self, name: str) -> None:
        """Add a module."""
        code = f"with open({str(self.marks)!r}, 'a') as marks: marks.write({name + ' '!r})\nraise ImportError\n"
        (self.folder / f"{name}.py").write_text(code)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder."""
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )

    @property
    def imported(self) -> str:
        """The modules of the folder that ran."""
        return self.marks.read_text() if self.marks.exists() else ""


@pytest.fixture
def working(tmp_path: Path) -> WorkingFolder:
    return WorkingFolder(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_code_of_the_working_folder(working: WorkingFolder, command: str) -> None:
    for rank in ("rank0.sqlite", "rank1.sqlite"):
        shutil.copyfile(sample("ddp2.sqlite"), working.folder / rank)
    done = working.run(sys.executable, str(working.program), *COMMANDS[command])
    assert working.imported == "", done.stderr
    if command != "doctor":
        assert done.returncode == 0, done.stderr
    else:
        assert "another instrument" not in done.stdout and "nsys wrote a report" in done.stdout, done.stdout


def test_python_m_imports_only_the_package_from_the_working_folder(working: WorkingFolder) -> None:
    """`python -m` looks there before any of traceview runs: docs/trust.md."""
    modules = subprocess.run(
        [sys.executable, "-I", "-c", "import runpy, traceview, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in {"traceview", *modules} & set(working.names):
        (working.folder / f"{name}.py").unlink()
    report = shutil.copyfile(sample("cudagraph.sqlite"), working.folder / "rank0.sqlite")
    shutil.copyfile(report, working.folder / "rank1.sqlite")
    done = working.run(sys.executable, "-m", "traceview", "fleet", ".", "--workers", "2", "--no-html")
    assert (done.returncode, working.imported) == (0, ""), done.stderr


def test_doctor_finds_another_instrument_and_does_not_run_it(working: WorkingFolder) -> None:
    working.plant("instrument")
    done = working.run(sys.executable, str(working.program), "doctor")
    assert "another instrument.py" in done.stdout and working.imported == ""


def test_planted_modules_run_in_an_unsafe_child(working: WorkingFolder) -> None:
    assert working.run(sys.executable, "-c", "import json").returncode == 1
    assert working.imported == "json "


@pytest.mark.parametrize("option", [(), ("-I",), ("-E",)])
def test_path_of_a_child(working: WorkingFolder, option: tuple[str, ...]) -> None:
    """PYTHONPATH and the packages of the environment stay."""
    (python, *rest) = python_command("import os; print(os.pathsep.join(sys.path))")
    plain = working.run(python, *option, "-c", "import sys; print(':'.join(sys.path))").stdout.strip()
    done = working.run(python, *option, *rest)
    assert done.stdout.strip() == plain.removeprefix(":")
