"""Tests of compare() on real captures: plain SQL, equal, swapped and repeated captures, and golden texts."""

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
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import ROOT, analyzed, sample
from traceview import Analysis, Comparison, analyze, compare
from traceview.errors import RequestError
from traceview.model.comparison import CaptureDifference, KernelChange
from traceview.model.trace import Note
from traceview.model.units import plain
from traceview.report.comparison import to_json
from traceview.report.comparison.tables import part_words, shown_parts
from traceview.report.comparison.terminal import render, render_brief, to_markdown
from traceview.report.screen import MAX_LINES, Screen, width

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "serial_dual": ("serial", "dual"),
    "serial_dual_quad_ddp2_cudagraph": ("serial", "dual", "quad", "ddp2", "cudagraph"),
    "dual_ddp2": ("dual", "ddp2"),
    "dual_dual": ("dual", "dual"),
}
PAIRS = [("serial", "dual"), ("quad", "dual"), ("ddp2", "cudagraph"), ("dual", "ddp2")]


def analyze_sample(name: str) -> Analysis:
    return analyzed(sample(f"{name}.sqlite"))


@lru_cache(maxsize=32)
def compare_samples(*names: str) -> Comparison:
    first, second, *more = (analyze_sample(name) for name in names)
    return compare(first, second, *more)


def only(comparison: Comparison) -> CaptureDifference:
    (against,) = comparison.against
    return against


@pytest.mark.parametrize("pair", PAIRS)
def test_parts_add_up_to_the_difference(pair: tuple[str, str]) -> None:
    against = only(compare_samples(*pair))
    assert sum(part.difference for part in against.mean_parts) == against.time.difference
    for part in against.mean_parts:
        assert part.name == "twice" or (part.before >= 0 and part.after >= 0), part


def identity(kernel: KernelChange) -> tuple[object, ...]:
    return kernel.name, kernel.label, kernel.grid, kernel.block


@pytest.mark.parametrize("pair", PAIRS)
def test_swapping_negates_every_difference(pair: tuple[str, str]) -> None:
    forth, back = only(compare_samples(*pair)), only(compare_samples(*reversed(pair)))
    for name, change in forth.figures().items():
        other = back.figures()[name]
        assert change.low is not None and change.high is not None
        assert change.difference == -other.difference
        assert (change.low, change.high) == (-(other.high or 0), -(other.low or 0))
    assert forth.ratio_low is not None and back.ratio_high is not None
    assert forth.ratio_low == pytest.approx(1 / back.ratio_high)
    assert {forth.verdict, back.verdict} in ({"faster", "slower"}, {"noise"})
    status = {"appeared": "vanished", "vanished": "appeared"}
    turned = {identity(kernel): status.get(kernel.status, kernel.status) for kernel in back.kernels}
    assert {(identity(kernel), kernel.status) for kernel in forth.kernels if kernel.status in status} == {
        (key, word) for key, word in turned.items() if word in status
    }


@pytest.mark.parametrize("name", ["serial", "dual", "quad", "ddp2", "cudagraph"])
def test_equal_captures_are_noise(name: str) -> None:
    against = only(compare_samples(name, name))
    assert against.verdict == "noise" and against.ratio == 1
    for figure in against.figures().values():
        assert figure.difference == 0 and figure.verdict == "noise" and figure.low == -(figure.high or 0)
    assert all(kernel.status == "same" for kernel in against.kernels)


def test_repeated_capture_is_noise(tmp_path: Path) -> None:
    """Compare a capture with three copies of its iterations and the pauses between: other counts, equal kernels."""
    module: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "repeat_capture.py"), run_name="repeat")
    repeat: Callable[[Path, int, Path], None] = module["repeat_capture"]
    repeat(sample("dual.sqlite"), 3, tmp_path / "three.sqlite")
    comparison = compare(analyze_sample("dual"), tmp_path / "three.sqlite")
    against = only(comparison)
    assert (comparison.base.count, against.capture.count) == (20, 60)
    assert against.verdict == "noise" and all(kernel.status == "same" for kernel in against.kernels)


def test_launches_and_synchronizations_match_sql() -> None:
    """Count kernels and waits from the start of each iteration to the start of the next."""
    against = only(compare_samples("serial", "dual"))
    export = sqlite3.connect(f"{sample('serial.sqlite').as_uri()}?mode=ro", uri=True)
    ranges = export.execute(
        "select start, end, coalesce(text, value) from NVTX_EVENTS left join StringIds on id = textId "
        "where eventType in (59, 60) and coalesce(text, value) like '%iteration %' order by start"
    ).fetchall()
    edges = [start for start, _, _ in ranges] + [ranges[-1][1]]
    figures = {figure.name: figure for figure in against.host}

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


def test_json_figures_are_whole_ns() -> None:
    document = json.loads(to_json(compare_samples("serial", "dual")))
    against = document["against"][0]
    assert against["verdict"] == "faster"
    assert sum(part["difference_ns"] for part in against["mean_parts"].values()) == against["time"]["difference_ns"]
    for change in (against["time"], *against["mean_parts"].values()):
        assert all(isinstance(value, int) for key, value in change.items() if key.endswith("_ns")), change
        assert change["after_ns"] - change["before_ns"] == change["difference_ns"]
    assert len(document["base"]["wall_ns"]) == len(document["base"]["start_ns"]) == document["base"]["count"]
    again = compare(analyze_sample("serial"), analyze_sample("dual"))
    assert to_json(compare_samples("serial", "dual")) == to_json(again)


