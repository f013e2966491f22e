"""Real captures: held against plain SQL, against themselves, swapped, repeated, and against the text of yesterday."""

from __future__ import annotations

import json
import os
import re
import runpy
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.captures import ROOT, sample
from traceview import Analysis, Comparison, analyze, compare
from traceview.model.analysis import Iterations
from traceview.model.comparison import CaptureDifference
from traceview.report.comparison.document import to_json
from traceview.report.comparison.markdown import to_markdown
from traceview.report.comparison.terminal import render
from traceview.report.layout import width

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "serial_dual": ("serial", "dual"),
    "serial_dual_quad_ddp2_cudagraph": ("serial", "dual", "quad", "ddp2", "cudagraph"),
    "dual_ddp2": ("dual", "ddp2"),
    "dual_dual": ("dual", "dual"),
}
PAIRS = [("serial", "dual"), ("quad", "dual"), ("ddp2", "cudagraph"), ("dual", "ddp2")]


@lru_cache(maxsize=8)
def analysed(name: str) -> Analysis:
    return analyze(sample(f"{name}.sqlite"))


@lru_cache(maxsize=32)
def compared(*names: str, cut: str = "auto") -> Comparison:
    first, second, *more = (analysed(name) for name in names)
    return compare(first, second, *more, cut=cut)


def only(comparison: Comparison) -> CaptureDifference:
    (one,) = comparison.against
    return one


@pytest.mark.parametrize("cut", ["range", "gpu"])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_parts_add_up_to_the_difference(pair: tuple[str, str], cut: str) -> None:
    one = only(compared(*pair, cut=cut))
    assert sum(part.difference for part in one.parts) + one.left_over_ns == one.wall.difference
    assert one.idle.before >= 0 and one.idle.after >= 0
    for part in one.parts:
        assert part.name == "twice" or (part.before >= 0 and part.after >= 0), part


@pytest.mark.parametrize("pair", PAIRS)
def test_swapping_before_and_after_negates_every_difference(pair: tuple[str, str]) -> None:
    forth, back = only(compared(*pair)), only(compared(*reversed(pair)))
    for name, one in forth.figures().items():
        other = back.figures()[name]
        assert one.low is not None and one.high is not None
        assert (one.difference, one.low, one.high) == (-other.difference, -(other.high or 0), -(other.low or 0))
    assert {forth.verdict, back.verdict} in ({"faster", "slower"}, {"noise"})
    status = {"appeared": "vanished", "vanished": "appeared"}
    found = {kernel.name: kernel.status for kernel in forth.kernels}
    turned = {kernel.name: status.get(kernel.status, kernel.status) for kernel in back.kernels}
    assert {name for name, word in found.items() if word in status} == {
        name for name, word in turned.items() if word in status
    }


@pytest.mark.parametrize("name", ["serial", "dual", "quad", "ddp2", "cudagraph"])
def test_a_capture_against_itself_is_noise_without_differences(name: str) -> None:
    one = only(compared(name, name))
    assert one.verdict == "noise" and one.ratio == 1
    assert one.left_over_ns == 0
    for figure in one.figures().values():
        assert figure.difference == 0 and figure.verdict == "noise" and figure.low == -(figure.high or 0)
    assert all(kernel.status == "same" for kernel in one.kernels)


def test_a_repeated_capture_is_noise(tmp_path: Path) -> None:
    """The same iterations three times over: other counts, the same medians."""
    module: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "repeat_capture.py"), run_name="repeat")
    repeat: Callable[[Path, int, Path], None] = module["repeat_capture"]
    repeat(sample("dual.sqlite"), 3, tmp_path / "three.sqlite")
    found = compare(analysed("dual"), tmp_path / "three.sqlite")
    one = only(found)
    assert (found.base.count, one.capture.count) == (20, 60)
    assert one.verdict == "noise" and one.wall.difference == 0
    # More iterations, a narrower interval.
    itself = only(compared("dual", "dual")).wall
    assert (one.wall.high or 0) - (one.wall.low or 0) < (itself.high or 0) - (itself.low or 0)


@pytest.mark.parametrize("name", ["serial", "dual", "quad"])
def test_ranges_are_the_iterations_of_the_analysis(name: str) -> None:
    found = analysed(name).iterations
    assert isinstance(found, Iterations)
    one = only(compared(name, "serial", cut="range"))
    assert one.wall.before == found.wall_ns.median
    for part in one.parts:
        spread = found.spreads.get(f"{part.name.replace('.', '_')}_ns")
        assert spread is None or spread.median == part.before, part.name


def test_launches_kernels_and_synchronizations_are_those_of_plain_sql() -> None:
    """Iteration by iteration, from one start to the next, what the host's thread launched and waited for."""
    one = only(compared("serial", "dual", cut="range"))
    export = sqlite3.connect(f"{sample('serial.sqlite').as_uri()}?mode=ro", uri=True)
    ranges = export.execute(
        "select start, end, coalesce(text, value) from NVTX_EVENTS left join StringIds on id = textId "
        "where eventType in (59, 60) and coalesce(text, value) like '%iteration %' order by start"
    ).fetchall()
    edges = [start for start, _, _ in ranges] + [ranges[-1][1]]
    figures = {figure.name: figure for figure in one.host}

    def each(query: str) -> list[int]:
        count = f"select count(*) from ({query}) where start >= ? and start < ?"
        return [export.execute(count, pair).fetchone()[0] for pair in pairwise(edges)]

    runtime = "select r.start from CUPTI_ACTIVITY_KIND_RUNTIME r"
    launched = f"{runtime} join CUPTI_ACTIVITY_KIND_KERNEL k using (correlationId)"
    waits = f"{runtime} join StringIds on id = nameId where value like '%Synchronize%'"
    for name, query in (("kernels", launched), ("sync.count", waits)):
        expected = each(query)
        assert figures[name].before == int(median(expected)), name
        assert figures[name].mean_before == round(sum(expected) / len(expected), 3), name
    export.close()


