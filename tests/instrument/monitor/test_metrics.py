from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrument.monitor.metrics import StepFigures, figures

WHOLE = StepFigures(
    step=3,
    loss=2.5,
    forward_ms=4.0,
    backward_ms=8.0,
    optimizer_ms=1.0,
    data_load_ms=2.0,
    copy_ms=10.0,
    step_ms=20.0,
    samples=32,
    tokens=8192,
    flops=5e12,
    memory_allocated_bytes=1 << 30,
    memory_peak_bytes=2 << 30,
    memory_reserved_bytes=3 << 30,
    pinned_bytes=1 << 20,
    host_rss_bytes=4 << 30,
    sync_ms=3.0,
)


def test_step_has_every_figure() -> None:
    parts = ("forward", "backward", "optimizer", "data_load", "copy", "sync")
    copied = ["step_ms", *(f"{part}_ms" for part in parts), "pinned_bytes", "host_rss_bytes"]
    copied += [f"memory_{kind}_bytes" for kind in ("allocated", "peak", "reserved")]
    rates = {"samples_per_s": 1600.0, "tokens_per_s": 409600.0, "flops_per_s": 2.5e14, "mfu": 0.25}
    expected = {name: getattr(WHOLE, name) for name in copied} | rates
    expected |= dict.fromkeys(("loader_batches_per_s", "loader_empty_fraction"))
    expected |= {f"{part}_fraction": getattr(WHOLE, f"{part}_ms") / 20 for part in parts}
    assert figures([WHOLE], peak=1e15) == {"loss": 2.5} | {f"perf/{name}": value for name, value in expected.items()}


def test_names_do_not_depend_on_what_was_measured() -> None:
    nothing = figures([StepFigures(step=0)])
    assert list(nothing) == list(figures([WHOLE], peak=1e15)) == list(figures([]))
    assert set(nothing.values()) == {None}


def test_mfu_needs_a_known_peak_and_a_rate_a_time() -> None:
    assert figures([WHOLE])["perf/mfu"] is None
    assert figures([replace(WHOLE, flops=None)], peak=1e15)["perf/mfu"] is None
    assert figures([replace(WHOLE, step_ms=0.0)])["perf/samples_per_s"] is None


def test_rates_use_steps_with_both_figures() -> None:
    steps = [
        replace(WHOLE, step_ms=10.0, samples=10, copy_ms=5.0),
        replace(WHOLE, step_ms=30.0, samples=30, copy_ms=None),
        replace(WHOLE, step_ms=None, samples=99, copy_ms=99.0),
        replace(WHOLE, step_ms=60.0, samples=None, copy_ms=30.0),
    ]
    found = figures(steps)
    assert found["perf/samples_per_s"] == 1000.0
    assert found["perf/copy_fraction"] == 0.5
    assert found["perf/step_ms"] == 30.0
    assert found["perf/copy_ms"] == 30.0


def test_memory_peak_and_last_value() -> None:
    steps = [
        replace(WHOLE, memory_allocated_bytes=7, memory_peak_bytes=9),
        replace(WHOLE, memory_allocated_bytes=5, memory_peak_bytes=8),
        replace(WHOLE, memory_allocated_bytes=None, memory_peak_bytes=None),
    ]
    found = figures(steps)
    assert (found["perf/memory_allocated_bytes"], found["perf/memory_peak_bytes"]) == (5, 9)


@given(st.lists(st.tuples(st.none() | st.floats(0.1, 1e3), st.none() | st.integers(1, 100)), max_size=12))
def test_any_mixture_of_measured_and_missing_values(measured: list[tuple[float | None, int | None]]) -> None:
    steps = [StepFigures(number, step_ms=ms, samples=n) for number, (ms, n) in enumerate(measured)]
    found = figures(steps)
    times = [ms for ms, _n in measured if ms is not None]
    both = [(ms, n) for ms, n in measured if ms is not None and n is not None]
    assert found["perf/step_ms"] == (median(times) if times else None)
    rate = 1000 * sum(n for _ms, n in both) / sum(ms for ms, _n in both) if both else None
    assert found["perf/samples_per_s"] == (None if rate is None else pytest.approx(rate))
    assert json.loads(json.dumps(found)) == found


def test_configuration_flags_and_metrics_need_no_torch() -> None:
    code = "import sys, instrument.config.schema, instrument.config.flags, instrument.monitor.metrics"
    check = "sys.exit('torch' in sys.modules or 'tensorboard' in sys.modules or 'wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", f"{code}; {check}"], check=False).returncode == 0
