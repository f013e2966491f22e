"""`record` and `doctor` with a real nsys, and with a stand-in where a GPU or a failure is needed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.captures import ROOT, sample
from tests.cli.command import Command, Result
from tests.profiling import ATTEMPTS
from tests.schemas import SCHEMAS
from traceview.captures import record as machine
from traceview.captures import record as recording
from traceview.captures.record import Recording
from traceview.errors import ReportError

STEPS = """
import nvtx, time
for _ in range(6000):
    with nvtx.annotate("step"): time.sleep(0.01)
"""
SLEEP = "import time; time.sleep(0.2); print('it ran')"
HELP = "--python-sampling= --gpu-metrics-device="  # as in nsys 2023.4 and 2024.2


def recorded(traceview: Command, *arguments: object) -> Result:
    """Record, and again where a loaded machine keeps nsys from making a report."""
    done = traceview("record", *arguments)
    for _ in range(ATTEMPTS - 1):
        if "nsys wrote no report" in done.err:
            done = traceview("record", *arguments)
    return done


def recorded_again(output: Recording) -> int:
    """Record twice in a session, because the program has not begun in the first; return nsys's exit code."""
    for attempt in range(ATTEMPTS):
        counts = iter((0, 1))
        with suppress(*([ReportError] if attempt < ATTEMPTS - 1 else [])):  # a loaded machine may keep nsys from it
            code = recording.record(
                output, lambda _, counts=counts: recording.SteadyIterations(n := next(counts), n or None)
            )
            assert next(counts, None) is None
            return code
    raise AssertionError("unreachable")


def stand_in(folder: Path, profile: str = "", export: str = "", help_text: str = HELP) -> Path:
    """Write an nsys made by hand: `profile` runs some shell code after the last option, `export` copies a sample."""
    path = folder / "nsys"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in --version*) echo "version 2024.2.3";; '
        f'"profile --help") echo "{help_text}";; '
        f'profile*) echo "$@" >>{folder}/log; {profile};; export*) {export};; *) exit 1;; esac\n'
    )
    path.chmod(0o755)
    return path


