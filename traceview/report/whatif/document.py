"""A what-if as JSON: whole ns, the same bytes every time (docs/whatif.md "JSON")."""

from __future__ import annotations

from traceview.model.whatif import WhatIf
from traceview.report.json import Json, indented_text, plain, rounded

SCHEMA_VERSION = 1
PREDICTION = {"path": "path_ns"}


def to_json(result: WhatIf) -> str:
    """Return the document as text."""
    return indented_text(document(result))


def document(result: WhatIf) -> dict[str, Json]:
    """Return the document as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": result.info.file,
        "range": result.range,
        "counted": result.counted,
        "modelled": result.modelled,
        "measured_ns": result.measured_ns,
        "replayed_ns": result.replayed_ns,
        "replay_error": rounded(result.error),
        "path_ns": plain(result.path),
        "spans": plain(result.spans),
        "predictions": plain(result.predictions, PREDICTION),
        "together": plain(result.together, PREDICTION),
        "left_out": plain(result.left_out),
        "notes": list(result.notes),
    }
