"""The comparison's plain arithmetic against traceview's, and tools that are absent, fail or hang."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ROOT, sample
from traceview.pipeline import analyze

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "compare_tools"), run_name="compare_tools")


@pytest.mark.parametrize("name", ["dual", "ddp2"])
def test_two_computations_agree(script: dict[str, Any], name: str) -> None:
    path = sample(f"{name}.sqlite")
    known, answers = script["truth"](path, "backward"), analyze(path)
    assert isinstance(answers.nvtx, tuple)
    assert known.hidden_ns > 0 and known.launched_kernels > 0
    assert known.hidden_ns == sum(c.overlapped_ns for d in answers.devices for c in d.copies if c.kind == "h2d")
    assert known.idle_ns == sum(device.gaps.total_ns for device in answers.devices)
    assert known.sync_ns == answers.host.sync.blocked_ns
    if name == "ddp2":
        return  # there, threads with ranges of their own launch work meanwhile, which belongs to those
    [backward] = [one for one in answers.nvtx if one.name == "backward"]
    assert (known.launched, known.launched_kernels) == (backward.operation_count, backward.kernel_count)


@pytest.mark.parametrize("name", ["torch_profiler/serial.json.gz", "fsdp_tp/rank0.json.gz"])
def test_two_computations_of_a_trace_agree(script: dict[str, Any], name: str) -> None:
    path = sample(name)
    known, [device] = script["traced_truth"](path), analyze(path).devices
    assert abs(known.idle_ns - device.gaps.total_ns) < 1_000
    assert abs(known.compute_ns - device.compute_ns) < 1_000 < known.compute_ns
    assert known.exposed_communication_ns == device.communication.exposed_ns
    # Communication hides copies as well; sums by kind do not know that.
    assert 0 < known.exposed_copies_ns <= sum(row.exposed_ns for row in device.copies)
    shown = [way.tool for question in script["traced"]("hta", "tracelens", known) for way in question.ways]
    assert shown.count("TraceLens") == shown.count("traceview") == 4


@pytest.mark.parametrize(
    ("command", "limit", "said"),
    [
        (["/nowhere/nsys"], 300, "does not run (No such file or directory)"),
        (["/bin/sh", "-c", "echo oh >&2; exit 3"], 300, "failed: oh"),
        (["/bin/sh", "-c", "echo 'ERROR: no table'"], 300, "failed: no table"),
        (["/bin/sh", "-c", "sleep 900 & sleep 900"], 1, "stopped at 1 s"),
        (["/bin/sh", "-c", "echo 7"], 300, ""),
    ],
)
def test_failed_and_hanging_tools_are_reported(
    script: dict[str, Any], command: list[str], limit: int, said: str
) -> None:
    began = time.monotonic()
    ended = script["run"](command, limit)
    assert ended.failed == said and time.monotonic() - began < 600  # both sleeping processes are stopped


def test_peak_memory_is_that_of_the_command(script: dict[str, Any]) -> None:
    """A process that is forked from a large one has its parent's peak, as Linux counts."""
    large = bytearray(200 << 20)
    large[:: 1 << 12] = b"x" * len(large[:: 1 << 12])
    small = script["run"]([sys.executable, "-S", "-c", ""], 30)
    other = script["run"]([sys.executable, "-S", "-c", "x = b'x' * (100 << 20)"], 30)
    assert 0 < small.peak_bytes < 50 << 20 < 100 << 20 < other.peak_bytes < 150 << 20


def test_row_shows_the_error_of_an_answer(script: dict[str, Any], tmp_path: Path) -> None:
    report = tmp_path / "report.sqlite"
    report.write_bytes(b"x")
    (tmp_path / "copies").mkdir()
    question = script["Question"]("kernels", (200,), False, ())
    rows = {}
    for answer in ("200", "150", "word"):
        way = script["Way"]("tool", [sys.executable, "-c", f"print('{answer}')", "{report}"], float, "tool ask")
        answers = script["run_rounds"](report, way, 1, 30.0, tmp_path / "copies")
        rows[answer] = [cell.strip() for cell in script["line"](question, way, answers).split("|")[2:5]]
    assert rows == {
        "200": ["tool: `tool ask`", "200", "the same"],
        "150": ["tool: `tool ask`", "150", "-25.00%"],
        "word": ["tool: `tool ask`", "nothing that this script can read", ""],
    }
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize(
    ("failures", "cell"), [(1, "200; failed once before"), (2, "200; failed 2 times before"), (3, "failed: oh")]
)
def test_failed_tool_is_run_again_and_reported(
    script: dict[str, Any], tmp_path: Path, failures: int, cell: str
) -> None:
    report = tmp_path / "report.sqlite"
    report.write_bytes(b"x")
    (tmp_path / "copies").mkdir()
    count = f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tmp_path}/n"
    command = ["/bin/sh", "-c", f"{count}; [ $n -ge {failures} ] && echo 200 || {{ echo oh; exit 1; }}"]
    way = script["Way"]("tool", command, float, "tool ask")
    answers = script["run_rounds"](report, way, 1, 30.0, tmp_path / "copies")
    said = script["line"](script["Question"]("kernels", (200,), False, ()), way, answers)
    assert said.split("|")[3].strip() == cell
