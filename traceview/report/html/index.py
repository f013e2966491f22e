"""Where names stand, for the search of a page that cannot hold every event: some places of each, spread out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview.intervals import Times
from traceview.report.html.columns import Columns, Packed
from traceview.report.html.rows import Group

SEARCHED = ("ruler", "stream", "call", "range")
PLACES = 128  # of each name
MOST = 120_000  # places in all


def index(groups: Sequence[Group], zero: int, columns: Columns, shown: list[Times]) -> dict[str, object]:
    """Put the places of every name into `columns`; return where they lie.

    Columns: name (its number), count (events of that name in all), row (index into `rows`), start, length in
    ns from `zero`. A name has a line for each of its places, in order of (name, start). The numbers of the
    names that have one are appended to `shown`.
    """
    found = [(row.id, marks) for group in groups for row in group.rows if row.kind in SEARCHED for marks in row.lanes]
    ids = sorted({of for of, _ in found})
    name = np.concatenate([np.empty(0, np.int64), *(marks.name for _, marks in found)])
    start = np.concatenate([np.empty(0, np.int64), *(marks.start for _, marks in found)])
    row = np.repeat(np.array([ids.index(of) for of, _ in found], np.int64), [len(marks) for _, marks in found])
    length = np.concatenate([np.empty(0, np.int64), *(marks.end - marks.start for _, marks in found)])
    # Small numbers sort far faster; a stable sort keeps the order of the lanes and of time.
    order = np.argsort(name.astype(np.uint16) if len(name) and name.max() < 1 << 16 else name, kind="stable")
    chosen, count = _spread(name[order])
    rows = order[chosen]
    rows = rows[np.lexsort((start[rows], name[rows]))]
    shown.append(np.unique(name[rows]))
    places: dict[str, Packed] = {
        "name": columns.add_ascending(name[rows]),
        "count": columns.add(count[name[rows]]),
        "row": columns.add(row[rows]),
        "start": columns.add_steps(start[rows] - zero),
        "length": columns.add(length[rows]),
    }
    return {"n": len(rows), "rows": ids, "columns": places}


def _spread(name: Times) -> tuple[Times, Times]:
    """Choose places of ascending names: all of a rare one, evenly spread ones of a frequent one."""
    count = np.bincount(name) if len(name) else np.zeros(1, np.int64)
    kept = np.minimum(count, PLACES)
    if kept.sum() > MOST:
        kept = np.minimum(kept, max(1, MOST // max(1, int((count > 0).sum()))))
    first = np.cumsum(count) - count
    owner = np.repeat(np.arange(len(count)), kept)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(kept) - kept, kept)
    chosen = first[owner] + rank * count[owner] // np.maximum(kept[owner], 1)
    return chosen[:MOST], count
