"""`traceview analyze`: files, output and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.command import Command
from traceview import analyze
from traceview.report.analysis import to_json
from traceview.report.analysis.terminal import render
from traceview.report.screen import Screen, width


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_page_is_written_beside_the_report(traceview: Command, report: Path) -> None:
    before = report.read_bytes()
    code, out, err = traceview("analyze", report)
    assert (code, err) == (0, "")
    assert names(report.parent) == ["report.overlap.html", "report.sqlite"]
    assert (report.parent / "report.overlap.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert report.read_bytes() == before
    assert out.startswith("report.sqlite · nsys 2024.2.3.38 · PyTorch training · NVIDIA H200\nPyTorch training, ")
    assert "\n  GPU 0 ███" in out and "\n1. " in out and "\n3. " in out
    page = f"Page: {report.parent / 'report.overlap.html'}"
    assert out.rstrip().endswith(page)
    assert [line for line in out.splitlines() if width(line) > 100 and line != page] == []
    assert out.count("\n") <= 20


def test_verbose_prints_everything(traceview: Command, report: Path) -> None:
    code, out, err = traceview("analyze", report, "--no-html", "-v")
    assert (code, err) == (0, "")
    assert out == render(analyze(report), Screen(100))
    for title in (
        "Further findings",
        "About this capture",
        "Copies on GPU 0",
        "Idle time of GPU 0",
        "Synchronizations",
    ):
        assert f"\n{title}" in out


def test_json_is_the_document(traceview: Command, report: Path) -> None:
    place = report.parent / "out.json"
    assert traceview("analyze", report, "--no-html", "--json", place, "--quiet") == (0, "", "")
    assert place.read_text(encoding="utf-8") == to_json(analyze(report))
    assert names(report.parent) == ["out.json", "report.sqlite"]


def test_json_on_standard_output(traceview: Command, report: Path) -> None:
    code, out, err = traceview("analyze", report, "--no-html", "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["schema_version"] == 1
    assert names(report.parent) == ["report.sqlite"]


def test_window_narrows_every_figure(traceview: Command, report: Path) -> None:
    whole = analyze(report).devices[0].window
    first, last = whole.start + 20_000_000, whole.start + 50_000_000
    for start, end in (("20ms", "50ms"), (str(first), str(last)), (f"@{first}ns", "0.05s")):
        out = traceview("analyze", report, "--no-html", "--json", "-", "--from", start, "--to", end).out
        device = json.loads(out)["devices"][0]
        assert device["window_ns"] == [first, last]
        assert device["busy_ns"] + device["idle_ns"] == last - first


def test_options_reach_the_analysis(traceview: Command, report: Path) -> None:
    result = traceview(
        *("analyze", report, "--no-html", "--json", "-", "--range", "forward", "--device", "0"),
        *("--iteration", "^iteration", "--skip", "2", "--top", "3"),
    )
    assert result.code == 0
    document = json.loads(result.out)
    assert document["iterations"]["skipped"] == 2
    assert all(len(device["gaps"]["longest"]) == 3 for device in document["devices"])


def test_condition_that_holds_exits_with_1_after_writing(traceview: Command, report: Path) -> None:
    place = report.parent / "out.json"
    code, out, err = traceview(
        *("analyze", report, "--json", place, "--quiet"),
        *(
            "--fail-if",
            "idle > 1%",
            "--fail-if",
            "devices.kernel_count < 5",
            "--fail-if",
            "iterations.wall_ns.p95 > 1us",
        ),
    )
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first.startswith("traceview: --fail-if idle > 1%: idle is ") and first.endswith(" on GPU 0")
    assert second.startswith("traceview: --fail-if iterations.wall_ns.p95 > 1us: iterations.wall_ns.p95 is ")
    assert names(report.parent) == ["out.json", "report.overlap.html", "report.sqlite"]


def test_condition_that_does_not_hold_exits_with_0(traceview: Command, report: Path) -> None:
    assert traceview("analyze", report, "--no-html", "-q", "--fail-if", "idle > 100%") == (0, "", "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--html", "{report}"], "must be different files"),
        (["--json", "{report}"], "must be different files"),
        (["--html", "{folder}/x", "--json", "{folder}/./x"], "must be different files"),
        (["--json", "{folder}/report.overlap.html"], "must be different files"),
        (["--json", "{folder}/link.sqlite"], "must be different files"),
        (["--json", "{folder}"], "is a folder"),
        (["--html", "{folder}/none/x.html"], "x.html: its folder does not exist"),
        (["--html", "-"], "--html needs a file name"),
        (["--html", "{folder}/x", "--no-html"], "does not go with --no-html"),
        (["--fail-if", "idel > 5%"], "has no figure idel; the nearest is idle"),
        (["--from", "noon"], "--from 'noon' is not a time"),
        (["--from", "2s", "--to", "1s"], "--from 2s --to 1s: that window is empty"),
        (["--range", "forward", "--to", "1s"], "--range and --from/--to narrow the same window"),
        (["--range", "nothing"], "report.sqlite: no range is called 'nothing'"),
        (["--device", "9"], "report.sqlite: no device is called '9'"),
        (["--iteration", "("], "is not a regular expression"),
        (["--skip", "5000"], "--skip 5000 leaves none of 20 iterations"),
        (["--skip", "-1"], "(see traceview analyze --help)"),
        (["--top", "0"], "(see traceview analyze --help)"),
        (["--nothing"], "No such option '--nothing'"),
        (["second.sqlite"], "unexpected extra argument"),
    ],
)
def test_invalid_options_are_one_line_and_write_nothing(
    traceview: Command, report: Path, options: list[str], reason: str
) -> None:
    before = report.read_bytes()
    (report.parent / "link.sqlite").symlink_to(report)
    given = [option.format(report=report, folder=report.parent) for option in options]
    code, out, err = traceview("analyze", report, *given)
    assert (code, out) == (2, "")
    assert err.startswith("traceview: error: ") and err.count("\n") == 1
    assert reason in err
    assert names(report.parent) == ["link.sqlite", "report.sqlite"]
    assert report.read_bytes() == before


def test_ranges_without_gpu_work(traceview: Command, tmp_path: Path) -> None:
    from tests.build_export import Nvtx, build_export

    path = build_export(tmp_path / "cpu.sqlite", nvtx=[Nvtx(100 * n, 100 * n + 60, f"step {n}") for n in range(4)])
    code, out, err = traceview("analyze", path, "-v")
    assert (code, err) == (0, "")
    assert "The capture has no GPU work" in out and "Iterations: 4 of 100 ns (range step #; confidence" in out
    assert names(tmp_path) == ["cpu.overlap.html", "cpu.sqlite"]
    code, _, err = traceview("analyze", path, "--device", "0")
    assert code == 2 and "no GPU work" in err


def test_file_name_that_is_not_utf8(traceview: Command, report: Path) -> None:
    odd = report.rename(report.parent / os.fsdecode(b"caf\xe9.sqlite"))
    code, out, _ = traceview("analyze", odd, "--json", report.parent / "out.json")
    assert code == 0 and out
    assert json.loads((report.parent / "out.json").read_text(encoding="utf-8"))["report"]["file"] == "caf?.sqlite"


def test_time_without_the_profiler_can_be_given(traceview: Command, report: Path) -> None:
    code, out, err = traceview("analyze", report, "--no-html", "--json", "-", "--unprofiled-ms", "9.7")
    assert (code, err) == (0, "")
    iterations = json.loads(out)["iterations"]
    assert iterations["unprofiled_ns"] == {"mean": 9_700_000, "low": 9_700_000, "high": 9_700_000}
    assert iterations["unprofiled_source"] == "given"
