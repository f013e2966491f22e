"""The JSON Schema of each command's document, in the order in which the document is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import get_type_hints

from traceview.export import Written
from traceview.info import CaptureContents
from traceview.measure import MEASURES
from traceview.measure.base import CaptureMeasure, DeviceMeasure, PartMeasure
from traceview.model.analysis import Iteration, IterationCandidate, IterationSummary, Spread, SyncUse, Unmatched
from traceview.model.collectives import Clock
from traceview.model.comparison import Baselines, ComparedCapture, IterationWork
from traceview.model.devices import CAUSES
from traceview.model.findings import Finding, PredictedTime
from traceview.model.fleet import Advice, Pair, Skipped, Straggler
from traceview.model.ledger import LedgerEntry, OpenStep
from traceview.model.program import Program
from traceview.model.rows import ApiTotal
from traceview.model.stacks import HostPlace
from traceview.model.trace import Note
from traceview.model.whatif import NotApplicable, PathSpan, Prediction
from traceview.read.calibration import FORMAT, VERSION
from traceview.record.doctor import Checks
from traceview.redact import Redacted
from traceview.report.fleet.document import ADVICE, CLOCK, STRAGGLER
from traceview.report.json import (
    DIALECT,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    array,
    closed,
    document_schema,
    mapping,
    optional,
    table_schema,
    type_schema,
)
from traceview.report.whatif import PREDICTION
from traceview.rules.catalogue import Catalogue

NOTES = array(type_schema(Note))
WINDOW = {**array(WHOLE), "minItems": 2, "maxItems": 2}
# Tables of other packages by name, if there are any (docs/extending.md "In your own package").
EXTENSIONS = {"extensions": mapping({"type": ["array", "object", "null"]})}
UNPROFILED = {"unprofiled_ns": optional(mapping(WHOLE)), "unprofiled_source": optional(TEXT)}


def analyze_schema(command: str = "analyze") -> Schema:
    """Return the schema of `traceview analyze --json`, which `record` writes too."""
    use = dict.fromkeys(("kernel_count", "busy_ns", "compute_ns", "communication_ns", "idle_ns"), WHOLE)
    states = {"host_states": mapping(WHOLE), "host_waits": mapping(WHOLE)}
    exposed = {f"exposed_{kind}_ns": WHOLE for kind in ("h2d", "d2h", "communication")}
    steady = closed(
        {"window_ns": WINDOW, **use, **exposed, "causes": mapping(WHOLE), "profiler_ns": optional(mapping(WHOLE))}
        | states
        | _tables(PartMeasure),
        EXTENSIONS,
    )
    gaps = {"count": WHOLE, "total_ns": WHOLE, "causes": mapping(WHOLE), **states, "longest": array(_gap())}
    clock = closed({f"{name}_ns": optional(WHOLE) for name in ("offset", "low", "high")})
    device = closed(
        {"id": TEXT, "name": optional(TEXT), "process_ids": array(WHOLE), "window_ns": WINDOW, "clock": clock, **use}
        | _tables(PartMeasure, DeviceMeasure)
        | {"gaps": closed(gaps), "steady": steady},
        EXTENSIONS,
    )
    report = {"file": TEXT, **dict.fromkeys(("nsys_version", "schema_version"), optional(TEXT)), "profiler": TEXT}
    return document_schema(
        f"traceview {command}",
        {
            "report": closed(report),
            "program": type_schema(Program),
            "answer": TEXT,
            "devices": array(device),
            "host": closed({"sync": _sync(), "implicit_sync": _sync()}),
            **_tables(CaptureMeasure),
            "iterations": _iterations(),
            "whole": {"type": "boolean"},
            "findings": array({"$ref": "#/$defs/finding"}),
            "unmatched": type_schema(Unmatched),
            "notes": NOTES,
        },
        EXTENSIONS,
    ) | {"$defs": {"finding": _finding()}}


def _tables(*kinds: type) -> dict[str, Schema]:
    tables = (measure.table for measure in MEASURES if isinstance(measure, kinds))
    return {table.name: table_schema(table) for table in tables if table.in_json} | EXTENSIONS


def _gap() -> Schema:
    times = dict.fromkeys(("start_ns", "end_ns", "length_ns"), WHOLE)
    ids = dict.fromkeys(("process_id", "thread_id"), optional(WHOLE))
    texts = dict.fromkeys(("next_operation", "range"), optional(TEXT))
    return closed({**times, "cause": TEXT, "causes": mapping(WHOLE), **ids, **texts})


def _sync() -> Schema:
    names = [field.name for field in fields(SyncUse) if field.name not in ("calls", "frame")]
    return closed({**dict.fromkeys(names, WHOLE), "calls": array(type_schema(ApiTotal))})


def _iterations() -> Schema:
    spread = type_schema(Spread)
    empty = closed({name: {"type": "null"} for name in ("median", "p5", "p95")})
    always = {
        "range": optional(TEXT),
        "source": TEXT,
        "confidence": NUMBER,
        "time_ns": optional(WHOLE),
        **UNPROFILED,
        "count": WHOLE,
        "skipped": WHOLE,
        "candidates": array(type_schema(IterationCandidate)),
        "wall_ns": {"anyOf": [spread, empty]},
        "per_iteration": array(type_schema(Iteration)),
    }
    measured = {"process_id": optional(WHOLE), "skipped_why": optional(TEXT), "not_measured": TEXT}
    known = closed(always | measured, measured)
    return {**known, "additionalProperties": spread}  # one more for each figure of an iteration


def _finding() -> Schema:
    place = dict.fromkeys(("start_ns", "end_ns"), WHOLE) | dict.fromkeys(("stream", "thread"), optional(WHOLE))
    hints = type_schema_of_fields(Finding, leave_out=("evidence", "host", "prediction", "others", "change"))
    return closed(
        hints
        | {
            "host": optional(type_schema(HostPlace)),
            "prediction": optional(type_schema(PredictedTime)),
            "evidence": array(closed({"text": TEXT, "device": optional(TEXT), **place})),
            "others": array({"$ref": "#/$defs/finding"}),
        }
    )


def type_schema_of_fields(kind: type, leave_out: Iterable[str] = ()) -> dict[str, Schema]:
    """Return the schemas of a class's fields by name."""
    hints = get_type_hints(kind)
    return {field.name: type_schema(hints[field.name]) for field in fields(kind) if field.name not in set(leave_out)}


