"""Causes of exposed time that changed: against the oracle in plain Python, of reports and of documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.captures import analyzed, sample, shared
from tests.comparison.test_captures import only
from tests.oracle.exposure import exposed_stretches
from tests.oracle.spans import Span, union
from traceview import Analysis, compare
from traceview.comparison.align import align_borders, iteration_times
from traceview.comparison.sample import align_capture
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.comparison import CaptureDifference, OverlapChange
from traceview.report.analysis import to_json
from traceview.report.comparison import to_json as comparison_json
from traceview.report.comparison.terminal import render as render_text
from traceview.report.comparison.terminal import render_brief, to_markdown

TRAINER = ("trainer/serial.sqlite", "trainer/pinned.sqlite", "trainer/prefetch.sqlite")
PAIRS = [(sample(TRAINER[0]), sample(name)) for name in TRAINER[1:]]
PREFETCH = PAIRS[1]
FSDP = (sample("exposure/two_fsdp.sqlite.xz"), sample("exposure/two_fsdp_prefetch.sqlite.xz"))


def iterations_of(analysis: Analysis) -> list[Span]:
    host = iteration_times(analysis)
    at = align_capture(analysis) if host is None else align_borders(host)
    return list(zip(at.start.tolist(), at.end.tolist(), strict=True))


def mean_figures(analysis: Analysis) -> dict[str, dict[str, float]]:
    """Return the ns of a mean iteration of each kind of work, busy and by cause, in plain Python."""
    spans, sums, of = iterations_of(analysis), dict[str, dict[str, float]](), analysis.iterations
    own_devices = [
        each for each in analysis.devices if isinstance(of, NotMeasured) or of.process_id in each.process_ids
    ]
    for device in own_devices:
        busy: dict[str, list[Span]] = {}
        for row in analysis.trace.operations.iter_rows(named=True):
            if row["device"] == device.device and row["class"] in ("communication", "copy"):
                work = "communication" if row["class"] == "communication" else f"{row['kind']} {row['memory']}"
                busy.setdefault(work, []).append((row["start"], row["end"]))
        stretches = exposed_stretches(analysis.trace, device.device, device.window)
        found = [(work, cause, start, end) for work, _, start, end, cause in stretches if work != "memset"]
        found += [(work, "busy", *span) for work, some in busy.items() for span in union(some)]
        for work, name, start, end in found:
            own = sums.setdefault(work.partition(" ")[0], {})
            clipped = sum(max(0, min(end, last) - max(start, first)) for first, last in spans)
            own[name] = own.get(name, 0) + clipped / len(spans) / len(own_devices)
    return sums


def changes(before: Any, after: Any) -> dict[str, OverlapChange]:
    return {each.work: each for each in only(compare(before, after)).overlap}


@pytest.mark.parametrize("pair", [*PAIRS, (shared("h200_serial.sqlite"), shared("h200_dual.sqlite")), FSDP])
def test_means_are_those_of_the_oracle(pair: tuple[Path, Path]) -> None:
    before, after = map(analyzed, pair)
    found = changes(before, after)
    for side, analysis in (("before", before), ("after", after)):
        expected = mean_figures(analysis)
        assert expected
        for work, figures in expected.items():
            if not any(ns > 3 for ns in figures.values()):
                continue
            change = found[work]
            values = {cause.name: getattr(cause, side) for cause in (change.busy, *change.causes)}
            for name, ns in figures.items():
                assert values.get(name, 0) == pytest.approx(ns, abs=3), (work, name)
            assert {name for name, ns in values.items() if ns > 3} <= figures.keys()
            exposed = sum(ns for name, ns in figures.items() if name != "busy")
            assert getattr(change.exposed, side) == pytest.approx(exposed, abs=12)
            assert getattr(change, f"hidden_{side}") == pytest.approx(1 - exposed / figures["busy"], abs=2e-3)


def test_every_report_names_the_cause_that_changed() -> None:
    comparison = compare(*map(analyzed, PREFETCH))
    text = "(h2d) hidden 0 → 88%; exposed: host waits for them 14.3 → 0 ms"
    plain_markdown = to_markdown(comparison).replace("\\", "")
    for report in (render_brief(comparison), render_text(comparison), plain_markdown):
        assert text in report
    overlap = json.loads(comparison_json(comparison))["against"][0]["overlap"]
    [copies] = [each for each in overlap if each["work"] == "h2d"]
    assert copies["causes"]["waits_for_it"]["verdict"] == "less" and copies["price_after_ns"] is None
    assert copies["hidden_before_fraction"] == 0 and round(copies["hidden_after_fraction"], 2) == 0.88


def test_noise_is_not_named() -> None:
    """A capture against itself, and changes below the least share of the base's time."""
    serial, prefetch = map(analyzed, PREFETCH)
    for comparison in (compare(serial, serial), compare(serial, prefetch, min_change=0.9)):
        against: CaptureDifference = only(comparison)
        assert against.overlap and " hidden " not in render_brief(comparison)
        assert all(cause.verdict == "noise" for change in against.overlap for cause in change.causes)


@pytest.mark.parametrize("pair", [PREFETCH, FSDP])
def test_documents(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A document has means of the steady part, which ends with the last iteration."""
    before, after = map(analyzed, pair)
    paths = []
    for name, analysis in (("before", before), ("after", after)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(to_json(analysis))
    truth = changes(before, after)
    for given in ((before, paths[1]), (paths[0], after), tuple(paths)):
        comparison = compare(*given)
        found = {each.work: each for each in only(comparison).overlap}
        least = 0.02 * only(comparison).time.before
        assert found.keys() == truth.keys()
        for work, change in found.items():
            expected = {cause.name: cause for cause in (truth[work].busy, *truth[work].causes)}
            for cause in (change.busy, *change.causes):
                exact = expected[cause.name]
                assert abs(cause.before - exact.before) < least and abs(cause.after - exact.after) < least
                assert cause.low is None and cause.verdict in ("noise", "unjudged")
            assert change.price_after_ns == truth[work].price_after_ns
        assert (" hidden " in render_brief(comparison)) == any(
            cause.verdict != "noise" for change in found.values() for cause in change.causes
        )


def test_document_of_an_earlier_version(tmp_path: Path) -> None:
    made = json.loads(to_json(analyzed(PREFETCH[0])))
    for device in made["devices"]:
        for part in (device, device["steady"]):
            del part["communication"]["exposed_causes"]
    (path := tmp_path / "old.json").write_text(json.dumps(made))
    assert only(compare(path, analyzed(PREFETCH[1]))).overlap == ()


def test_collectives_of_one_kind_have_its_name_and_the_price() -> None:
    gathering = analyzed(sample("exposure/two_gather_ahead.sqlite.xz"))
    gathers = changes(gathering, gathering)["all_gather"]
    assert isinstance(gathering.iterations, Iterations)
    own = [each for each in gathering.devices if gathering.iterations.process_id in each.process_ids]
    price = sum(each.steady.communication.contention_ns or 0 for each in own)
    assert gathers.price_after_ns == price // (gathering.iterations.counted * len(own)) > 0
    assert 0 < gathers.exposed.after < gathers.busy.after
