"""The document of docs/definitions.md "JSON", without its texts."""

from __future__ import annotations

from pathlib import Path

from tests.oracle.export import KINDS, Export, Operation
from tests.oracle.gaps import Causes, device_gaps, stream_gaps
from tests.oracle.host import nvtx
from tests.oracle.iterations import iterations
from tests.oracle.spans import Span, intersect, length, union
from tests.oracle.waits import Gpu, Window, clipped, syncs, touches

KIND_ORDER = ["h2d", "d2h", "d2d", "h2h", "p2p", "um_h2d", "um_d2h", "um_d2d", "other"]
MEMORY_ORDER = ["pageable", "pinned", "managed", "device", "unknown"]
assert set(KINDS.values()) < set(KIND_ORDER)


def figures(
    path: Path, *, window: Window = None, iteration: str | None = None, skip: int | None = None
) -> dict[str, object]:
    export = Export(path)
    causes = Causes(export)
    groups = [
        (group, [one for one in export.operations if (one.process, one.device) in group]) for group in export.devices
    ]
    gpus: list[Gpu] = []
    devices = []
    for group, work in groups:
        here = [one for one in work if touches(one.start, one.end, window)]
        if not here:
            continue
        devices.append(device(causes, group, work, here, window))
        busy = union([clipped(one.start, one.end, window) for one in here])
        bounds = window or (min(one.start for one in here), max(one.end for one in here))
        gpus.append(Gpu({process for process, _ in group}, bounds, busy, work))
    return {
        "devices": devices,
        "host": syncs(export, gpus, window),
        "nvtx": nvtx(export, window),
        "iterations": iterations(export, causes, window, iteration, skip),
        "unmatched": unmatched(export, window),
    }


def unmatched(export: Export, window: Window) -> dict[str, int]:
    here = [one for one in export.operations if window is None or window[0] <= one.start < window[1]]
    lost = [one.table for one in here if one.launch is None and one.correlation]
    return {
        "kernels": lost.count("kernel"),
        "copies": lost.count("memcpy"),
        "memsets": lost.count("memset"),
        "graphs": lost.count("graph"),
    }


def device(
    causes: Causes, group: list[tuple[int, int]], work: list[Operation], here: list[Operation], window: Window
) -> dict[str, object]:
    def spans(chosen: list[Operation]) -> list[Span]:
        return union([clipped(one.start, one.end, window) for one in chosen])

    bounds = window or (min(one.start for one in here), max(one.end for one in here))
    busy = spans(here)
    compute = spans([one for one in here if one.cls == "compute"])
    communication = spans([one for one in here if one.cls == "communication"])
    copies = []
    for pair in sorted({(KIND_ORDER.index(o.kind), MEMORY_ORDER.index(o.memory)) for o in here if o.kind}):
        kind, memory = KIND_ORDER[pair[0]], MEMORY_ORDER[pair[1]]
        chosen = [one for one in here if (one.kind, one.memory) == (kind, memory)]
        copies.append(
            {"kind": kind, "memory": memory, "count": len(chosen), "bytes": sum(one.size for one in chosen)}
            | overlap(spans(chosen), compute)
        )
    streams = []
    for key in sorted({(one.process, one.context, one.stream) for one in here}):
        members = [one for one in work if (one.process, one.context, one.stream) == key]
        streams.append(stream(key, members, window))
    return {
        "process_ids": sorted(process for process, _ in group),
        "window_ns": list(bounds),
        "kernel_count": sum(one.table == "kernel" for one in here),
        "busy_ns": length(busy),
        "compute_ns": length(compute),
        "communication_ns": length(communication),
        "idle_ns": bounds[1] - bounds[0] - length(busy),
        "copies": copies,
        "communication": {"count": sum(one.cls == "communication" for one in here)} | overlap(communication, compute),
        "streams": streams,
        "gaps": device_gaps(causes, busy, bounds, work),
    }


def overlap(of: list[Span], compute: list[Span]) -> dict[str, int]:
    hidden = length(intersect(of, compute))
    return {"busy_ns": length(of), "overlapped_ns": hidden, "exposed_ns": length(of) - hidden}


def stream(key: tuple[int, int, int], members: list[Operation], window: Window) -> dict[str, object]:
    here = [one for one in members if touches(one.start, one.end, window)]
    own = [clipped(one.start, one.end, window) for one in here]
    bounds = (min(start for start, _ in own), max(end for _, end in own))
    return {
        "id": key[2],
        "process_id": key[0],
        "context_id": key[1],
        "kernel_count": sum(one.table == "kernel" for one in here),
        "copy_count": sum(one.cls == "copy" for one in here),
        "busy_ns": length(union(own)),
        **stream_gaps(union(own), bounds),
    }
