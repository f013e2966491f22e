"""Captures with what torch.profiler and Nsight Compute recorded of the same program.

`trainer/serial.sqlite` and `torch_profiler/serial.json.gz` are two runs of one program. The table of ncu is made by
hand in the form of `ncu --csv --page raw`, because no sample has one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.captures import analyzed, sample
from tests.cli.command import Command
from traceview import analyze
from traceview.engine.other_profilers import _aligned, with_torch_trace
from traceview.errors import NotAnExportError, NotFoundError, RequestError
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.sizes import WorkSizes, empty_frame
from traceview.model.stacks import SCOPES
from traceview.model.trace import Trace, Window
from traceview.pipeline import analyze_trace
from traceview.read.ncu import COMPUTE, MEMORY, read_ncu

NSYS, TORCH = "trainer/serial.sqlite", "torch_profiler/serial.json.gz"
OPENACC = "openacc/heat_as_2024.2.sqlite"  # one kernel takes most of its time
HEADER = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", COMPUTE, MEMORY)
UNITS = ("", "", "", "", "", "%", "%")


def bare(trace: Trace) -> Trace:
    """Return a trace of torch.profiler as nsys would have recorded it: without ops and FLOPs."""
    return replace(trace, scopes=empty_frame(SCOPES), sizes=WorkSizes())


@pytest.fixture(scope="module")
def joined() -> Analysis:
    return analyze(sample(NSYS), others=[sample(TORCH)])


def test_modules_are_those_of_the_trace_and_times_those_of_the_capture(joined: Analysis) -> None:
    alone, torch = analyzed(sample(NSYS)), analyzed(sample(TORCH))
    keys = ["place", "direction", "count"]
    rows, truth = joined.table("modules"), torch.table("modules")
    assert rows.select(keys).sort(keys).equals(truth.select(keys).sort(keys))
    assert rows["total_ns"].sum() == alone.table("kernels")["total_ns"].sum() != truth["total_ns"].sum()
    assert joined.devices[0].gaps.causes == alone.devices[0].gaps.causes
    assert joined.table("nvtx").equals(alone.table("nvtx"))
    [note] = [note.text for note in joined.notes if note.id == "other_profiler"]
    assert note.startswith("ops, modules, lines and FLOPs are those of serial.json.gz, for 100% of the kernels")


@pytest.mark.parametrize("name", [TORCH, "fsdp_tp/rank0.json.gz"])
def test_joined_to_itself_a_trace_is_the_same(name: str) -> None:
    torch = analyzed(sample(name))
    again = analyze_trace(with_torch_trace(bare(torch.trace), AnalysisOptions(), torch.trace)).analysis
    for table in ("modules", "matrix_precisions", "kernel_families"):
        assert again.table(table).equals(torch.table(table)), table


def test_other_programs_are_refused(traceview: Command) -> None:
    ran = traceview("analyze", sample("quad.sqlite"), "--no-html", "--with", sample(TORCH))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "52.3% of the kernels in iterations of quad.sqlite are in it in the same order, below 90.0%" in ran.err
    trace, theirs = analyzed(sample(NSYS)).trace, analyzed(sample(TORCH)).trace
    first = int(trace.operations["start"][0])
    with pytest.raises(RequestError, match=r"serial\.sqlite: .* matched: no counted iteration launches one"):
        with_torch_trace(trace.with_window(Window(first, first + 1)), AnalysisOptions(), theirs)
    some = trace.operations.head(2)
    with pytest.raises(RequestError, match=r"serial\.sqlite: its kernels cannot be matched: iterations are unknown"):
        with_torch_trace(replace(trace, operations=some, ranges=trace.ranges.clear()), AnalysisOptions(), theirs)


def test_alignment_keeps_the_order() -> None:
    own, other = np.array([1, 2, 9, 3, 4, 2, 3, 7]), np.array([1, 2, 3, 4, 4, 2, 3, 8, 7])
    at, other_at = _aligned(own, other)
    assert (own[at] == other[other_at]).all() and (np.diff(at) > 0).all() and (np.diff(other_at) > 0).all()
    assert len(at) == 7
    same, also = _aligned(own, own)
    assert same.tolist() == also.tolist() == list(range(8))


def table(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = HEADER) -> Path:
    lines = [",".join(f'"{cell}"' for cell in row) for row in (header, UNITS, *rows)]
    path.write_text("\n".join(["==PROF== Connected to process 7", *lines]) + "\n")
    return path


def test_limiters_are_in_the_table_of_kernels_and_in_the_finding(tmp_path: Path, traceview: Command) -> None:
    first = analyzed(sample(OPENACC)).devices[0].steady.tables["kernels"].rows[0]
    size = {name: str(getattr(first, name)) for name in ("grid", "block")}
    name = first.demangled or first.name
    path = table(
        tmp_path / "ncu.csv",
        [
            ("0", "7", name, size["block"], size["grid"], "81.5", "40.0"),
            ("1", "7", name, size["block"], size["grid"], "82.5", "41,0"),
            ("2", "7", "void other<int>(int)", "(1, 1, 1)", "(1, 1, 1)", "5", "6"),
        ],
    )
    with_limits = analyze(sample(OPENACC), others=[path])
    kernels = with_limits.table("kernels")
    row = kernels.row(0, named=True)
    assert (row["limiter"], row["compute_fraction"], row["memory_fraction"]) == ("compute", 0.82, 0.405)
    assert kernels["limiter"].drop_nulls().len() == 1
    shown = traceview("analyze", sample(OPENACC), "--no-html", "-v", "--with", path).out
    assert "limiter" in shown and "limiter" not in traceview("analyze", sample(OPENACC), "--no-html", "-v").out
    finding = next(each for each in with_limits.findings if each.id == "costliest_kernel")
    assert first.label in finding.title
    assert "Nsight Compute: compute limits it (compute 82.0% and memory 40.5% of its peak)." in finding.advice


def test_limiter_follows_the_larger_share(tmp_path: Path) -> None:
    rows = [
        (str(at), "7", f"k{at}", "(1, 1, 1)", "(2, 1, 1)", *shares)
        for at, shares in enumerate((("61", "20"), ("20", "61"), ("59", "59")))
    ]
    limits = read_ncu(table(tmp_path / "ncu.csv", rows)).sort("name")
    assert limits["limiter"].to_list() == ["compute", "memory", "latency"]
    assert limits.row(0)[:7] == ("k0", 2, 1, 1, 1, 1, 1)


def test_unsuitable_tables_are_one_line(tmp_path: Path) -> None:
    other = [("0", "7", "void other(int)", "(1, 1, 1)", "(1, 1, 1)", "5", "6")]
    with pytest.raises(RequestError, match=r"ncu.csv: no kernel of serial.sqlite has a name and a launch shape"):
        analyze(sample(NSYS), others=[table(tmp_path / "ncu.csv", other)])
    with pytest.raises(NotAnExportError, match=r"lacks gpu__compute_memory.*--section SpeedOfLight"):
        read_ncu(table(tmp_path / "less.csv", other, (*HEADER[:-1], "x")))
    (tmp_path / "text.csv").write_text("a,b\n1,2\n")
    with pytest.raises(NotAnExportError, match="no table of ncu; write it with ncu --csv --page raw"):
        read_ncu(tmp_path / "text.csv")
    with pytest.raises(NotAnExportError, match="holds no kernel"):
        read_ncu(table(tmp_path / "empty.csv", []))
    with pytest.raises(NotFoundError):
        read_ncu(tmp_path / "missing.csv")
