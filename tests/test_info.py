"""What `traceview info` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_export import Call, Graph, Kernel, Nvtx, build_export
from tests.captures import ALL, shared
from tests.cli.command import Command
from traceview.report.screen import MAX_LINES, width


def test_contents_of_a_capture(traceview: Command, report: Path) -> None:
    code, out, err = traceview("info", report, "-v")
    assert (code, err) == (0, "")
    for expected in (
        *("nsys 2024.2.3.38, export schema 3.11.1", "GPUs seen  NVIDIA H200", "stream 7 of process"),
        *("6,000  CUPTI_ACTIVITY_KIND_KERNEL", "122 ranges with 7 names", "20  iteration #"),
    ):
        assert expected in out
    assert "MISSING" not in out


@pytest.mark.parametrize("name", ALL)
def test_real_captures(traceview: Command, name: str) -> None:
    code, out, err = traceview("info", shared(name), "-v")
    assert (code, err) == (0, "")
    assert all(width(line) <= 100 for line in out.splitlines())
    assert f"{shared(name).name}\n  verdict " in out and "\n  version " in out and "StringIds" in out
    brief = traceview("info", shared(name)).out.splitlines()
    assert len(brief) <= MAX_LINES and all(width(line) <= 100 for line in brief)
    missing = [line for line in out.splitlines() if "MISSING" in line or "DOUBT" in line]
    assert [line for line in missing if line not in brief] == [], "what is missing or doubtful is always shown"


def test_missing_data(traceview: Command, tmp_path: Path) -> None:
    def missing(**tables: object) -> str:
        out = traceview("info", build_export(tmp_path / "made.sqlite", **tables)).out
        return " ".join(out.partition("MISSING")[2].split())

    api, step = [Call()], [Nvtx(text="step")]
    assert missing(kernels=[Kernel()], api=api, nvtx=step) == ""
    assert "are measured; capture it with nsys profile -t cuda,nvtx" in missing(api=api, nvtx=step)
    assert "--cuda-graph-trace=node" in missing(graphs=[Graph()], api=api, nvtx=step)
    assert "CUDA API calls" in missing(kernels=[Kernel()], nvtx=step)
    assert "ranges: they mark phases" in missing(kernels=[Kernel()], api=api)
    domain = [Nvtx(text="pipeline", kind=75, end=None)]
    assert "use nvtx 0.2.11" in missing(kernels=[Kernel()], api=api, nvtx=domain)


def test_invalid_rows(traceview: Command, tmp_path: Path) -> None:
    path = build_export(
        tmp_path / "made.sqlite",
        kernels=[Kernel(process=None), Kernel(start="x", end=None), Kernel(stream="seven")],
        nvtx=[Nvtx(), Nvtx(text="核\033[31m" * 90)],
    )
    code, out, err = traceview("info", path, "-v")
    assert (code, err) == (0, "")
    assert "(unnamed)" in out and "\033" not in out
    assert all(width(line) <= 100 for line in out.splitlines())


def test_health(traceview: Command, tmp_path: Path) -> None:
    calls = [Call(100 * i, 100 * i + 9, correlation=i + 1) for i in range(4)]
    path = build_export(tmp_path / "made.sqlite", api=calls, kernels=[Kernel(10, 20), Kernel(50, 60, correlation=99)])
    text = " ".join(traceview("info", path, "-v").out.partition("health")[2].split())
    assert "DOUBT 3 of 4 kernel launches of process 10 (75.0%) have no GPU work" in text
    assert "(affects busy, compute," in text
    assert "DOUBT 1 of 2 operations have no launch in the capture" in text
    whole = build_export(tmp_path / "whole.sqlite", api=calls[:1], kernels=[Kernel(10, 20)])
    text = " ".join(traceview("info", whole, "-v").out.partition("health")[2].split())
    assert "DOUBT" not in text and "ok 1 of 1 launches have their GPU work" in text


def test_gpu_work_without_processes(traceview: Command, tmp_path: Path) -> None:
    """An export that the analysis refuses: info says what it holds, and why it is refused."""
    path = build_export(
        tmp_path / "made.sqlite",
        kernels=[Kernel()],
        drop=["CUPTI_ACTIVITY_KIND_KERNEL.globalPid", "CUPTI_ACTIVITY_KIND_KERNEL.contextId"],
    )
    out = traceview("info", path, "-v").out
    assert out.splitlines()[1].startswith("  UNREADABLE no command can analyze this capture: the table ")
    assert "processes  not recorded" in out and "none with GPU work" not in out
    assert "stream 7 of process ? on device 0, context ?" in out
    assert "no column 'contextId'" in " ".join(out.split())


def test_capture_without_gpu_work_and_ranges(traceview: Command, tmp_path: Path) -> None:
    """The analysis refuses it; with ranges it measures the host."""
    path = build_export(tmp_path / "made.sqlite", api=[Call()])
    reason = traceview("analyze", path, "--no-html").err.partition("made.sqlite: ")[2].strip()
    text = " ".join(traceview("info", path).out.split())
    assert reason and f"UNREADABLE no command can analyze this capture: {reason}" in text
    assert "without ranges nothing is measured" in text and "DOUBT no command" not in text
    ranges = build_export(tmp_path / "ranges.sqlite", api=[Call()], nvtx=[Nvtx(text="step")])
    assert "UNREADABLE" not in traceview("info", ranges).out
