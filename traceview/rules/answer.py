"""The answer in one sentence: what computes, the largest loss, and what its remedy would give."""

from __future__ import annotations

from dataclasses import replace

from traceview.model.analysis import Analysis
from traceview.model.findings import Finding
from traceview.model.units import time_range
from traceview.pricing.packages import rules_of_packages
from traceview.pricing.texts import Entry, read_entry

MIN_IDLE = 0.05  # share of the time; without findings, less idle time needs no words


def with_answer(analysis: Analysis) -> Analysis:
    """Return the analysis with its answer."""
    return replace(analysis, answer=_answer(analysis))


def _entry(finding: str) -> Entry:
    """Return the entry of a finding; empty if it has none."""
    own = (rule.entries[finding] for rule in rules_of_packages() if finding in rule.entries)
    return read_entry(finding) or next(own, {})


def _answer(analysis: Analysis) -> str:
    parts = [analysis.part(device) for device in analysis.devices]
    shares = sorted(part.compute_ns / part.window.length for part in parts if part.window.length)
    if not shares:
        return "The capture has no GPU work."
    low, high = _share(shares[0]), _share(shares[-1])
    between = high if low == high else f"{low.removesuffix('%')} to {high}"
    who = "GPUs compute" if len(shares) > 1 else "GPU computes"
    return f"The {who} {between} of the time. {_largest_loss(analysis)}"


def _share(fraction: float) -> str:
    """Return a share with two digits: "23%", "2.3%"."""
    if 0 < fraction < 0.0005:
        return "less than 0.1%"
    return f"{100 * fraction:.0f}%" if fraction >= 0.0995 else f"{100 * fraction:.1f}%"


def _largest_loss(analysis: Analysis) -> str:
    if not analysis.findings:
        idle = max(analysis.part(device).idle_ns / analysis.part(device).window.length for device in analysis.devices)
        if idle < MIN_IDLE:
            return "No known problem costs a thousandth of it."
        return f"It is idle for {_share(idle)}, and the capture does not show why."
    first = analysis.findings[0]
    entry = _entry(first.id)
    if "no_gain" in entry:
        return f"{first.title}. {first.remedy}"
    lost, effect = entry.get("loss", first.id.replace("_", " ")), entry.get("effect", "")
    where = f" on {first.device_words}" if first.device and len(analysis.devices) > 1 else ""
    most = "up to " if first.others else ""
    size, measured = _share(first.decisive_fraction), _share(first.cost_fraction)
    without = "" if size == measured else " without the profiler"
    loss = f"The largest loss is {lost}{where}, {most}{size}{without}."
    return f"{loss} {_effect(effect, first, not without)}" if effect else loss


def _effect(subject: str, finding: Finding, states_profiler: bool) -> str:
    """Return what the remedy, with `subject` as its name, would give; or the remedy alone if that is unknown or little.

    `states_profiler` says that the time is one without the profiler, if it is.
    """
    time = finding.prediction
    if time is None or time.is_little:
        return finding.remedy
    times = time_range(time.before_ns, time.after_ns)
    without = " without the profiler" if time.is_unprofiled and states_profiler else ""
    return f"{subject[0].upper()}{subject[1:]} would take an iteration from {times}{without}."