def test_wide_terminals_have_whole_names() -> None:
    comparison = compare_samples("dual", "cudagraph")
    name = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT"
    assert [name in render(comparison, Screen(columns)) for columns in (80, 160)] == [False, True]


@pytest.mark.parametrize("names", CASES.values(), ids=CASES)
def test_lines_fit_the_terminal(names: tuple[str, ...]) -> None:
    for columns in (80, 160):
        text = render(compare_samples(*names), Screen(columns), top=100)
        assert all(width(line) <= columns for line in text.splitlines())
    assert render(compare_samples(*names), Screen(unicode=False)).isascii()


@pytest.mark.parametrize("names", CASES.values(), ids=CASES)
def test_brief_holds_verdicts_and_the_largest_part(names: tuple[str, ...]) -> None:
    comparison = compare_samples(*names)
    text = render_brief(comparison)
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES and all(width(line) <= 80 for line in lines)
    assert all(against.verdict in text.lower() for against in comparison.against)
    assert lines[-1].startswith("  More with -v: ") and "The host" not in text
    if len(comparison.against) == 1:
        assert part_words(shown_parts(comparison.against[0])[0].name) in text and "= time" in text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["txt", "md"])
def test_golden_texts(case: str, form: str) -> None:
    """Compare with the golden files. TRACEVIEW_GOLDEN=write updates them; review the difference before committing."""
    comparison = compare_samples(*CASES[case])
    text = render(comparison) if form == "txt" else to_markdown(comparison, top=3)
    golden = GOLDEN / f"{case}.{form}"
    if os.environ.get("TRACEVIEW_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_markdown_tables_have_equal_columns() -> None:
    for line in to_markdown(compare_samples("serial", "dual")).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (5, 7, 8), line


WORDS = ("https:", "HTTP:", "//", "www", ".", "a", "@", "#", "1", "`", "<", " ", "mailto:", "GH-", "throughput")


@given(st.lists(st.sampled_from(WORDS)))
def test_sentences_in_markdown_have_no_links(words: list[str]) -> None:
    """A note with the address of a page became a link in the comment on a pull request."""
    comparison = compare_samples("serial", "dual")
    note = "".join(words)
    written = to_markdown(replace(comparison, notes=(Note("n", note),))).splitlines()[-1]
    links = re.compile(r"(?i)https?:|www\.|mailto:|@\w|#\d|\bGH-\d")
    assert not links.search(written.replace("\\", ""))
    assert written.replace("<!-- -->", "").replace("\\", "").strip("- ") == plain(note, 2000).strip("- ")


def test_names_in_markdown_are_escaped() -> None:
    comparison = compare_samples("serial", "dual")
    against = only(comparison)
    hostile = replace(against.kernels[0], label="a|b`c</details>@someone\n# d", grid=None, status="changed")
    capture = replace(against.capture, file="`x|<b>`.sqlite")
    text = to_markdown(replace(comparison, against=(replace(against, kernels=(hostile,), capture=capture),)))
    (row,) = [line for line in text.splitlines() if "someone" in line]
    assert row.startswith(r"| `a\|b'c</details>@someone # d` | changed |")
    assert text.startswith("### `serial.sqlite` → `'x\\|<b>'.sqlite`: faster")


def test_analysis_of_one_gpu() -> None:
    path = sample("ddp2.sqlite")
    narrowed = analyze(path, device="GPU 1")
    against = only(compare(narrowed, narrowed))
    assert against.time.before > 0 and len(against.capture.devices) == 1
    assert compare(path, path, device="GPU 1").against[0].time == against.time


def test_iterations_without_gpu_are_host_time() -> None:
    """A regression: all of the time used to count as copies on the device and memsets."""
    without = analyzed(sample("mpi/ring_as_2022.4.sqlite"))
    same = compare(without, analyzed(sample("mpi/ring_as_2024.2.sqlite")))
    parts = {part.name: part for part in only(same).mean_parts if part.before or part.after}
    assert set(parts) == {"no_gpu"} and parts["no_gpu"].before == only(same).time.before > 0
    against = only(compare(without, analyze_sample("trainer/serial")))
    parts = {part.name: part for part in against.mean_parts}
    assert (parts["no_gpu"].before, parts["no_gpu"].after, parts["other"].before) == (against.time.before, 0, 0)
    assert "host only, no GPU" in render(same)


def test_profiler_that_costs_more_in_one_capture_is_noted() -> None:
    compared = compare(sample("serial.sqlite"), sample("dual.sqlite"), unprofiled_ns=[26_000_000, 9_700_000])
    base, against = compared.base, compared.against[0]
    assert base.unprofiled_ns == {"mean": 26_000_000, "low": 26_000_000, "high": 26_000_000}
    assert against.unprofiled_ratio == pytest.approx(9.7 / 26)
    note = next(note for note in compared.notes if note.id == "profiler_cost")
    assert "about 28.9% less in dual.sqlite, 13.6% less in serial.sqlite" in note.text
    alike = compare(sample("serial.sqlite"), sample("dual.sqlite"), costs=None)
    assert alike.against[0].unprofiled_ratio is None
    assert all(note.id != "profiler_cost" for note in alike.notes)
    with pytest.raises(RequestError, match="1 times without the profiler for 2 captures"):
        compare(sample("serial.sqlite"), sample("dual.sqlite"), unprofiled_ns=[1])
