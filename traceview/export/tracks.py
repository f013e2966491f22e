"""The rows that a viewer shows: processes with their threads, GPUs with their streams and their idle time."""

from __future__ import annotations

from dataclasses import dataclass, field

from traceview.export.contents import Contents

IDLE = "idle, by cause"
ASIDE = ("NVTX ranges that cross others", "CUDA calls that cross others")


@dataclass(frozen=True, slots=True)
class Track:
    """One row. `id` counts from 1; `parent` is the id of the row that it stands under, 0 for none.

    Lanes of one stream or thread have the same `name` and `lane_of`. `device` is a row of Trace.devices;
    `stream_id` and `context` are CUDA's.
    """

    id: int
    kind: str  # "process", "thread", "aside", "device", "idle", "stream" or "counter"
    name: str
    parent: int
    lane_of: int
    process: int = 0
    tid: int = 0
    device: int = -1
    stream_id: int = -1
    context: int = -1


@dataclass(slots=True)
class Tracks:
    """Rows as they are needed, each made once."""

    of: Contents
    made: list[Track] = field(default_factory=list)
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def process(self, process: int) -> int:
        """Return the row of a process."""
        return self._row(("process", process), "process", f"process {process}", 0, process=process)

    def thread(self, thread: int) -> int:
        """Return the row of a thread (a row of Trace.threads)."""
        row = self.of.trace.threads.row(thread, named=True)
        process, tid = row["process"], row["tid"]
        parent = self.process(process)
        return self._row(("thread", thread), "thread", row["name"] or f"thread {tid}", parent, process=process, tid=tid)

    def aside(self, thread: int, is_call: int, lane: int) -> int:
        """Return a row for what does not nest in the thread's own row."""
        parent = self.thread(thread)
        process = self.of.trace.threads["process"][thread]
        return self._row(("aside", thread, is_call, lane), "aside", ASIDE[is_call], parent, process=process)

    def device(self, device: int) -> int:
        """Return the row of a GPU (a row of Trace.devices)."""
        row = self.of.trace.devices.row(device, named=True)
        return self._row(("device", device), "device", f"{row['id']} {row['name']}".strip(), 0, device=device)

    def idle(self, device: int) -> int:
        """Return the row of a GPU's idle time."""
        return self._row(("idle", device), "idle", IDLE, self.device(device), device=device)

    def counter(self, device: int, name: str) -> int:
        """Return the row of one of a GPU's counters."""
        return self._row(("counter", device, name), "counter", name, self.device(device), device=device)

    def stream(self, stream: int, lane: int) -> int:
        """Return the row of one lane of a stream (a row of Trace.streams)."""
        row = self.of.trace.streams.row(stream, named=True)
        device, process = row["device"], row["process"]
        shared = len(self.of.trace.devices["processes"][device]) > 1
        name = f"{row['label']} (process {process})" if shared else row["label"]
        return self._row(
            ("stream", stream, lane),
            "stream",
            name,
            self.device(device),
            device=device,
            stream_id=row["stream_id"],
            context=row["context"],
        )

    def _row(
        self,
        key: tuple[object, ...],
        kind: str,
        name: str,
        parent: int,
        *,
        process: int = 0,
        tid: int = 0,
        device: int = -1,
        stream_id: int = -1,
        context: int = -1,
    ) -> int:
        found = self._known.get(key)
        if found is None:
            found = len(self.made) + 1
            # The last of a lane's key is its number: the lanes before it were made before.
            lane_of = found if key[0] not in ("stream", "aside") else self._known.get((*key[:-1], 0), found)
            self.made.append(Track(found, kind, name, parent, lane_of, process, tid, device, stream_id, context))
            self._known[key] = found
        return found
