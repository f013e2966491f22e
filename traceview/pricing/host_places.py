"""Where the host was in the idle time of a finding: a source line or a system call, and what helps there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from traceview.model.analysis import HostTime
from traceview.model.devices import HostStates
from traceview.model.rows import SourceLine
from traceview.pricing.base import FindingDraft
from traceview.pricing.figures import duration
from traceview.pricing.ledger import Grant, IdleClaim

MIN_LINE_SHARE, MIN_WAIT_SHARE = 0.1, 0.3  # of the idle time, for a line or a call to be named
MOSTLY = 0.5
MAX_GAPS = 10_000  # the longest ones stand for all gaps of a finding
NOT_OF_THE_HOST = {"profiler", "queued", "unknown"}  # causes of idle time that no line of the program explains
# What helps where the host was, by the functions of libraries below its line, or by the system call.
ADVICE: Mapping[str, str] = {
    r"torch/utils/data/_utils/(?:fetch|collate)": "The main process loads the data: set `num_workers` and "
    "`pin_memory=True` in the DataLoader.",
    r"torch/utils/data/dataloader": "The DataLoader's workers are not ready in time: add workers, raise "
    "`prefetch_factor`, make samples cheaper.",
    r"json/": "JSON: encode in a thread or process of its own, or every N steps, or with `orjson`.",
    r"logging/": "Log every N steps, or through `logging.handlers.QueueHandler`, and write in a thread.",
    r"tqdm/": "Progress bars: set `mininterval=1`, and update them every N steps.",
    r"\((?:re|regex)/": "Regular expressions: compile them once, prepare texts before the run, or use workers.",
    r"tokeniz": "Tokenize before the run or in DataLoader workers; fast tokenizers take whole batches.",
    r"\(PIL/|cv2|torchvision/(?:io|transforms)": "Decode and transform images in DataLoader workers or on the GPU.",
    r"torch/serialization|pickle": "Save checkpoints in a thread or process, from a copy in host memory.",
    r"torch/optim/": "Use `fused=True`, or `torch.compile` the optimizer's step.",
    r"torch/autograd/": "The backward pass launches too slowly: `torch.compile`, a CUDA graph, or larger batches.",
    r"threading\.py|pthread_mutex|pthread_rwlock": "A lock: find the thread that holds it, and hold it for less time.",
    r"nanosleep|usleep": "The thread sleeps: remove the sleep, or wait for an event.",
    r"^(?:sem_|pthread_cond)": "The thread waits for another thread or process, such as a queue: feed it earlier.",
    r"^(?:p?read|fread|open|fopen|mmap|p?write|fwrite|fsync)": "Files: read ahead and write in another thread.",
    r"^(?:poll|select|epoll|recv|accept|connect|send)": "Sockets and pipes: fetch the data in another thread.",
    r"^garbage_collection": "Call `gc.disable()` or `gc.freeze()` before the loop, and `gc.collect()` every N steps.",
    r"^compiling": "Compile before the loop: warm up every shape, and keep shapes the same.",
    r"^off_cpu": "The thread is not scheduled: it waits in the system or for a free CPU core.",
}
STATE_WORDS = {
    "garbage_collection": "in garbage collections",
    "compiling": "in compilation",
    "off_cpu": "off the CPU",
}


class HostPlace(NamedTuple):
    """Words for the end of a finding's title, and advice on the place; both may be empty."""

    where: str
    advice: str


NOWHERE = HostPlace("", "")


def host_place(host_time: HostTime | None, draft: FindingDraft, grant: Grant) -> HostPlace:
    """Return where the host was in the granted idle time, if the capture tells."""
    causes = {cause for claim in draft.claims if isinstance(claim, IdleClaim) for cause in claim.causes}
    if host_time is None or len(grant.idle) == 0 or not causes or causes & NOT_OF_THE_HOST:
        return NOWHERE
    is_host = causes == {"host"}
    positions = np.flatnonzero(grant.idle)
    if len(positions) > MAX_GAPS:
        longest = np.argpartition(grant.idle[positions], -MAX_GAPS)[-MAX_GAPS:]
        positions = positions[np.sort(longest)]
    rows = positions + grant.rows.start if isinstance(grant.rows, slice) else grant.rows[positions]
    gaps = draft.device.use.gaps.frame[rows]
    total = int(grant.idle[positions].sum())
    if total == 0:
        return NOWHERE
    scale = int(grant.idle.sum()) / total
    return _line_place(host_time.lines([gaps]), total, scale, is_host) or (
        _state_place(host_time.states(gaps), total, scale) if is_host else NOWHERE
    )


def _line_place(lines: tuple[SourceLine, ...], total: int, scale: float, is_host: bool) -> HostPlace | None:
    """Return the line with the most idle time of the finding's kind, unless it has little or no name."""
    if not lines:
        return None
    times = [line.host_ns if is_host else line.idle_ns - line.host_ns for line in lines]
    at = max(range(len(lines)), key=times.__getitem__)
    line = lines[at]
    if times[at] < MIN_LINE_SHARE * total or line.function.startswith("("):
        return None
    place = f"{line.place} ({line.function})" if line.line else line.place
    advice = _advice(line.stack)
    if is_host:
        return HostPlace(f", {duration(int(min(times[at], total) * scale))} of it at {place}", advice)
    return HostPlace(f", mostly at {place}", advice) if times[at] > MOSTLY * sum(times) else None


def _state_place(states: HostStates, total: int, scale: float) -> HostPlace:
    """Return the longest system call or another state that explains the time, if one does."""
    longest = max(states.waits, key=states.waits.__getitem__, default="")
    times = {longest: states.waits.get(longest, 0), **{name: states.ns[name] for name in STATE_WORDS}}
    name = max(times, key=times.__getitem__)
    if times[name] < MIN_WAIT_SHARE * total:
        return NOWHERE
    where = STATE_WORDS.get(name, f"in `{name}`")
    return HostPlace(f", {duration(int(min(times[name], total) * scale))} of it {where}", _advice(name))


def _advice(place: str) -> str:
    return next((f"{text} " for pattern, text in ADVICE.items() if re.search(pattern, place)), "")
