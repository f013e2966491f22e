"""Which thread of the system a numbered Python thread is. The samples are made by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from tests.profiling import profiled
from traceview.model.stacks import EVENTS
from traceview.model.trace import Trace
from traceview.normalise.stacks import ThreadEvidence, _samples, root_kinds
from traceview.normalise.threads import Threads
from traceview.pipeline import open_trace

PROCESS = 7
TIDS = [7, 8, 9, 10]  # the first is the main thread
THREADS = Threads(pl.Series("globalTid", [PROCESS << 24 | tid for tid in TIDS]))
PROGRAM = """
import json, sys, threading, time
def work(stop):
    while not stop.is_set(): json.dumps({str(i): i for i in range(3000)})
stop = threading.Event(); thread = threading.Thread(target=work, args=(stop,)); thread.start()
for _ in range(int(sys.argv[1])): sum(range(200_000)); time.sleep(0.01)
stop.set(); thread.join()
"""


def owners(
    roots: dict[int, str],
    held: Sequence[tuple[int, int, int]] = (),
    callers: Sequence[int] = (),
    names: Sequence[str] = (),
) -> dict[int, int | None]:
    """Return the thread of each Python thread, which is sampled at 0, 10, 20, ... and always holds the lock."""
    rows = [(10 * at, 10 * at, PROCESS << 24 | 7, key, 1, 0, root) for at in range(9) for key, root in roots.items()]
    columns = ("start", "end", "globalTid", "category", "holdsGil", "stack")
    samples = pl.DataFrame(rows, schema={**dict.fromkeys(columns, pl.Int64), "root": pl.String}, orient="row")
    samples = samples.hstack(root_kinds(samples["root"]))
    events = [(start, end, "running", "lock", thread, "") for start, end, thread in held]
    known = ThreadEvidence(
        pl.DataFrame(events, schema={**EVENTS, "name": pl.String, "waits_for": pl.String}, orient="row"),
        callers,
        list(names) or ["python"] * 4,
    )
    rows_of_threads = _samples(samples, THREADS, known).sort("python_thread").select("python_thread", "thread").unique()
    return dict(zip(sorted(roots), [thread for _, thread in sorted(rows_of_threads.rows())], strict=True))


def test_main_thread_runs_the_script() -> None:
    assert owners({1: "<module>", 2: "_bootstrap"}) == {1: 0, 2: None}


def test_thread_that_holds_the_lock_is_the_sampled_one() -> None:
    held = [(0, 55, 2), (55, 100, 1)]
    assert owners({1: "<module>", 2: "_bootstrap"}, held) == {1: 0, 2: 2}
    assert owners({1: "<module>", 2: "_bootstrap"}, [(0, 35, 2)]) == {1: 0, 2: None}  # 4 of 9 samples


def test_threads_of_the_system_belong_to_one_python_thread() -> None:
    """Times of the lock that are late by a sample name the thread that held it before."""
    assert owners({1: "<module>", 2: "_bootstrap"}, [(0, 100, 0)]) == {1: 0, 2: None}
    assert sorted(owners({2: "_bootstrap", 3: "_bootstrap"}, [(0, 100, 2)]).values(), key=str) == [2, None]


def test_only_launching_thread_of_its_kind_is_the_sampled_one() -> None:
    assert owners({1: "<module>", 2: "_bootstrap"}, callers=[0, 3]) == {1: 0, 2: 3}
    assert owners({1: "<module>", 2: "_bootstrap"}, callers=[0, 2, 3]) == {1: 0, 2: None}
    both = {1: "<module>", 2: "_bootstrap", 3: "backward"}
    names = ["python", "python", "pt_autograd_0", "python"]
    assert owners(both, callers=[0, 2, 3], names=names) == {1: 0, 2: 3, 3: 2}
    assert owners({1: "<module>", 3: "_bootstrap"}, callers=[0, 2], names=names) == {1: 0, 3: None}


def roots(trace: Trace, thread: int) -> set[str]:
    """Return the outermost functions of the samples of a thread."""
    parent, frame = (trace.evidence.stacks[name].to_list() for name in ("parent", "frame"))
    nodes = set(trace.evidence.samples.filter(pl.col("thread") == thread, pl.col("stack") >= 0)["stack"].to_list())
    while any(parent[node] >= 0 for node in nodes):
        nodes = {node if parent[node] < 0 else parent[node] for node in nodes}
    return set(trace.evidence.frames["function"].gather([frame[node] for node in nodes]).to_list())


def test_threads_of_a_real_program(nsys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the lock traced, the samples of a thread without CUDA calls get their thread too."""
    script, report = tmp_path / "train.py", tmp_path / "run.nsys-rep"
    script.write_text(PROGRAM)
    options = ("--python-sampling=true", "--python-sampling-frequency=1000", "-t", "nvtx,python-gil", "-s", "none")
    monkeypatch.setenv("PATH", f"{Path(nsys).parent}{os.pathsep}{os.environ['PATH']}")
    for steps in (20, 100, 500):  # a loaded machine takes few samples of a short run
        profiled(nsys, report, sys.executable, script, steps, options=options)
        trace = open_trace(report)
        threads = trace.evidence.samples.group_by("python_thread").agg(pl.col("thread").unique()).sort("python_thread")
        owner = threads["thread"].to_list()
        if len(owner) == 2 and [None] not in owner:
            break
    assert len(owner) == 2 and [None] not in owner, owner
    # The threads are numbered by their first sample, and nsys may take that of the younger one first.
    (main,), (worker,) = sorted(
        owner, key=lambda rows: trace.threads["tid"][rows[0]] != trace.threads["process"][rows[0]]
    )
    assert trace.threads["tid"][main] == trace.threads["process"][main]
    assert worker != main and trace.threads["name"][worker] != "NSys PySampling"
    assert "<module>" in roots(trace, main) and roots(trace, worker) == {"_bootstrap"}
