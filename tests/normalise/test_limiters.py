"""What limits kernels, from a table of Nsight Compute.

The table is made by hand in the form of `ncu --csv --page raw`, because no sample has one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import analyzed, sample
from tests.cli.command import Command
from traceview import analyze
from traceview.errors import NotAnExportError, NotFoundError, RequestError
from traceview.normalise.limiters import COMPUTE, MEMORY, read_ncu

NSYS = "trainer/serial.sqlite"
OPENACC = "openacc/heat_as_2024.2.sqlite"  # one kernel takes most of its time
HEADER = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", COMPUTE, MEMORY)
UNITS = ("", "", "", "", "", "%", "%")


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
    other = table(tmp_path / "other.csv", [("0", "7", name, size["block"], size["grid"], "1", "2")])
    with_limits = analyze(sample(OPENACC), others=[path, other])
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
    with pytest.raises(NotAnExportError, match="no table of ncu, which --with takes; write it with ncu --csv"):
        read_ncu(tmp_path / "text.csv")
    with pytest.raises(NotAnExportError, match="holds no kernel"):
        read_ncu(table(tmp_path / "empty.csv", []))
    with pytest.raises(NotFoundError):
        read_ncu(tmp_path / "missing.csv")


def test_trace_of_torch_profiler_is_one_line(traceview: Command) -> None:
    ran = traceview("analyze", sample(NSYS), "--no-html", "--with", sample("torch_profiler/serial.json.gz"))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "serial.json.gz: no table of ncu, which --with takes" in ran.err
