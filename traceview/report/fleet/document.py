"""A fleet as JSON. The same reports give the same bytes, wherever they are read."""

from __future__ import annotations

from dataclasses import replace

from traceview.model.devices import CAUSES
from traceview.model.fleet import CollectiveGroup, Fleet, Heat, Rank
from traceview.report.json import DIGITS, Json, plain_values, row_text

SCHEMA_VERSION = 1
# JSON keys of fields with a unit.
STRAGGLER = {
    "lag": "lag_ns",
    "share": "lag_fraction",
    "part_lag": "part_lag_ns",
    "cost": "cost_ns",
    "cost_each": "cost_each_ns",
}
ADVICE = {"cost": "cost_ns", "each": "cost_each_ns", "wall": "wall_ns"}
CLOCK = {
    "offset": "offset_ns",
    "drift": "drift_ns_per_s",
    "uncertainty": "uncertainty_ns",
    "count": "collectives",
    "session": "session_offset_ns",
    "scatter": "scatter_ns",
    "origin": "origin_ns",
}


def to_json(fleet: Fleet) -> str:
    """Return the document as text."""
    return row_text(document(fleet))


def document(fleet: Fleet) -> dict[str, Json]:
    """Return the document as plain values and rows of the heat map's matrices (docs/fleet.md "JSON")."""
    return {
        "schema_version": SCHEMA_VERSION,
        "reports": list(fleet.reports),
        "skipped": plain_values(fleet.skipped),
        "typical_own_ns": fleet.typical,
        "margin_fraction": fleet.margin,
        "ranks": [_rank(rank) for rank in fleet.ranks],
        "stragglers": plain_values(
            [replace(straggler, share=round(straggler.share, DIGITS)) for straggler in fleet.stragglers], STRAGGLER
        ),
        "advice": plain_values(fleet.advice, ADVICE),
        "collectives": [_group(group) for group in fleet.groups],
        "waits": {"count": fleet.pair_count, "longest": plain_values(fleet.pairs, {"waited": "waited_ns"})},
        "clocks": plain_values(fleet.clocks, CLOCK),
        "unmatched_collectives": fleet.unmatched,
        "heat": None if fleet.heat is None else _heat(fleet.heat),
        "notes": plain_values(fleet.notes),
    }


def _rank(rank: Rank) -> Json:
    return {
        "label": rank.label,
        "file": rank.file,
        "device": rank.device,
        "gpu": rank.gpu,
        "iterations": rank.iterations,
        "time_ns": rank.time,
        "wall_ns": rank.wall,
        "own_ns": rank.own,
        "lag_ns": rank.lag,
        "noise_ns": rank.noise,
        "compute_ns": rank.compute,
        "exposed_communication_ns": rank.exposed_communication,
        "copies_ns": rank.copies,
        "idle_ns": rank.idle,
        "causes": {f"{cause}_ns": ns for cause, ns in zip(CAUSES, rank.causes, strict=True)},
        "kernels": rank.kernels,
        "wait_ns": rank.wait,
        "bare_wait_ns": rank.bare_wait,
        "caused_ns": rank.caused,
        "bare_caused_ns": rank.bare_caused,
        "last_count": rank.last_count,
        "set": rank.set,
        "typical_own_ns": rank.typical,
        "matched_count": rank.matched,
    }


def _group(group: CollectiveGroup) -> Json:
    return {
        "name": group.name,
        "matched_by": group.how,
        "kind": group.kind,
        "ranks": list(group.ranks),
        "count": group.count,
        "skew_ns": {"median": group.skew_median, "p95": group.skew_p95},
        "transfer_ns": group.transfer,
        "waited_ns": group.waited,
        "last": {"rank": group.last, "count": group.last_count},
    }


def _heat(heat: Heat) -> Json:
    # The rows stay arrays until they are written, because a list needs five times the memory.
    matrices = {f"{name}_ns": list(getattr(heat, name)) for name in ("wall", "own", "compute", "wait")}
    return {"iterations": heat.steps.tolist(), "steady": heat.steady.tolist(), **matrices}