def compare_schema() -> Schema:
    """Return the schema of `traceview compare --json`."""
    names = ("before", "after", "difference", "low", "high", "mean_before", "mean_after")
    figure = {name: optional(NUMBER) for name in names}
    time = closed({f"{name}_ns": schema for name, schema in figure.items()} | {"verdict": TEXT})
    change = {"anyOf": [time, closed({**figure, "verdict": TEXT})]}
    size = optional(array(WHOLE))
    kernel = {"name": TEXT, "label": TEXT, "grid": size, "block": size, "status": TEXT, "cost_ns": WHOLE}
    line = {"file": TEXT, "function": TEXT, "line": optional(WHOLE), "line_before": optional(WHOLE), "idle": time}
    against = {
        "capture": type_schema(ComparedCapture),
        **dict.fromkeys(("verdict", "why"), TEXT),
        **dict.fromkeys(("confidence", "ratio", "ratio_low", "ratio_high", "unprofiled_ratio"), optional(NUMBER)),
        "time": time,
        "mean_parts": mapping(time),
        "work": type_schema(IterationWork),
        "wall": time,
        "parts": mapping(time),
        "left_over_ns": WHOLE,
        "idle": time,
        "host": mapping(change),
        "kernels": array(closed({**kernel, **dict.fromkeys(("count", "time", "per_call"), change)})),
        "lines": array(closed(line)),
        "notes": NOTES,
    }
    properties = {"cut": TEXT, "cut_why": TEXT, "level": NUMBER, "min_change_fraction": NUMBER}
    both = {"base": type_schema(ComparedCapture), "against": array(closed(against)), "notes": NOTES}
    return document_schema("traceview compare", properties | both)


def whatif_schema() -> Schema:
    """Return the schema of `traceview whatif --json`."""
    predictions = array(type_schema(Prediction, PREDICTION.items()))
    return document_schema(
        "traceview whatif",
        {
            **dict.fromkeys(("file", "range"), TEXT),
            "iterations": type_schema(IterationSummary),
            **dict.fromkeys(("counted", "modelled", "measured_ns"), WHOLE),
            **UNPROFILED,
            "replayed_ns": WHOLE,
            "replay_error": NUMBER,
            "path_ns": mapping(WHOLE),
            "spans": array(type_schema(PathSpan)),
            "predictions": predictions,
            "together": predictions,
            "left_out": array(type_schema(NotApplicable)),
            "notes": NOTES,
        },
    )


