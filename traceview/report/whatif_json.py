"""A what-if as JSON: whole ns, the same bytes every time (docs/whatif.md "JSON")."""

from __future__ import annotations

import json
from dataclasses import asdict

from traceview.model_whatif import Prediction, WhatIf
from traceview.report.to_json import Json

SCHEMA_VERSION = 1


def to_json(found: WhatIf) -> str:
    """Return the document as text."""
    return json.dumps(document(found), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def document(found: WhatIf) -> dict[str, Json]:
    """Return the document as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": found.info.file,
        "range": found.range,
        "counted": found.counted,
        "modelled": found.modelled,
        "measured_ns": found.measured_ns,
        "replayed_ns": found.replayed_ns,
        "replay_error": round(found.error, 6),
        "path_ns": dict(found.path),
        "spans": [asdict(span) for span in found.spans],
        "predictions": [_prediction(one) for one in found.predictions],
        "together": [_prediction(one) for one in found.together],
        "left_out": [asdict(one) for one in found.left_out],
        "notes": list(found.notes),
    }


def _prediction(one: Prediction) -> dict[str, Json]:
    values: dict[str, Json] = asdict(one) | {"path_ns": dict(one.path)}
    del values["path"]
    return values
