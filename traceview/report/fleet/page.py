"""From a Fleet to the text of the page, which needs no other file and no network."""

from __future__ import annotations

from traceview.model.fleet import Fleet
from traceview.report.assets import FLEET, escaped_json
from traceview.report.fleet.content import content


def render(fleet: Fleet) -> str:
    """Return one HTML document; the same fleet gives the same bytes."""
    values, heat = content(fleet)
    return "".join(FLEET.document(str(values["title"]), {"content": [escaped_json(values)], "heat": [heat]}))
