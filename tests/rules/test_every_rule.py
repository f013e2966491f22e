"""Tests of all rules on random traces."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.made_trace import made_trace
from traceview import rules
from traceview.errors import RequestError
from traceview.model.analysis import Iterations
from traceview.model.trace import CLASSES, ROLES, Window
from traceview.pipeline import analyze
from traceview.rules import RULES, own_rules


def test_every_rule_claims_in_its_place() -> None:
    files = {module.name for module in iter_modules(rules.__path__)} - {"answer"}
    every = [import_module(f"traceview.rules.{file}") for file in files]
    named = [item for file in every for item in vars(file).items()]
    stating = {name for name, value in named if re.search(r"^\s*Symptom: ", value.__doc__ or "", re.MULTILINE)}
    assert stating == set(RULES) and set(RULES.values()) == files
    assert [rule.name for rule in own_rules()] == list(RULES)


times = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)
operations = st.lists(
    st.tuples(times, st.sampled_from(CLASSES), st.integers(0, 2), st.none() | st.integers(0, 4)),
    min_size=1,
    max_size=12,
)
calls = st.lists(st.tuples(times, st.sampled_from(ROLES), st.integers(0, 1)), min_size=5, max_size=9)
ranges = st.lists(st.tuples(times, st.sampled_from(["step 1", "step 2", "load"]), st.integers(0, 1)), max_size=6)
windows = st.none() | st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda w: Window(w[0], w[0] + w[1]))


@settings(max_examples=80, deadline=None)
@given(operations, calls, ranges, windows, st.sampled_from([1, 100_000, 2**40]), st.booleans())
def test_costs_do_not_exceed_lost_time(work, api, spans, window, unit, whole) -> None:
    trace = made_trace(
        [(start * unit, end * unit, *rest) for (start, end), *rest in work],
        [(start * unit, end * unit, *rest) for (start, end), *rest in api],
        [(start * unit, end * unit, *rest) for (start, end), *rest in spans],
    )
    first, last = trace.operations["start"][0], trace.operations["end"].max()
    if window is not None and window.start * unit < last and window.end * unit > first:
        trace = trace.with_window(Window(window.start * unit, window.end * unit))
    try:
        analysis = analyze(trace, whole=whole)
    except RequestError:  # the window lies in a gap: nothing to measure
        reject()
    for device in analysis.devices:
        own = [part for finding in analysis.findings for part in finding.by_device if part.device == device.id]
        part = analysis.covered(device)
        of_run = analysis.covers_run or any(finding.once for finding in own)
        time = analysis.run.length if of_run else part.window.length
        waiting = sum(finding.cost_ns for finding in own if finding.claims == "waiting")
        assert waiting <= time - part.compute_ns
        assert sum(finding.cost_ns for finding in own) - waiting <= part.compute_ns
        for finding in own:
            assert finding.cost_ns > 0
            if isinstance(analysis.iterations, Iterations):
                assert (finding.cost_per_iteration_ns or 0) <= analysis.iterations.time_ns