def fleet_schema() -> Schema:
    """Return the schema of `traceview fleet --json`."""
    skew, last = closed({"median": WHOLE, "p95": WHOLE}), closed({"rank": WHOLE, "count": WHOLE})
    group = {"name": TEXT, "matched_by": TEXT, "kind": TEXT, "ranks": array(WHOLE), "count": WHOLE, "skew_ns": skew}
    matrices = dict.fromkeys((f"{name}_ns" for name in ("wall", "own", "compute", "wait")), array(array(WHOLE)))
    heat = {"iterations": array(WHOLE), "steady": array(WHOLE), **matrices}
    waits = {"count": WHOLE, "longest": array(type_schema(Pair, [("waited", "waited_ns")]))}
    return document_schema(
        "traceview fleet",
        {
            "reports": array(TEXT),
            "skipped": array(type_schema(Skipped)),
            "typical_own_ns": optional(WHOLE),
            "margin_fraction": NUMBER,
            "ranks": array(_rank()),
            "stragglers": array(type_schema(Straggler, STRAGGLER.items())),
            "advice": array(type_schema(Advice, ADVICE.items())),
            "collectives": array(closed({**group, "transfer_ns": WHOLE, "waited_ns": WHOLE, "last": last})),
            "waits": closed(waits),
            "clocks": array(type_schema(Clock, CLOCK.items())),
            "unmatched_collectives": WHOLE,
            "heat": optional(closed(heat)),
            "notes": NOTES,
        },
    )


def _rank() -> Schema:
    texts = {**dict.fromkeys(("label", "file", "device"), TEXT), "gpu": optional(TEXT)}
    parts = ("time", "wall", "own", "lag", "noise", "compute", "exposed_communication", "copies", "idle")
    times = (*parts, "wait", "bare_wait", "caused", "bare_caused", "typical_own")
    counts = ("iterations", "kernels", "last_count", "set", "matched_count")
    causes = closed({f"{cause}_ns": WHOLE for cause in CAUSES})
    return closed(
        texts
        | dict.fromkeys((f"{name}_ns" for name in times), optional(WHOLE))
        | dict.fromkeys(counts, optional(WHOLE))
        | {"causes": causes}
    )


def result_schema(command: str, kind: type) -> Schema:
    """Return the schema of a command whose document is a result as it is declared."""
    return document_schema(f"traceview {command}", type_schema_of_fields(kind))


def optimize_schema() -> Schema:
    """Return the schema of `traceview optimize --json`."""
    gains = ("predicted_gain_fraction", "measured_gain_fraction", "error_fraction")
    figures = type_schema_of_fields(LedgerEntry) | dict.fromkeys(gains, NUMBER) | {"inside": {"type": "boolean"}}
    return document_schema(
        "traceview optimize",
        {
            "entries": array(closed(figures)),
            "open_step": optional(type_schema(OpenStep)),
            "inside_count": WHOLE,
            **dict.fromkeys(("mean_error_fraction", "bias_fraction"), optional(NUMBER)),
        },
    )


def calibrate_schema() -> Schema:
    """Return the schema of the file of `traceview calibrate`, which has a version of its own."""
    machine = dict.fromkeys(("gpu", "cpu", "nsys"), optional(TEXT)) | {"cuda": optional(WHOLE)}
    figures = {"scale": NUMBER, "scale_range": array(NUMBER), "kernel_gap_ns": NUMBER, "added_ns": mapping(WHOLE)}
    constants: dict[str, Schema] = {"format": {"const": FORMAT}, "version": {"const": VERSION}}
    return {"$schema": DIALECT, "title": "traceview calibrate", **closed({**constants, **machine, **figures})}


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "analyze": analyze_schema,
    "baseline": partial(result_schema, "baseline", Baselines),
    "calibrate": calibrate_schema,
    "compare": compare_schema,
    "doctor": partial(result_schema, "doctor", Checks),
    "export": partial(result_schema, "export", Written),
    "fleet": fleet_schema,
    "info": partial(result_schema, "info", CaptureContents),
    "optimize": optimize_schema,
    "record": partial(analyze_schema, "record"),
    "redact": partial(result_schema, "redact", Redacted),
    "rules": partial(result_schema, "rules", Catalogue),
    "whatif": whatif_schema,
}