def test_kernel_times_are_those_of_plain_sql() -> None:
    one = only(compared("serial", "dual", cut="range"))
    export = sqlite3.connect(f"{sample('serial.sqlite').as_uri()}?mode=ro", uri=True)
    rows = export.execute(
        "select value, k.start, k.end from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds on id = shortName"
    ).fetchall()
    export.close()
    starts = one_iteration_starts("serial")
    for kernel in one.kernels[:8]:
        sums = [
            sum(end - start for name, start, end in rows if name == kernel.name and first <= start < last)
            for first, last in starts
        ]
        ordered = sorted(sums)
        middle = ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]
        assert kernel.time.before == middle // 2, kernel.name


def one_iteration_starts(name: str) -> list[tuple[int, int]]:
    found = analysed(name).iterations
    assert isinstance(found, Iterations)
    return [(one.start_ns, one.end_ns) for one in found.per_iteration if not one.skipped]


def test_json_holds_every_figure_as_whole_ns() -> None:
    document = json.loads(to_json(compared("serial", "dual")))
    one = document["against"][0]
    assert one["verdict"] == "faster"
    assert (
        sum(part["difference_ns"] for part in one["parts"].values()) + one["left_over_ns"]
        == one["wall"]["difference_ns"]
    )
    for change in (one["wall"], one["idle"], *one["parts"].values()):
        assert all(isinstance(value, int) for key, value in change.items() if key.endswith("_ns")), change
        assert change["after_ns"] - change["before_ns"] == change["difference_ns"]
    assert len(document["base"]["wall_ns"]) == len(document["base"]["start_ns"]) == document["base"]["count"]
    assert to_json(compared("serial", "dual")) == to_json(compare(analysed("serial"), analysed("dual")))


@pytest.mark.parametrize("names", CASES.values(), ids=CASES)
def test_no_line_is_wider_than_80_columns(names: tuple[str, ...]) -> None:
    for text in (render(compared(*names)), render(compared(*names), top=100)):
        assert all(width(line) <= 80 for line in text.splitlines())
    assert render(compared(*names), unicode=False).isascii()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["txt", "md"])
def test_the_text_is_that_of_yesterday(case: str, form: str) -> None:
    """TRACEVIEW_GOLDEN=write writes it anew; read the difference before it is committed."""
    found = compared(*CASES[case])
    text = render(found) if form == "txt" else to_markdown(found, top=3)
    golden = GOLDEN / f"{case}.{form}"
    if os.environ.get("TRACEVIEW_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_markdown_tables_have_one_shape() -> None:
    for line in to_markdown(compared("serial", "dual")).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (4, 6, 7), line


def test_names_in_markdown_are_code_and_break_no_table() -> None:
    found = compared("serial", "dual")
    one = only(found)
    hostile = replace(one.kernels[0], name="a|b`c</details>@someone\n# d", status="changed")
    capture = replace(one.capture, file="`x|<b>`.sqlite")
    text = to_markdown(replace(found, against=(replace(one, kernels=(hostile,), capture=capture),)))
    (row,) = [line for line in text.splitlines() if "someone" in line]
    assert row.startswith(r"| `a\|b'c</details>@someone # d` | changed |")
    assert text.startswith("### `serial.sqlite` → `'x\\|<b>'.sqlite`: faster")


def test_an_analysis_of_one_gpu_is_compared_on_that_gpu() -> None:
    path = sample("ddp2.sqlite")
    narrowed = analyze(path, device="GPU 1")
    one = only(compare(narrowed, narrowed))
    assert one.wall.before > 0 and one.left_over_ns == 0 and len(one.capture.devices) == 1
    assert compare(path, path, device="GPU 1").against[0].wall == one.wall


def test_an_iteration_without_a_gpu_is_the_hosts_alone() -> None:
    """It was said to be copies on the device and memsets, all of it."""
    without = analyze(sample("mpi/ring_as_2022.4.sqlite"))
    same = compare(without, analyze(sample("mpi/ring_as_2024.2.sqlite")))
    parts = {part.name: part for part in only(same).parts if part.before or part.after}
    assert set(parts) == {"no_gpu"} and parts["no_gpu"].before == only(same).wall.before > 0
    assert same.cut_why == "iterations are the host's ranges: in no capture does each of them launch kernels"
    one = only(compare(without, analysed("trainer/serial")))
    parts = {part.name: part for part in one.parts}
    assert (parts["no_gpu"].before, parts["no_gpu"].after, parts["other"].before) == (one.wall.before, 0, 0)
    assert "host alone, no GPU" in render(same)
