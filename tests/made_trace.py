"""Hand-made traces, for cases that do not occur in the captures."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceview.model.trace import (
    API,
    CLASSES,
    DEVICES,
    OPERATIONS,
    OVERHEAD,
    RANGES,
    ROLES,
    SHAPES,
    STREAM_EVENTS,
    STREAMS,
    THREADS,
    ReportInfo,
    Trace,
    Window,
)
from traceview.normalise.operations import empty_shapes


def _frame(schema: dict[str, object], columns: dict[str, list[object]]) -> pl.DataFrame:
    series = []
    for name, wanted in schema.items():
        values = columns[name]
        if wanted is pl.Enum:
            wanted = pl.Enum(sorted({str(value) for value in values}))
        series.append(pl.Series(name, values, dtype=wanted))
    return pl.DataFrame(series)


def _shape(name: str) -> pl.DataFrame:
    numbers = dict.fromkeys(SHAPES, 1)
    return pl.DataFrame([numbers | {"name": name, "demangled": name}], schema=dict(SHAPES))


def made_trace(
    operations: Sequence[tuple[int, int, str, int, int | None]] = (),
    api: Sequence[tuple[int, int, str, int]] = (),
    ranges: Sequence[tuple[int, int, str, int]] = (),
    overhead: Sequence[tuple[int, int]] = (),
    window: Window | None = None,
) -> Trace:
    """Build a Trace of one process and one device.

    `operations`: (start, end, class of CLASSES, stream, launch: index into `api` or None); `api`: (start, end, role of
    ROLES, thread); `ranges`: (start, end, name, thread). traceview/model/trace.py has CLASSES and ROLES; "api" is the
    role of calls that launch. Operations have the name of their class, and calls that of their role after "cuda".
    """
    unknown = ({one[2] for one in operations} - {*CLASSES}) | ({call[2] for call in api} - {*ROLES})
    if unknown:
        raise ValueError(f"no class of CLASSES {CLASSES} or role of ROLES {ROLES}: {unknown}")
    calls = sorted(range(len(api)), key=lambda index: (api[index][0], api[index][1], index))
    row_of = {index: row for row, index in enumerate(calls)}
    work = sorted(operations, key=lambda one: (one[0], one[1]))
    streams = max((one[3] for one in work), default=0) + 1
    threads = max([call[3] for call in api] + [one[3] for one in ranges], default=0) + 1
    spans = sorted(ranges, key=lambda one: (one[0], one[1]))
    copies = [one[2] == "copy" for one in work]
    count = len(work)
    return Trace(
        info=ReportInfo("made.sqlite", None, None, {}),
        operations=_frame(
            dict(OPERATIONS),
            {
                "start": [one[0] for one in work],
                "end": [one[1] for one in work],
                "class": [one[2] for one in work],
                "source": [{"copy": "memcpy", "memset": "memset"}.get(one[2], "kernel") for one in work],
                "kind": ["h2d" if copy else None for copy in copies],
                "memory": ["pinned" if copy else None for copy in copies],
                "bytes": [1024 if copy else 0 for copy in copies],
                "name": [one[2] for one in work],
                "process": [1] * count,
                "device": [0] * count,
                "stream": [one[3] for one in work],
                "correlation": [0 if one[4] is None else one[4] + 1 for one in work],
                "launch": [None if one[4] is None else row_of[one[4]] for one in work],
                "shape": [{"compute": 1, "communication": 2}.get(one[2], 0) for one in work],
            },
        ),
        api=_frame(
            dict(API),
            {
                "start": [api[index][0] for index in calls],
                "end": [api[index][1] for index in calls],
                "name": ["cuda" + api[index][2] for index in calls],
                "role": [api[index][2] for index in calls],
                "implicit": [api[index][2] in ("blocking_copy", "memory") for index in calls],
                "thread": [api[index][3] for index in calls],
                "process": [1] * len(api),
                "correlation": [index + 1 for index in calls],
            },
        ),
        ranges=_frame(
            dict(RANGES),
            {
                "start": [one[0] for one in spans],
                "end": [one[1] for one in spans],
                "name": [one[2] for one in spans],
                "domain": [""] * len(spans),
                "thread": [one[3] for one in spans],
                "process": [1] * len(spans),
                "open": [False] * len(spans),
            },
        ),
        overhead=_frame(dict(OVERHEAD), {"start": [one[0] for one in overhead], "end": [one[1] for one in overhead]}),
        stream_events=pl.DataFrame(schema=dict(STREAM_EVENTS)),
        devices=_frame(
            dict(DEVICES),
            {name: [None] for name in DEVICES}
            | {"id": ["GPU 0"], "device_id": [0], "name": ["made"], "processes": [[1]]},
        ),
        shapes=pl.concat([empty_shapes(), *map(_shape, ("compute", "communication"))]),
        streams=_frame(
            dict(STREAMS),
            {
                "stream_id": list(range(streams)),
                "process": [1] * streams,
                "device": [0] * streams,
                "context": [1] * streams,
                "label": [f"stream {index}" for index in range(streams)],
                "independent": [False] * streams,
            },
        ),
        threads=_frame(
            dict(THREADS),
            {
                "process": [1] * threads,
                "tid": list(range(threads)),
                "name": [f"thread {index}" for index in range(threads)],
            },
        ),
        window=window,
    )
