"""Variants of real captures: each is recognised, or the analysis says what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import variants
from tests.captures import SAMPLES, analyzed
from traceview.model.analysis import Analysis, Iterations
from traceview.pipeline import analyze

DUAL, DDP = SAMPLES / "dual.sqlite", SAMPLES / "ddp2.sqlite"


def iterations(analysis: Analysis) -> Iterations:
    assert isinstance(analysis.iterations, Iterations)
    return analysis.iterations


def note_ids(analysis: Analysis) -> set[str]:
    return {note.id for note in analysis.notes}


def test_without_ranges_launches_give_the_iterations(tmp_path: Path) -> None:
    known, base = iterations(analyze(variants.without_ranges(DUAL, tmp_path))), iterations(analyzed(DUAL))
    assert known.source == "period" and abs(known.count - base.count) <= 1
    assert abs(known.time_ns / base.time_ns - 1) < 0.02


def test_stall_is_a_kind_of_its_own(tmp_path: Path) -> None:
    base = iterations(analyzed(DUAL))
    step = base.per_iteration[12]
    stalled = iterations(analyze(variants.with_stall(DUAL, tmp_path, (step.start_ns + step.end_ns) // 2, 300_000_000)))
    alone = [kind for kind in stalled.kinds if kind.count == 1]
    assert [kind.time_ns.median // 1_000_000 for kind in alone] == [(step.wall_ns + 300_000_000) // 1_000_000]


def test_two_phases_are_two_kinds(tmp_path: Path) -> None:
    joined, base = iterations(analyze(variants.with_slower_phase(DUAL, tmp_path, 3))), iterations(analyzed(DUAL))
    assert joined.count == 2 * base.count and len(joined.kinds) >= 2
    counts = sorted(kind.count for kind in joined.kinds)
    assert counts[-2:] == [base.count, base.count]


def test_second_process_uses_the_same_gpu(tmp_path: Path) -> None:
    (device,) = analyze(variants.with_second_process(DUAL, tmp_path)).devices
    assert set(device.process_ids) == {*analyzed(DUAL).devices[0].process_ids, variants.OTHER_PID}


@pytest.mark.parametrize("ns", (30_000_000, -30_000_000))
def test_moved_clock_is_corrected(tmp_path: Path, ns: int) -> None:
    moved, base = analyze(variants.with_moved_clock(DDP, tmp_path, 1, ns)), analyzed(DDP)
    row = moved.trace.devices.row(moved.devices[1].device, named=True)
    assert row["clock_low"] <= ns <= row["clock_high"] and "clock_corrected" in note_ids(moved)
    assert [finding.id for finding in moved.findings[:3]] == [finding.id for finding in base.findings[:3]]


def test_lost_kernels_are_stated(tmp_path: Path) -> None:
    lost = analyze(variants.with_lost_kernels(DUAL, tmp_path))
    assert "lost_launches" in note_ids(lost) and any(finding.unsure_because for finding in lost.findings)


def test_hashed_names_keep_what_does_not_rest_on_names(tmp_path: Path) -> None:
    hashed, base = analyze(variants.with_hashed_kernels(DUAL, tmp_path)), analyzed(DUAL)
    waiting = [(each.id, each.cost_ns) for each in base.findings if each.claims == "waiting"]
    assert {(each.id, each.cost_ns) for each in hashed.findings if each.claims == "waiting"} >= set(waiting[:3])
    named = {"unfused_chains", "casts", "fp32_matrix", "separate_attention", "unfused_optimizer"}
    assert not named & {finding.id for finding in hashed.findings}
