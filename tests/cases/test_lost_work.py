"""GPU work that the profiler lost: steps stay the ranges, intact ones count, and the answer begins with the loss."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.cases.made import analyzed_case, case, iterations
from tests.cli.command import Command
from traceview.captures.info import describe
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.composition import composition
from traceview.model.trace import Trust
from traceview.pipeline import analyze, open_trace
from traceview.ranks.measure_report import measure_trace
from traceview.replay.prediction import predict, whatif
from traceview.report.analysis import document


@pytest.mark.parametrize(
    ("kind", "name", "first_words", "counted", "lost", "apart", "step_ms"),
    [
        ("torch", "steps_without_gpu", "80.0% of the launches", 2, 8, 0, 32.0),
        ("torch", "steps_without_gpu_plain", "80.0% of the launches", 2, 8, 0, 32.0),
        ("torch", "steps_without_gpu_middle", "60.0% of the launches", 2, 6, 2, 28.0),
        ("torch", "lost_at_start", "21.5% of the launches", 7, 3, 0, 28.6),
        ("nsys", "lost_middle", "50.0% of the launches", 3, 5, 2, 26.2),
        ("nsys", "lost_end", "70.0% of the launches", 3, 7, 0, 26.2),
    ],
)
def test_intact_steps_count_and_the_answer_begins_with_the_loss(
    kind: str, name: str, first_words: str, counted: int, lost: int, apart: int, step_ms: float
) -> None:
    """The steps are ranges; their time is that of the intact ones that follow each other."""
    analysis = analyzed_case(kind, name)
    steps = iterations(analysis)
    assert (steps.range, steps.counted, steps.lost, steps.apart) == ("iteration #", counted, lost, apart)
    assert steps.time_ns / 1e6 == pytest.approx(step_ms, abs=0.05)
    assert not steps.kinds
    assert analysis.answer.text.startswith(f"{first_words} have no GPU work in the capture: {lost} of 10 iterations")
    assert analysis.info.trust.verdict == "doubtful"


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("kind", "name"), [("torch", "steps_without_gpu_middle"), ("nsys", "lost_middle")])
def test_no_finding_lies_in_a_hole(kind: str, name: str, whole: bool) -> None:
    """Neither in the counted steps nor in the whole window, where idle time has holes."""
    analysis = analyze(case(kind, name), whole=True) if whole else analyzed_case(kind, name)
    assert analysis.holes
    assert analysis.findings
    claimed = sum(finding.cost_ns for finding in analysis.findings if finding.claims != "compute")
    (device,) = analysis.devices
    window = analysis.covered(device).window
    inside = sum(hole.within(window).length for hole in analysis.holes)
    assert claimed <= window.length - inside
    for finding in analysis.findings:
        for place in finding.evidence:
            middle = (place.start_ns + place.end_ns) // 2
            assert not any(hole.start <= middle < hole.end for hole in analysis.holes), finding.title


def test_json_has_the_verdict() -> None:
    """`report.trust`, whose holes have the times of the steps without work."""
    trust = document(analyzed_case("nsys", "lost_middle"))["report"]["trust"]
    assert trust["lost_fraction"] == pytest.approx(0.5, abs=0.001)
    (hole,) = trust["holes"]
    assert 5 * 25e6 < hole["end_ns"] - hole["start_ns"] < 5 * 28e6
    intact = document(analyzed_case("nsys", "base_serial"))["report"]["trust"]
    assert intact == {
        **{name: intact[name] for name in ("events", "clock", "driver")},
        **dict.fromkeys(("left_out", "cut", "doubled", "lost_fraction"), 0),
        "verdict": "sound",
        "holes": [],
        "failed": "",
        "unread_tables": [],
    }
    assert intact["clock"] == "agrees"


def _nothing_is_predicted(analysis: Analysis) -> bool:
    steps = iterations(analysis)
    return steps.unprofiled is None and all(finding.gain.source != "predicted" for finding in analysis.findings)


def test_nothing_is_predicted_where_all_launches_lack_their_work() -> None:
    """The kernels are in a table of another version, which the answer names."""
    analysis = analyzed_case("nsys", "kernel_v3")
    assert _nothing_is_predicted(analysis)
    assert not analysis.findings
    assert isinstance(whatif(analysis), NotMeasured)
    with pytest.raises(RequestError, match="no launch has its GPU work in the capture"):
        predict(analysis, ["graph"])
    text = analysis.answer.text
    assert text.startswith("None of the 6,000 launches has GPU work in the capture")
    assert "The table CUPTI_ACTIVITY_KIND_KERNEL_V3 has rows that are not read." in text
    assert "would" not in text


def test_table_of_another_version_is_named() -> None:
    """Ranges that are not read: the launches show the steps."""
    analysis = analyzed_case("nsys", "nvtx_v2")
    (note,) = [note for note in analysis.notes if note.id == "unread_table"]
    assert note.text.startswith("NVTX_EVENTS_V2 has rows and is ignored")
    assert analysis.info.trust.unread_tables == ("NVTX_EVENTS_V2",)
    assert iterations(analysis).counted == 20


@pytest.mark.parametrize(
    ("kind", "name", "verdict", "evidence"),
    [
        ("nsys", "base_serial", "sound", "all 2,790 launches have GPU work"),
        ("nsys", "dur_overflow", "mended", "3 rows of GPU work are cut"),
        ("nsys", "lost_end", "doubtful", "70.0% of 2,790 launches lack their GPU work"),
        ("nsys", "kernel_v3", "doubtful", "not read: CUPTI_ACTIVITY_KIND_KERNEL_V3"),
        ("torch", "duplicates", "mended", "642 rows are doubled"),
    ],
)
def test_info_prints_the_verdict(traceview: Command, kind: str, name: str, verdict: str, evidence: str) -> None:
    """With what it rests on, in the second line."""
    text = " ".join(traceview("info", case(kind, name)).out.split())
    assert f" verdict {verdict}: " in text
    assert evidence in text
    stated = describe(case(kind, name)).verdict
    assert stated.startswith(f"{verdict}: ") and evidence in stated


def test_random_loss_is_stated_and_all_steps_count() -> None:
    """A third of the kernels of each step has no valid time: no step has more than the others."""
    analysis = analyzed_case("torch", "ts_zero")
    assert (iterations(analysis).counted, iterations(analysis).lost) == (10, 0)
    assert analysis.answer.text.startswith("35.8% of the launches have no GPU work in the capture. ")
    assert analysis.info.trust.left_out == 1000


def test_fleet_counts_steps_with_work() -> None:
    """The steps of a rank are those that analyze counts, and a note counts the others."""
    result = measure_trace(open_trace(case("nsys", "lost_middle")))
    assert "5 of 10 iterations lack GPU work" in result.notes
    (rank,) = result.ranks
    assert rank.steps is not None
    assert 2 <= len(rank.steps.number) <= iterations(analyzed_case("nsys", "lost_middle")).count


def test_idle_time_has_no_cause_where_most_calls_are_lost() -> None:
    """A made verdict on a real capture."""
    analysis = analyzed_case("nsys", "base_serial")
    (device,) = analysis.devices
    before = composition(analysis, device)
    after = composition(replace(analysis, info=replace(analysis.info, trust=Trust(unrecorded=1000))), device)
    assert before.idle["host"]
    assert {cause for cause, ns in after.idle.items() if ns} == {"unknown"} and after.idle_ns == before.idle_ns


def test_table_of_another_version_in_a_folder_is_named(tmp_path: Path) -> None:
    """As `nsys export --type parquetdir` writes it."""
    with closing(sqlite3.connect(case("nsys", "kernel_v3"))) as connection:
        for table in ("StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL_V3"):
            cursor = connection.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            rows = pl.DataFrame(cursor.fetchall(), schema=names, orient="row", infer_schema_length=None)
            rows.write_parquet(tmp_path / f"{table}.parquet")
    trust = open_trace(tmp_path).info.trust
    assert trust.unread_tables == ("CUPTI_ACTIVITY_KIND_KERNEL_V3",)
    assert trust.lost_everything
