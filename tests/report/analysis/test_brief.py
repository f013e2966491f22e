"""The summary without --verbose: 20 lines that hold the answer, bars, up to five findings with a remedy, and doubts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import ALL, analyzed, sample, shared
from tests.report.made_analysis import GAIN, MS, bare_analysis, made_analysis
from traceview.model.findings import Answer, Gain
from traceview.model.trace import Note
from traceview.report.analysis.terminal import brief_lines, render_brief
from traceview.report.screen import PAGE_LINES, Screen, width


def assert_fits(text: str, columns: int = 80) -> None:
    lines = text.splitlines()
    assert len(lines) <= brief_lines(columns) - PAGE_LINES
    assert [line for line in lines if width(line) > columns] == []
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_first_lines() -> None:
    analysis = replace(made_analysis(findings=2), answer=Answer("CUDA, 3.00 ms an iteration.", "", GAIN))
    lines = render_brief(analysis, Screen(100)).splitlines()
    assert lines[:2] == ["report.sqlite · nsys 2024.2.3 · CUDA · NVIDIA H200", analysis.answer.text]
    assert lines[2].startswith("  3 iterations (iteration #, 1 skipped) · GPU 0")
    del lines[3 : next(at for at, line in enumerate(lines) if "█" in line) - 1]  # the rest of the sentence
    bar = re.sub(r"[^█▓▒░]", "", lines[4])
    assert bar == "█" * 34 + "▓" * 5 + "▒" * 3 + "░" * 14 and "100 ms from first to last GPU work" in lines[4]
    assert lines[5] == "  █ compute 60.0%  ▓ exposed communication 10.0%  ▒ exposed copies 5.0%  ░ idle 25.0%"
    assert lines[6] == "  Idle: 20.0% host in the launch call, 5.0% host code outside CUDA"


def test_findings_that_fit_whole_with_their_remedy() -> None:
    analysis = made_analysis(findings=7)
    gain = Gain(17 * MS, 16 * MS, 18 * MS, "predicted", "", 28 * MS)
    first = replace(analysis.findings[0], remedy="Pin the memory.", gain=gain)
    text = render_brief(replace(analysis, findings=(first, *analysis.findings[1:])), Screen(100))
    assert "1. -60.7% (10.0 to 12.0 ms): finding number 0 → Pin the memory\n" in text
    assert "2. at most 8.0%: finding number 1 → change number 1; and do it well, " in text
    shown = len(re.findall(r": finding number", text))
    assert 3 <= shown < 5 and f"More with -v: {7 - shown} more findings" in text
    assert text.endswith("; all: page, --json\n")
    assert "2. at most" in render_brief(analysis, top=2) and "3. at most" not in render_brief(analysis, top=2)


def test_devices_have_a_bar_each() -> None:
    text = render_brief(made_analysis(devices=6), Screen(100))
    assert [line.split()[0:2] for line in text.splitlines() if "█" in line and "compute" in line][:4] == [
        ["GPU", str(device)] for device in range(4)
    ]
    assert "  and 2 more GPUs: -v" in text and text.count("60.0% compute") == 4
    assert "█ compute  ▓ exposed communication  ▒ exposed copies  ░ idle" in text
    assert_fits(text, 100)


def test_processes_that_may_share_a_gpu_are_not_counted_as_gpus() -> None:
    """Both see GPU 0, and the export has no table of the physical GPU (`streamer` and `tealeaf` of round 16)."""
    analysis = made_analysis(devices=2)
    shared = tuple(replace(use, id=f"GPU 0 (process {at})") for at, use in enumerate(analysis.devices))
    first, *_ = render_brief(replace(analysis, devices=shared), Screen(100)).splitlines()
    assert first.endswith(" · NVIDIA H200")
    assert render_brief(analysis, Screen(100)).splitlines()[0].endswith(" · 2 x NVIDIA H200")


def test_only_notes_that_matter_are_shown() -> None:
    notes = (
        Note("no_nvtx", "no NVTX ranges: put some", ("nvtx",)),
        Note("start_up", "Start-up: 60.0 ms before the first counted iteration"),
        Note("lost_launches", "3 of 9 launches are lost. Capture fewer steps.", ("idle",)),
    )
    text = render_brief(replace(made_analysis(findings=1), notes=notes))
    assert "  Note: 3 of 9 launches are lost.\n  Note: Start-up: 60.0 ms" in text
    assert "no NVTX ranges" not in text and "3 notes" in text


def test_missing_figures_do_not_matter() -> None:
    text = render_brief(bare_analysis())
    assert "No findings: no known problem cost GPU time." in text
    assert_fits(text)


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize("names", ["x" * 500, " two words" * 90, "核" * 300, "\033[31m\x07\r\n\t\u202e", "`{}%s\\"])
def test_names_do_not_break_the_lines(names: str, columns: int) -> None:
    assert_fits(render_brief(made_analysis(names, findings=12, devices=3), Screen(columns)), columns)


@given(st.text(max_size=200))
def test_texts_do_not_break_the_lines(names: str) -> None:
    assert_fits(render_brief(made_analysis(names)))


def test_documented_summary() -> None:
    page = (Path(__file__).parents[3] / "docs/analyze.md").read_text(encoding="utf-8")
    shown = page.partition("`traceview analyze samples/serial.sqlite`:\n\n")[2].partition("    ...\n")[0]
    assert len(shown) > 500
    text = render_brief(analyzed(sample("serial.sqlite")), Screen(100))
    assert masked(text).startswith(masked(dedent(shown)))


def masked(text: str) -> str:
    """Return a summary without its figures and the lengths of its bars, which models and rounding change."""
    return " ".join(re.sub(r"[█▓▒▞░]+", "█", re.sub(r"\d[\d.,]*", "#", text)).split())


@pytest.mark.parametrize("name", ALL)
def test_captures_fit(name: str) -> None:
    analysis = analyzed(shared(name))
    for columns in (40, 60, 80, 100):
        text = render_brief(analysis, Screen(columns))
        assert_fits(text, columns)
        numbers = re.findall(r"^(\d)\. ", text, re.MULTILINE)
        large = [finding for finding in analysis.findings[1:] if finding.severity != "low"]
        assert len(numbers) >= min(columns // 33, len(analysis.findings[:1]) + len(large)), (
            "the first findings are shown"
        )
        assert f"{len(analysis.notes)} note" in " ".join(text.split()) or not analysis.notes
