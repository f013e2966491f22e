"""A fleet as JSON: whole ns, keys with their units, the same bytes for the same reports wherever they were read."""

from __future__ import annotations

import json

from traceview.model import CAUSES
from traceview.model_fleet import Advice, Clock, Fleet, Group, Heat, Pair, Rank, Straggler
from traceview.report.to_json import Json

SCHEMA_VERSION = 1


def to_json(fleet: Fleet) -> str:
    """Return the document as text."""
    return json.dumps(document(fleet), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def document(fleet: Fleet) -> dict[str, Json]:
    """Return the document as plain values (docs/fleet.md "JSON")."""
    return {
        "schema_version": SCHEMA_VERSION,
        "reports": list(fleet.reports),
        "skipped": [{"file": one.file, "reason": one.reason} for one in fleet.skipped],
        "typical_own_ns": fleet.typical,
        "margin_fraction": fleet.margin,
        "ranks": [_rank(rank) for rank in fleet.ranks],
        "stragglers": [_straggler(one) for one in fleet.stragglers],
        "advice": [_advice(one) for one in fleet.advice],
        "collectives": [_group(group) for group in fleet.groups],
        "waits": {"count": fleet.pair_count, "longest": [_pair(pair) for pair in fleet.pairs]},
        "clocks": [_clock(clock) for clock in fleet.clocks],
        "unmatched_collectives": fleet.unmatched,
        "heat": None if fleet.heat is None else _heat(fleet.heat),
        "notes": list(fleet.notes),
    }


def _rank(rank: Rank) -> Json:
    return {
        "label": rank.label,
        "file": rank.file,
        "device": rank.device,
        "gpu": rank.gpu,
        "iterations": rank.iterations,
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


def _straggler(one: Straggler) -> Json:
    return {
        "rank": one.rank,
        "lag_ns": one.lag,
        "lag_fraction": round(one.share, 6),
        "part": one.part,
        "part_lag_ns": one.part_lag,
        "more_kernels": one.more_kernels,
        "cost_ns": one.cost,
        "cost_each_ns": one.cost_each,
        "waiting": one.waiting,
    }


def _advice(one: Advice) -> Json:
    return {
        "title": one.title,
        "text": one.text,
        "cost_ns": one.cost,
        "cost_each_ns": one.each,
        "waiting": one.waiting,
        "wall_ns": one.wall,
        "rank": one.rank,
    }


def _group(group: Group) -> Json:
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


def _pair(pair: Pair) -> Json:
    return {"waiter": pair.waiter, "last": pair.last, "waited_ns": pair.waited, "count": pair.count}


def _clock(clock: Clock) -> Json:
    return {
        "file": clock.file,
        "method": clock.method,
        "offset_ns": clock.offset,
        "drift_ns_per_s": clock.drift,
        "uncertainty_ns": clock.uncertainty,
        "collectives": clock.count,
        "session_offset_ns": clock.session,
    }


def _heat(heat: Heat) -> Json:
    matrices = {f"{name}_ns": getattr(heat, name).tolist() for name in ("wall", "own", "compute", "wait")}
    return {"iterations": heat.steps.tolist(), "steady": heat.steady.tolist(), **matrices}
