"""The summary: its first lines, and names that could break 80 columns or a terminal."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import ALL, analyzed, sample, shared
from tests.report.made_analysis import MS, bare_analysis, exposed_causes, made_analysis
from traceview.model.findings import NO_GAIN
from traceview.model.rows import CommunicationOverlap
from traceview.model.trace import Note, Window
from traceview.report.analysis.answer import finding_lists
from traceview.report.analysis.terminal import BAR, render
from traceview.report.screen import Screen, width


def test_first_lines_show_the_parts_of_the_time() -> None:
    lines = render(made_analysis()).splitlines()
    assert lines[0] == "report.sqlite · nsys 2024.2.3 · CUDA"
    first = " ".join(" ".join(lines[1:4]).split())
    assert first.startswith("CUDA, 3.00 ms an iteration: 60% is compute and 9% finding 0. Iteration: 3.00 ms")
    device = lines.index("GPU 0 · NVIDIA H200 · 100 ms from first to last GPU work")
    assert lines[device + 1].strip() == "█" * 36 + "▓" * 6 + "▒" * 3 + "░" * 15
    shares = [line.split()[-1] for line in lines[device + 2 : device + 6]]
    assert shares == ["60.0%", "10.0%", "5.0%", "25.0%"]


def test_bars_cover_the_steady_part_or_the_window() -> None:
    analysis = made_analysis()
    steady = replace(analysis.devices[0].steady, window=Window(0, 40 * MS), compute_ns=30 * MS, busy_ns=32 * MS)
    none = steady.tables["communication"].with_rows(
        (CommunicationOverlap(0, 0, 0, 0, exposed_causes(), 0, *[None] * 5),)
    )
    idle = replace(steady, idle_ns=8 * MS, tables=steady.tables | {"communication": none})
    note = Note("start_up", "Start-up takes 60.0 ms of the run of 100 ms. It is not shown; --whole includes it")
    analysis = replace(analysis, devices=(replace(analysis.devices[0], steady=idle),), notes=(note,))
    text = render(analysis)
    assert "Gains are of 3.00 ms" in text
    assert "40.0 ms in the counted iterations" in text
    assert text.count("Start-up takes 60.0 ms") == 1 and "About this capture" not in text
    text = render(replace(analysis, whole=True, notes=()))
    assert "100 ms from first to last GPU work" in text


def test_tables_cover_what_the_bars_cover() -> None:
    steady = analyzed(sample("ddp2.sqlite"), device="GPU 0")
    (device,) = steady.devices
    for analysis, part in ((steady, device.steady), (replace(steady, whole=True), device)):
        text = render(analysis)
        assert ("Streams, calls and ranges cover the whole window" in text) == (not analysis.whole)
        copies, kernel = part.copies[0], part.tables["kernels"].rows[0]
        assert re.search(rf"{copies.label} +{copies.count} ", text)
        assert re.search(rf"{kernel.label[:12]}\S+ +{100 * kernel.share:.1f}% +\S+ ms +{kernel.count} ", text)


def test_tables_have_lengths_of_their_own() -> None:
    analysis = analyzed(sample("dual.sqlite"))
    assert "Kernels on GPU 0 (first 5 of 7" in render(analysis)
    assert "Kernels on GPU 0 (first 10 of 7" in render(analysis, top=10)


def test_second_device_refers_to_the_remedy_of_the_first() -> None:
    analysis = made_analysis(findings=2)
    twice = replace(analysis.findings[0], device="GPU 1", cost_ns=1)
    text = render(replace(analysis, findings=(*analysis.findings, twice)))
    assert "   The remedy is the same as for 1.\n" in text and text.count("change number 0") == 1


def test_notes_are_short_in_the_summary() -> None:
    notes = (Note("a", "Two of 3 ranges at 1.5 GB/s are lost. Capture again."), Note("b", "one line"))
    text = render(replace(made_analysis(), notes=notes))
    assert "About this capture\n  - Two of 3 ranges at 1.5 GB/s are lost.\n  - one line\n" in text


def test_three_findings_in_full_and_the_others_in_a_line() -> None:
    text = render(made_analysis(findings=5))
    assert "1. finding number 0\n   medium: at most 9.0%; it cost 9.00 ms, 1.23 µs per iteration\n" in text
    assert text.count("change number") == 3
    assert "     6.00 ms  finding number 3\n     5.00 ms  finding number 4\n" in text


@pytest.mark.parametrize(("claims", "share"), [("waiting", 0.1), ("compute", 0.3)])
def test_large_costs_of_unknown_gain_are_listed(claims: str, share: float) -> None:
    """The answer names them (`llama_fsdp_forward` of round 12: a collective that waits takes half of the run)."""
    analysis = made_analysis(findings=3)
    first, *others = analysis.findings
    unknown = [replace(each, gain=NO_GAIN, unprofiled_cost_fraction=None, claims=claims) for each in others]
    large, small = replace(unknown[0], cost_fraction=0.5), replace(unknown[1], cost_fraction=share)
    lists = finding_lists(replace(analysis, findings=(first, large, small)))
    assert [[each.title for each in findings] for findings in lists.values()] == [
        [first.title, large.title],
        [small.title],
    ]


@pytest.mark.parametrize(("fraction", "place"), [(0.2, None), (0.4, 2), (0.6, 1)])
def test_kernels_of_unknown_gain_are_listed_by_their_share(fraction: float, place: int | None) -> None:
    """From half of the time on they keep their place, from a third on they are last, and less is folded."""
    analysis = made_analysis(findings=3)
    first, second, third = analysis.findings
    kernel = replace(second, gain=NO_GAIN, claims="compute", cost_fraction=fraction, severity="low")
    lists = finding_lists(replace(analysis, findings=(first, kernel, third)))
    shown = [each.title for each in next(iter(lists.values()))]
    assert (shown.index(kernel.title) if kernel.title in shown else None) == place


def test_top_limits_the_lists() -> None:
    text = render(made_analysis(findings=9), top=4)
    assert "and 4 more in the page and the JSON" in text  # each list shows one finding below the first three
    assert "NVTX ranges (GPU projection) (first 4 of 12)" in text
    assert "range 3" in text and "range 4" not in text


def test_devices_are_named_if_there_are_several() -> None:
    assert "[GPU 0]" not in render(made_analysis(devices=1))
    assert "1. finding number 0 [GPU 0]" in render(made_analysis(devices=2))


def test_narrowed_analysis_names_its_window() -> None:
    whole = made_analysis()
    text = render(replace(whole, trace=whole.trace.with_window(Window(0, 100))))
    assert "100 ms in the chosen window" in text
    assert "of the run" not in text


def test_missing_figures_are_named() -> None:
    text = render(bare_analysis())
    assert "No findings: no known problem cost GPU time." in text
    assert "Synchronizations" not in text
    assert "About this capture\n  - no NVTX ranges\n  - no iterations\n" in text
    assert "Iterations:" not in text and "Idle time of GPU 0" not in text


def test_long_code_stays_valid() -> None:
    text = render(made_analysis(findings=1))
    assert (
        "       # faster\n"
        "       model = torch.compile(model, mode='reduce-overhead', options={'number': \\\n"
        "           0})\n"
    ) in text


@pytest.mark.parametrize(
    "names",
    ["x" * 500, " two words" * 90, "核" * 300, "\033[31m\x07\r\n\t\u202e", "e\u0301" * 200, "`{}%s\\"],
    ids=["long", "many", "wide", "control", "combining", "odd"],
)
def test_names_do_not_break_the_columns(names: str) -> None:
    _assert_fits(render(made_analysis(names, findings=12, devices=2), top=20))


@given(st.text(max_size=200))
def test_texts_do_not_break_the_columns(names: str) -> None:
    _assert_fits(render(made_analysis(names)))


def _assert_fits(text: str, columns: int = 80) -> None:
    assert [line for line in text.split("\n") if width(line) > columns] == []
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_ascii_has_the_same_figures() -> None:
    analysis = made_analysis("核µ")
    text = render(analysis, Screen(unicode=False))
    assert text.isascii()
    assert re.findall(r"\d+\.\d+", text) == re.findall(r"\d+\.\d+", render(analysis))
    assert "#" * 36 + "C" * 6 + "c" * 3 + "." * 15 in text


@pytest.mark.parametrize("name", ALL)
def test_summaries_of_captures_fit_their_columns(name: str) -> None:
    analysis = analyzed(shared(name))
    narrow = render(analysis, Screen(40))
    _assert_fits(narrow, 40)
    assert not re.search(r"^ *[a-z]\n *[a-z]$", narrow, re.MULTILINE), "no column of single letters"
    text = render(analysis)
    _assert_fits(text)
    bars = re.findall(r"^  ([█▓▒▞░·]{2,})$", text, re.MULTILINE)
    assert [len(bar) for bar in bars] == [BAR] * len(analysis.devices)
