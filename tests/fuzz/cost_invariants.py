"""Invariants of costs, the steady part and iterations in a document of `analyze`, from docs/definitions.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

Document = dict[str, Any]

CALL_FIGURES = ("count", "blocked_ns", "waited_ns", "starved_ns", "idle_in_wait_ns", "refill_ns", "cost_ns")
HIDDEN_COPIES = ("shared_stream", "exposed_h2d", "exposed_d2h", "exposed_p2p")
SEVERITIES = ((0.1, "high"), (0.03, "medium"), (0.0, "low"))
OUTSIDE = ("start_up", "after_loop", "before_loop")  # costs of a run, of which no gap has a part
ROUNDING = 1e-6  # of a fraction in the document


def broken_costs(result: Document) -> Iterator[str]:
    """Yield each violated invariant."""
    for number, device in enumerate(result["devices"]):
        for line in _steady(device, result["iterations"]):
            yield f"devices[{number}].steady: {line}"
    yield from _waits(result)
    yield from _iterations(result["iterations"], result["devices"])
    yield from _findings(result)
    yield from fractions(result, "")


def fractions(value: object, path: str) -> Iterator[str]:
    """Yield fractions outside 0 to 1."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from fractions(item, f"{path}.{key}")
        is_fraction = str(key).endswith("_fraction") or key == "confidence"
        if is_fraction and item is not None and not 0 <= item <= 1:
            yield f"{path}.{key} is {item}"


def _steady(device: Document, iterations: Document) -> Iterator[str]:
    steady = device["steady"]
    (start, end), (first, last) = steady["window_ns"], device["window_ns"]
    if not first <= start <= end <= last:
        yield "it lies outside the window"
    if not iterations["count"] and (start, end) != (first, last):
        yield "without iterations, it differs from the window"
    if steady["busy_ns"] + steady["idle_ns"] != end - start:
        yield "busy and idle do not make the window"
    if sum(steady["causes"].values()) != steady["idle_ns"] or min(steady["causes"].values()) < 0:
        yield "the causes do not add up to the idle time"
    if max(steady["compute_ns"], steady["communication_ns"]) > steady["busy_ns"]:
        yield "a class is busier than the device"
    yield from _steady_parts(steady, device)


def _steady_parts(steady: Document, device: Document) -> Iterator[str]:
    without_compute = steady["busy_ns"] - steady["compute_ns"]
    for name in ("exposed_h2d_ns", "exposed_d2h_ns", "exposed_communication_ns"):
        if steady[name] > without_compute:
            yield f"{name} exceeds the busy time without compute"
    for name in ("busy_ns", "compute_ns", "communication_ns", "idle_ns"):
        if steady[name] > device[name]:
            yield f"{name} exceeds that of the window"
    for cause, ns in steady["causes"].items():
        if ns > device["gaps"]["causes"][cause]:
            yield f"{cause} exceeds that of the window"


def _waits(result: Document) -> Iterator[str]:
    uses = {name: use for name, use in result["host"].items() if use["count"] is not None}
    for name, use in uses.items():
        for key in CALL_FIGURES:
            if sum(call[key] for call in use["calls"]) != use[key]:
                yield f"host.{name}: the calls do not add up to {key}"
        for row in (use, *use["calls"]):
            if row["cost_ns"] > row["blocked_ns"]:
                yield f"host.{name}: a cost exceeds the blocked time"
            # Calls of one wait share whole ns, so each share may be off by 1 ns.
            if row["cost_ns"] > row["idle_in_wait_ns"] + row["refill_ns"] + row["count"]:
                yield f"host.{name}: a cost exceeds the idle time in waits and restart gaps"
    idle = sum(device["idle_ns"] for device in result["devices"])
    if sum(use["idle_in_wait_ns"] + use["refill_ns"] for use in uses.values()) > idle:
        yield "host: idle_in_wait and refill exceed the idle time"
    if sum(use["idle_in_wait_ns"] - use["starved_ns"] for use in uses.values()) > 0:
        yield "host: idle_in_wait exceeds starved"


def _iterations(iterations: Document, devices: list[Document]) -> Iterator[str]:
    if iterations["source"] not in ("range", "period", "none"):
        yield f"iterations.source is {iterations['source']!r}"
    if (iterations["source"] == "none") != (iterations["count"] == 0):
        yield "iterations: a source without iterations, or iterations without a source"
    if not iterations["count"]:
        return
    rows = iterations["per_iteration"]
    if len(rows) != iterations["count"] or sum(row["skipped"] for row in rows) != iterations["skipped"]:
        yield "iterations: the rows are not those counted"
    if not 0 <= iterations["skipped"] < iterations["count"]:
        yield "iterations: all are skipped"
    counted = [row for row in rows if not row["skipped"]]
    on_host = max(row["end_ns"] for row in rows) - min(row["start_ns"] for row in counted)
    steady = [device["steady"]["window_ns"] for device in devices]
    longest = max([on_host, *(end - start for start, end in steady)])
    if iterations["time_ns"] * max(len(counted) - 1, 1) > longest:
        yield "iterations: the counted ones take longer than the steady part"
    yield from _iteration_rows(iterations)