def test_records_and_reports_what_is_missing(
    nsys: str, tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = recorded(traceview, "--nsys", nsys, "--seconds", "20", "-o", "mine", "--", sys.executable, "-c", SLEEP)
    assert done.code == 2, done.err
    assert "it ran" in done.out
    assert "mine.nsys-rep: the capture holds no GPU work" in done.err
    assert (tmp_path / "mine.nsys-rep").is_file()
    again = traceview("record", "--nsys", nsys, "-o", "mine", "--", sys.executable, "-c", SLEEP)
    assert (again.code, again.out) == (2, "")
    assert "mine.nsys-rep exists; replace it with --force" in again.err


def test_records_iterations_of_a_running_program(
    nsys: str, tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recording, "FIRST_SECONDS", 0.3)
    options = ("--trace", "nvtx", "--nsys", nsys, "--no-html", "--iterations", "50")
    done = recorded(traceview, *options, "--", sys.executable, "-c", STEPS)
    assert done.code == 0, done.err
    counted = [int(number) for number in re.findall(r"(\d+) iterations after the warm-up", done.err)]
    assert max(counted[:-1], default=0) < 50 <= counted[-1]
    assert f"{counted[-1]} iterations (" in done.out
    assert [path.name for path in tmp_path.iterdir()] == ["report.nsys-rep"]


def test_recordings_of_one_process_follow_each_other(
    nsys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "FIRST_SECONDS", 0.3)
    monkeypatch.setenv("PATH", str(Path(nsys).parent), prepend=":")
    program = (sys.executable, "-c", "import time; time.sleep(60)")
    for number in range(2):  # two sessions of one name fail at the second
        assert recorded_again(Recording(program, tmp_path / str(number), "nvtx", iterations=1)) == 0


def test_iterations_of_a_program_that_ends(
    nsys: str, tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--trace", "nvtx", "--nsys", nsys, "--iterations", "50", "--no-html")
    done = recorded(traceview, *options, "--", sys.executable, "-c", "import time; time.sleep(2)")
    assert "report.nsys-rep: the capture holds no GPU work" in done.err
    both = traceview("record", *options, "--seconds", "3", "--", "sh")
    assert (both.code, both.err.count("\n")) == (2, 1)
    assert "--iterations and --seconds both end the recording" in both.err


def test_analyzes_what_it_recorded(tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    magic = "printf 'NVIDIA Tegra Profiler Report 2024@2@3' >report.nsys-rep"
    nsys = stand_in(tmp_path, f"{magic}; exit 3", f'cp {sample("dual.sqlite")} "$5"')
    done = traceview(
        "record",
        "--nsys",
        nsys,
        "--python",
        "--gpu-metrics",
        "--delay",
        "2",
        "--no-html",
        "--json",
        "all.json",
        "--",
        "sh",
        "-c",
        "exit 3",
    )
    assert done.code == 0, done.err
    Draft202012Validator(SCHEMAS["record"]()).validate(json.loads((tmp_path / "all.json").read_bytes()))
    assert "\n1. " in done.out
    assert "the program ended with exit code 3" in done.err
    assert (tmp_path / "log").read_text().split() == [
        *("profile", "--trace=cuda,nvtx", "--python-sampling=true", "--python-sampling-frequency=1000"),
        *("--sample=none", "--cpuctxsw=none"),
        *("--gpu-metrics-device=all", "--delay=2"),
        *("--force-overwrite=false", "--output=report", "sh", "-c", "exit", "3"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", "no-such-program"), "'no-such-program' is not a program; write it as in the shell, after --"),
        (("--python", "--", "sh"), "samples no Python stacks"),
        (("--gpu-metrics", "--", "sh"), "samples no GPU metrics"),
        (("--", "sh", "-c", "true"), "report.nsys-rep: nsys wrote no report (exit code 0); `traceview doctor`"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    nsys = stand_in(tmp_path, "true", help_text="")
    done = traceview("record", "--nsys", nsys, *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


def test_missing_command(traceview: Command) -> None:
    done = traceview("record")
    assert (done.code, done.out) == (2, "")
    assert "Missing argument 'COMMAND...'" in done.err


def test_missing_nsys(tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = traceview("record", "--", sys.executable)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "nsys is not on PATH; install Nsight Systems, or name the program with --nsys" in done.err
    assert traceview("doctor").code == 1
    code, out, _ = traceview("doctor", "--json", "-")
    Draft202012Validator(SCHEMAS["doctor"]()).validate(json.loads(out))
    assert code == 1 and not json.loads(out)["can_record"]


def test_doctor_records(nsys: str, traceview: Command) -> None:
    done = traceview("doctor", "--nsys", nsys)
    lines = {line[10:26].strip(): line[:10].strip() for line in done.out.splitlines() if not line.startswith(" ")}
    assert lines["nsys"] == lines["test recording"] == machine.OK
    # The line `instrument` appears where another checkout is on PYTHONPATH.
    assert set(lines) - {"instrument"} == {
        "nsys",
        "test recording",
        "CPU samples",
        "GPU",
        "GPU metrics",
        "nvtx package",
    }
    assert done.code == (machine.FAILED in lines.values())


@pytest.mark.parametrize(("written", "text"), [("qdstrm", "its importer is missing"), ("log", "nsys wrote nothing")])
def test_doctor_explains_a_failed_recording(tmp_path: Path, traceview: Command, written: str, text: str) -> None:
    nsys = stand_in(tmp_path, f"touch test.{written}")
    done = traceview("doctor", "--nsys", nsys)
    assert done.code == 1
    assert text in done.out


def test_raw_stream_is_imported(tmp_path: Path, traceview: Command) -> None:
    """A loaded machine: nsys gave up waiting for its importer."""
    target, host = tmp_path / "target-linux-x64", tmp_path / "host-linux-x64"
    target.mkdir()
    host.mkdir()
    importer = host / "QdstrmImporter"
    importer.write_text('#!/bin/sh\ncp "$2" "$4"\n')
    importer.chmod(0o755)
    done = traceview("doctor", "--nsys", stand_in(target, "echo stream >test.qdstrm"))
    assert "nsys wrote a report" in done.out
    (tmp_path / "mine.qdstrm").write_text("stream")
    assert recording.is_complete(tmp_path / "mine.nsys-rep", str(target / "nsys"))
    assert [path.name for path in tmp_path.glob("mine.*")] == ["mine.nsys-rep"]


def test_name_with_dots(tmp_path: Path) -> None:
    assert Recording(("sh",), tmp_path / "v1.2").report == tmp_path / "v1.2.nsys-rep"


@pytest.mark.parametrize(("version", "status"), [("0.2.11", machine.OK), ("0.2.12", machine.FAILED)])
def test_doctor_knows_versions_of_nvtx_that_lose_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    python = tmp_path / "python"  # made by hand: no two versions can be installed
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(shutil.which('sh') or '/bin/sh').parent}")
    assert machine._nvtx((2024, 2, 3)).status == status
    assert machine._nvtx((2026, 1, 1)).status == machine.OK


def test_doctor_names_another_instrument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_python", lambda: sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (check,) = machine._instrument()
    assert (check.status, check.text) == (machine.OK, f"traceview's, in {ROOT.name}")
    (tmp_path / "instrument.py").write_text("'''A script of the user.'''\n")
    (check,) = machine._instrument()
    assert check.status == machine.WARNING
    assert check.text == f"another instrument.py in {tmp_path.name} hides traceview's" and "rename it" in check.remedy


@pytest.mark.parametrize(
    "launcher",
    [
        {"RANK": "3", "WORLD_SIZE": "4"},
        {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
        {"PMI_RANK": "3", "PMI_SIZE": "4"},
    ],
)
def test_each_rank_writes_its_report(
    launcher: dict[str, str], tmp_path: Path, traceview: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    writes = 'for word; do case $word in --output=*) : >"${word#--output=}.nsys-rep";; esac; done'
    nsys = stand_in(tmp_path, profile=writes)
    done = traceview("record", "--nsys", nsys, "-o", "mine", "--", "true")
    assert (done.code, done.out, done.err) == (0, "mine_rank3.nsys-rep\n", "")
    assert (tmp_path / "mine_rank3.nsys-rep").is_file()
    refused = traceview("record", "--nsys", nsys, "--json", "-", "--", "true")
    assert refused.code == 2 and "traceview fleet on the ranks' reports" in refused.err


def test_process_alone_has_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("SLURM_PROCID", "0")  # a batch script outside of a job step
    assert recording.rank_of_process() is None


@pytest.mark.parametrize(("version", "status"), [((2026, 2, 1), machine.OK), ((2026, 3, 0), machine.WARNING)])
def test_doctor_says_which_version_is_known(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], status: str
) -> None:
    monkeypatch.setattr(machine, "installed_nsys", lambda: "nsys")
    monkeypatch.setattr(machine, "version_of_nsys", lambda _: version)
    check = next(machine.checks())
    assert (check.name, check.status) == ("nsys", status)
    assert check.text.endswith("exports up to 2026.2 are known") and bool(check.remedy) == (status == machine.WARNING)
