"""--fail-if: what it understands, what it compares, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import sample
from tests.report.made_analysis import MS, bare_analysis, made_analysis, made_device
from traceview.cli.conditions.analysis import failures, parse
from traceview.cli.conditions.quantities import KNOWN, values
from traceview.cli.options import EXPLAINED
from traceview.errors import RequestError
from traceview.model.analysis import CAUSES, Analysis
from traceview.model.trace import KINDS
from traceview.pipeline import analyze


def failed(text: str, analysis: Analysis | None = None) -> list[str]:
    return list(failures((parse(text),), analysis or made_analysis()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exposed_h2d > 4.9%", "exposed_h2d is 5.000% (5.000 ms of 100.000 ms) on GPU 0"),
        ("exposed_h2d>=5%", "exposed_h2d is 5.000% (5.000 ms of 100.000 ms) on GPU 0"),
        ("idle >= 2ms", "idle is 25.000 ms on GPU 0"),
        ("idle == 25000000", "idle is 25.000 ms on GPU 0"),
        ("idle.launch > 19%", "idle.launch is 20.000% (20.000 ms of 100.000 ms) on GPU 0"),
        ("exposed_communication > 9999us", "exposed_communication is 10.000 ms on GPU 0"),
        ("overlap_h2d < 40%", "overlap_h2d is 37.500% (3.000 ms of 8.000 ms) on GPU 0"),
        ("sync.blocked > 9ms", "sync.blocked is 10.000 ms"),
        ("sync.blocked > 9%", "sync.blocked is 10.000% (10.000 ms of 100.000 ms)"),
        ("implicit_sync.refill != 0", "implicit_sync.refill is 0.001 ms"),
        ("sync.count > 3", "sync.count is 4"),
        ("iteration.wall.p95 > 3.9ms", "iteration.wall.p95 is 4.000 ms"),
        ("iteration.idle.p5 > 60%", "iteration.idle.p5 is 66.667% (2.000 ms of 3.000 ms)"),
        ("iteration.count < 10", "iteration.count is 3"),
        ("findings.cost > 5%", "findings.cost is 35.000% (35.000 ms of 100.000 ms) on GPU 0"),
        ("findings.high > 0", "findings.high is 1"),
        ("kernels <= 7", "kernels is 7 on GPU 0"),
    ],
)
def test_what_holds_is_said_with_both_values(text: str, said: str) -> None:
    assert failed(text) == [f"{text}: {said}"]


@pytest.mark.parametrize(
    "text",
    ["exposed_h2d > 5%", "idle < 25ms", "idle != 25ms", "overlap_d2h < 99%", "sync.count > 4", "findings.high >= 2"],
)
def test_what_does_not_hold_is_silent(text: str) -> None:
    assert failed(text) == []


def test_each_device_is_judged_by_its_own_window() -> None:
    idle_one = replace(made_device("GPU 1"), idle_ns=40 * MS)
    analysis = replace(made_analysis(), devices=(made_device(), idle_one))
    assert failed("idle > 30%", analysis) == ["idle > 30%: idle is 40.000% (40.000 ms of 100.000 ms) on GPU 1"]
    assert failed("sync.count > 0", analysis) == ["sync.count > 0: sync.count is 4"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a comparison; write QUANTITY > NUMBER"),
        ("idle", "is not a comparison"),
        ("idle > ", "is not a comparison"),
        ("idle > -5%", "is not a comparison"),
        ("idle > 5 apples", "is not a comparison"),
        ("idle > 5% and busy > 5%", "is not a comparison"),
        ("__import__('os') > 1", "is not a comparison"),
        ("exposed_hd2 > 5%", "no quantity is called 'exposed_hd2'; did you mean .*exposed_h2d"),
        ("iteration.wall > 5ms", "did you mean .*iteration.wall.p"),
        ("zzz > 1", "no quantity is called 'zzz'; known are busy, idle, .* iteration.FIGURE.median, .p5 or .p95"),
        ("sync.count > 5%", "sync.count is a count; compare it with a plain number"),
        ("kernels > 5ms", "kernels is a count"),
        ("overlap_h2d < 5ms", "overlap_h2d is a share; compare it with a percentage"),
    ],
)
def test_what_cannot_be_meant_says_what_can(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse(text)


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        check = parse(text)
    except RequestError as error:
        assert "--fail-if" in str(error)
    else:
        assert check.quantity in KNOWN


def test_a_figure_that_was_not_measured_is_no_pass() -> None:
    with pytest.raises(RequestError, match=r"report\.sqlite: --fail-if iteration\.wall\.p95 .* no iterations"):
        failed("iteration.wall.p95 > 1ms", bare_analysis())
    assert failed("iteration.count < 1", bare_analysis()) == ["iteration.count < 1: iteration.count is 0"]


def test_every_quantity_has_a_figure_on_a_real_capture() -> None:
    analysis = analyze(sample("ddp2.sqlite"))
    for quantity in KNOWN:
        found = list(values(quantity, analysis))
        assert all(isinstance(value.figure, int) and value.figure >= 0 for value in found), quantity
        assert found or quantity.startswith("overlap_"), quantity


SPREADS = ("wall", "compute", "exposed_h2d", "idle", "blocked")  # those that the made analysis holds


@pytest.mark.parametrize(
    "quantity",
    [name for name in KNOWN if not name.startswith("iteration.") or name.split(".")[1] in SPREADS],
)
def test_every_quantity_has_a_figure(quantity: str) -> None:
    found = list(values(quantity, made_analysis()))
    assert all(isinstance(value.figure, int) for value in found)
    assert len(found) == 1 or quantity.startswith("overlap_")


def test_the_help_names_every_quantity() -> None:
    words = set(EXPLAINED.replace("...", "").split())
    for name in KNOWN:
        stem, _, last = name.rpartition(".")
        general = name
        for cause in CAUSES:
            general = general.replace(f"idle.{cause}", "idle.CAUSE")
        for kind in KINDS:
            general = general.replace(f"exposed_{kind}", "exposed_KIND").replace(f"overlap_{kind}", "overlap_KIND")
        known = {general, name} & words or (f".{last}" in words and any(word.startswith(stem) for word in words))
        assert known or name.startswith("iteration."), name
        if name.startswith("iteration.") and stem != "iteration":
            figure = name.split(".")[1]
            assert figure in words or figure.removeprefix("idle_") in CAUSES, name
