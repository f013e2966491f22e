"""analyze --fail-if: parsing, and the lines of conditions that hold."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.cli.command import conditions_of
from tests.made_trace import made_trace
from tests.report.made_analysis import MS, bare_analysis, made_analysis, made_device
from traceview.cli.conditions.analysis import QUANTITIES, failures, parse
from traceview.errors import RequestError
from traceview.measure.kernels.families import kernel_kind
from traceview.model.analysis import CAUSES, Analysis, Iterations
from traceview.model.trace import KINDS, Window
from traceview.pipeline import analyze


def failed(text: str, analysis: Analysis | None = None) -> list[str]:
    return list(failures((parse(text),), analysis or made_analysis()))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("exposed_h2d > 4.9%", "exposed_h2d is 5.000% (5 ms of 100 ms) on GPU 0"),
        ("exposed_h2d>=5%", "exposed_h2d is 5.000% (5 ms of 100 ms) on GPU 0"),
        ("idle >= 2ms", "idle is 25 ms on GPU 0"),
        ("idle == 25000000", "idle is 25 ms on GPU 0"),
        ("idle.launch > 19%", "idle.launch is 20.000% (20 ms of 100 ms) on GPU 0"),
        ("exposed_communication > 9999us", "exposed_communication is 10 ms on GPU 0"),
        ("overlap_h2d < 40%", "overlap_h2d is 37.500% (3 ms of 8 ms) on GPU 0"),
        ("sync.blocked > 9ms", "sync.blocked is 10 ms"),
        ("sync.blocked > 9%", "sync.blocked is 10.000% (10 ms of 100 ms)"),
        ("implicit_sync.refill != 0", "implicit_sync.refill is 999 ns"),
        ("sync.count > 3", "sync.count is 4"),
        ("iteration.wall.p95 > 3.9ms", "iteration.wall.p95 is 4 ms"),
        ("iteration.idle.p5 > 60%", "iteration.idle.p5 is 66.667% (2 ms of 3 ms)"),
        ("iteration.count < 10", "iteration.count is 3"),
        ("findings.cost > 5%", "findings.cost is 35.000% (35 ms of 100 ms) on GPU 0"),
        ("findings.high > 0", "findings.high is 1"),
        ("kernels <= 7", "kernels is 7 on GPU 0"),
        ("mfu < 30%", "mfu is 29.851% (2.985075 ms of 10 ms) on GPU 0"),
    ],
)
def test_condition_that_holds_shows_the_figure(text: str, line: str) -> None:
    assert failed(text) == [f"{text}: {line}"]


@pytest.mark.parametrize(
    "text",
    ["exposed_h2d > 5%", "idle < 25ms", "idle != 25ms", "overlap_h2d > 99%", "sync.count > 4", "findings.high >= 2"],
)
def test_condition_that_does_not_hold(text: str) -> None:
    assert failed(text) == []


@pytest.mark.parametrize("name", ["vectorized_elementwise_kernel", "elementwise_kernel<FillFunctor>"])
def test_kernels_of_a_name_match_a_plain_sum(name: str) -> None:
    """A short name and a label; the second kernel has a short name that another kernel has as its label."""
    analysis = analyzed(sample("ddp2.sqlite"), device="GPU 0")
    trace, iterations, (device,) = analysis.trace, analysis.iterations, analysis.devices
    assert isinstance(iterations, Iterations)
    names = trace.shapes.select(pl.col("name", "demangled").fill_null("")).iter_rows()
    shapes = [name in (short, kernel_kind(short, full).label) for short, full in names]
    lengths: dict[Window, list[int]] = {}
    for window in (device.steady.window, device.window):
        lengths[window] = [
            min(row["end"], window.end) - max(row["start"], window.start)
            for row in trace.operations.iter_rows(named=True)
            if shapes[row["shape"]] and row["device"] == device.device
            if row["start"] < window.end and row["end"] > window.start
        ]
    steady, whole = lengths[device.steady.window], lengths[device.window]
    assert 0 < len(steady) < len(whole)
    for figure, expected in (
        ("", sum(steady) // (iterations.count - iterations.skipped)),
        (".total", sum(steady)),
        (".per_call", sum(steady) // len(steady)),
    ):
        assert failed(f'kernel:"{name}"{figure} == {expected}', analysis), figure
    assert failed(f'kernel:"{name}".total == {sum(whole)}', replace(analysis, whole=True))
    share = 100 * sum(steady) / device.steady.window.length
    (line,) = failed(f'kernel:"{name}" > 0%', analysis)
    assert float(line.split(" is ")[1].split("%")[0]) == pytest.approx(share, abs=0.01)


def test_kernels_without_calls_or_iterations() -> None:
    quantity = 'kernel:"compute"'
    work = [(0, MS, "compute", 0, None), (2 * MS, 3 * MS, "compute", 0, None)]
    outside = analyze(made_trace(work, (), [(at * MS, (at + 1) * MS, f"step {at}", 0) for at in range(5, 9)]))
    assert failed(f"{quantity} == 0", outside) == [f"{quantity} == 0: {quantity} is 0 ms on GPU 0"]
    with pytest.raises(RequestError, match=r"per_call was not measured: no call of it is in the part that counts"):
        failed(f"{quantity}.per_call < 1s", outside)
    assert failed(f"{quantity}.per_call == 1ms", replace(outside, whole=True)) == [
        f"{quantity}.per_call == 1ms: {quantity}.per_call is 1 ms on GPU 0"
    ]
    bare = analyze(made_trace(work))
    assert len(failed(f"{quantity}.total == 2ms", bare)) == 1
    with pytest.raises(RequestError, match=r'kernel:"compute" is a time per iteration: .*; use .per_call or .total'):
        failed(f"{quantity} > 0", bare)
    with pytest.raises(RequestError, match=r"made\.sqlite: .*no kernel has this name; did you mean 'compute' or "):
        failed('kernel:"compuet" > 0', bare)
    with pytest.raises(RequestError, match=r"no kernel has this name; the kernel table lists the names"):
        failed('kernel:"" > 0', bare)


def test_conditions_cover_the_steady_part_or_the_whole_window() -> None:
    device = made_device()
    steady = replace(device.steady, window=Window(0, 50 * MS), idle_ns=5 * MS)
    analysis = replace(made_analysis(), devices=(replace(device, steady=steady),))
    assert failed("idle < 24%", analysis) == ["idle < 24%: idle is 10.000% (5 ms of 50 ms) on GPU 0"]
    assert failed("findings.cost > 60%", analysis) == [
        "findings.cost > 60%: findings.cost is 70.000% (35 ms of 50 ms) on GPU 0"
    ]
    assert failed("idle < 24%", replace(analysis, whole=True)) == []


def test_calls_count_if_they_begin_in_the_steady_part() -> None:
    whole = analyzed(sample("ddp2.sqlite"), whole=True)
    steady = replace(whole, whole=False)
    assert isinstance(whole.iterations, Iterations)
    window = whole.iterations.steady
    frame = whole.host.sync.frame
    inside = [row for row in frame.iter_rows(named=True) if window.start <= row["start"] < window.end]
    assert 0 < len(inside) < len(frame)
    for quantity, expected in (
        ("sync.count", len(inside)),
        ("sync.blocked", sum(row["blocked"] for row in inside)),
        ("sync.waited", sum(row["waited"] for row in inside)),
    ):
        (value,) = QUANTITIES[quantity].values(steady)
        assert value.figure == expected
        (value,) = QUANTITIES[quantity].values(whole)
        assert value.figure > expected


def test_percentages_refer_to_each_device_window() -> None:
    other = made_device("GPU 1")
    idle_one = replace(other, steady=replace(other.steady, idle_ns=40 * MS))
    analysis = replace(made_analysis(), devices=(made_device(), idle_one))
    assert failed("idle > 30%", analysis) == ["idle > 30%: idle is 40.000% (40 ms of 100 ms) on GPU 1"]
    assert failed("sync.count > 0", analysis) == ["sync.count > 0: sync.count is 4"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a condition; write QUANTITY > NUMBER"),
        ("idle", "is not a condition"),
        ("idle > ", "is not a condition"),
        ("idle > -5%", "is not a condition"),
        ("idle > 5 apples", "is not a condition"),
        ("idle > 5% and busy > 5%", "is not a condition"),
        ("__import__('os') > 1", "is not a condition"),
        ("exposed_hd2 > 5%", "unknown quantity 'exposed_hd2'; did you mean .*exposed_h2d"),
        ("iteration.wall > 5ms", "did you mean .*iteration.wall.p"),
        ("zzz > 1", "unknown quantity 'zzz'; use one of busy, idle, .* iteration.FIGURE.median, .p5, .p95 or k"),
        ("sync.count > 5%", "sync.count is a count; compare it with a plain number"),
        ("kernels > 5ms", "kernels is a count"),
        ("overlap_h2d < 5ms", "overlap_h2d is a share; compare it with a percentage"),
        ('kernel:"gemm".mean > 5ms', "unknown figure 'mean'; use kernel:\"NAME\" or .per_call or .total"),
        ('kernel:"gemm".per_call > 5%', "the time of a call is not a share"),
        ('kernel:"ge"mm" > 5ms', "is not a condition"),
        ("kernel:gemm > 5ms", "is not a condition"),
    ],
)
def test_invalid_conditions(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse(text)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        check = parse(text)
    except RequestError as error:
        assert "--fail-if" in str(error)
    else:
        assert check.quantity in QUANTITIES


def test_unmeasured_figure_is_an_error() -> None:
    with pytest.raises(RequestError, match=r"report\.sqlite: --fail-if iteration\.wall\.p95 .* no iterations"):
        failed("iteration.wall.p95 > 1ms", bare_analysis())
    with pytest.raises(RequestError, match=r"dual\.sqlite: --fail-if mfu was not measured: .*--flops-per-iteration"):
        failed("mfu < 1%", analyzed(sample("dual.sqlite")))


def test_every_quantity_has_a_figure_on_a_real_capture() -> None:
    analysis = analyzed(sample("ddp2.sqlite"))
    for quantity in QUANTITIES.keys() - {"mfu"}:
        values = list(QUANTITIES[quantity].values(analysis))
        assert all(isinstance(value.figure, int) and value.figure >= 0 for value in values), quantity
        assert values or quantity.startswith("overlap_"), quantity


def test_help_names_every_quantity() -> None:
    words = conditions_of("analyze")
    for name in QUANTITIES:
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