def _iteration_rows(iterations: Document) -> Iterator[str]:
    for row in iterations["per_iteration"]:
        if row["wall_ns"] != row["end_ns"] - row["start_ns"]:
            yield "iterations: wall is not the time from start to end"
        if sum(row["idle"].values()) != row["idle_ns"]:
            yield "iterations: the causes do not add up to the idle time"
    for name, spread in iterations.items():
        if isinstance(spread, Mapping) and "p5" in spread and not spread["p5"] <= spread["median"] <= spread["p95"]:
            yield f"iterations.{name}: the percentiles are out of order"
    without = iterations["unprofiled_ns"]
    if without and not 0 <= without["low"] <= without["mean"] <= min(without["high"], iterations["time_ns"]):
        yield "iterations: the time without the profiler is out of order, or longer than the measured time"


ALIKE = 0.02  # share of an iteration: captures of a program differ by as much


def _findings(result: Document) -> Iterator[str]:
    findings, devices = result["findings"], {device["id"]: device for device in result["devices"]}
    gains = list(_known_gains(findings))
    # Those that gain alike are by effort: half a step of rounding on both sides.
    if any(after > before + ALIKE for before, after in pairwise(gains)):
        yield "findings are not sorted by gain"
    findings = [part for finding in findings for part in (finding, *finding["others"])]
    for finding in findings:
        for line in _finding(finding, devices.get(finding["device"]), result):
            yield f"finding {finding['id']} of {finding['device']}: {line}"
    for name, device in devices.items():
        for claims, most in (("waiting", _lost(device)), ("compute", device["steady"]["compute_ns"])):
            own = [finding for finding in findings if finding["device"] == name and finding["claims"] == claims]
            own = [finding for finding in own if finding["id"] not in OUTSIDE]  # time that no device has
            total = sum(finding["cost_ns"] for finding in own)
            if total > most and not _covers_run(result):
                yield f"findings of {name} about {claims} cost {total} of {most} ns"


def _known_gains(findings: list[Document]) -> Iterator[float]:
    """Yield the share that each finding with a known gain saves, times the part of its range that does.

    What occurs once in a run has a place of its own.
    """
    for finding in findings:
        if finding["gain"]["source"] != "none" and finding["id"] not in OUTSIDE:
            gain = finding["gain"]
            gaining = 1.0 if gain["low_ns"] >= 0 else max(gain["high_ns"], 0) / (gain["high_ns"] - gain["low_ns"])
            yield _gained(finding) * gaining


def _gained(finding: Document) -> float:
    return float(finding["gain"]["ns"] / max(finding["gain"]["of_ns"], 1))


def _covers_run(result: Document) -> bool:
    """Return whether findings cover the run, which begins before the GPU's first work and ends after its last."""
    return bool(result["whole"] or not result["iterations"]["count"])


def _decisive(finding: Document) -> int:
    """Return the cost that orders findings: without the profiler if it is known."""
    without = finding["unprofiled_cost_ns"]
    return int(finding["cost_ns"] if without is None else without)


def _lost(device: Document) -> int:
    steady = device["steady"]
    return int(steady["idle_ns"] + steady["busy_ns"] - steady["compute_ns"])


def _finding(finding: Document, device: Document | None, result: Document) -> Iterator[str]:
    if device is None:
        yield "its device is not in the capture"
        return
    start, end = device["steady"]["window_ns"]
    share = finding["cost_ns"] / (end - start) if end > start else 0.0
    of_run = _covers_run(result) or finding["id"] in OUTSIDE
    if finding["cost_ns"] <= 0 or (abs(share - finding["cost_fraction"]) > ROUNDING and not of_run):
        yield f"it costs {finding['cost_ns']} ns, {finding['cost_fraction']} of the steady part"
    if not 0 <= _decisive(finding) <= finding["cost_ns"]:
        yield f"it costs {_decisive(finding)} ns without the profiler, {finding['cost_ns']} ns with it"
    yield from _gain(finding)
    each, time = finding["cost_per_iteration_ns"], result["iterations"]["time_ns"]
    if each is not None and not 0 < each <= time:
        yield f"{each} ns per iteration of {time} ns"
    if finding["id"] in HIDDEN_COPIES and finding["cost_ns"] > device["steady"]["compute_ns"]:
        yield "copies cost more than the compute that could hide them"
    if finding["id"] == "synchronize" and finding["cost_ns"] > result["host"]["sync"]["cost_ns"]:
        yield "it exceeds the cost of the synchronizations"
    for place in finding["evidence"]:
        if place["end_ns"] < place["start_ns"]:
            yield "a place ends before it begins"


def _gain(finding: Document) -> Iterator[str]:
    gain = finding["gain"]
    if not gain["low_ns"] <= gain["ns"] <= gain["high_ns"] or gain["ns"] < 0 or gain["ns"] > gain["of_ns"]:
        yield f"its gain is out of order: {gain}"
    saved = _gained(finding)
    borderline = any(abs(saved - limit) < ROUNDING for limit, _ in SEVERITIES)
    if finding["severity"] != next(name for limit, name in SEVERITIES if saved >= limit) and not borderline:
        yield f"severity {finding['severity']} for a gain of {saved:.3g}"
