"""Whether a capture can be trusted, on hand-made exports (docs/definitions.md "Health of a capture")."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.build_export import Call, Graph, Kernel, Nvtx, Overhead, build_export
from tests.captures import ALL, analyzed, sample, shared
from traceview.errors import NoGpuWorkError
from traceview.model.findings import Finding
from traceview.model.trace import Note, ReportInfo
from traceview.pipeline import analyze, open_trace
from traceview.report.analysis import terminal

DIAGNOSTICS = "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, source INTEGER, severity INTEGER, text TEXT)"
CUPTI_OVERHEAD = "CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD (start INTEGER, end INTEGER, overheadType INTEGER)"
RESULTS = "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN returnValue INTEGER DEFAULT 0"


def info(tmp_path: Path, statements: Sequence[str] = (), **tables: object) -> ReportInfo:
    path = build_export(tmp_path / "made.sqlite", statements=statements, **tables)  # type: ignore[arg-type]
    return open_trace(path).info


def ids(report: ReportInfo) -> list[str]:
    return [note.id for note in report.health]


def launches(count: int, with_work: int, name: str = "cudaLaunchKernel_v7000") -> dict[str, object]:
    """`count` launches 100 ns apart, of which the first `with_work` have a kernel of 50 ns."""
    calls = [Call(100 * i, 100 * i + 9, name, correlation=i + 1) for i in range(count)]
    return {"api": calls, "kernels": [Kernel(100 * i + 10, 100 * i + 60, correlation=i + 1) for i in range(with_work)]}


def said(*texts: str) -> list[str]:
    return [DIAGNOSTICS, *(f"INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 1, 2, '{text}')" for text in texts)]


def test_dropped_events(tmp_path: Path) -> None:
    def dropped(count: int) -> Note:
        (note,) = info(tmp_path, said(f"Number of incomplete CUPTI events dropped: \t{count}"), **launches(9, 9)).health
        return note

    assert (dropped(7).id, "7 CUDA events" in dropped(7).text) == ("dropped_events", True)
    assert "idle" in dropped(7).affects
    few = info(tmp_path, said("Number of incomplete CUPTI events dropped: 1"), **launches(200, 200)).health[0]
    assert few.affects == ()


def test_work_that_fails_is_not_dropped_by_the_profiler(tmp_path: Path) -> None:
    """nsys counts a failed launch as a dropped event. A note says that a call of the process failed."""
    failed = [RESULTS, "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 701 WHERE correlationId = 9"]
    dropped = [*failed, *said("Number of incomplete CUPTI events dropped: 1")]
    assert ids(info(tmp_path, dropped, **launches(9, 8))) == ["failed_calls"]
    calls, lost = info(tmp_path, failed, **launches(9, 0)).health
    assert (lost.id, calls.id) == ("lost_launches", "failed_calls")
    assert lost.text.endswith("a call of the process failed, and work that fails has no record")


def test_work_of_one_process_is_lost(tmp_path: Path) -> None:
    """That of another is there, so that the profiler got events from the GPU."""
    one = launches(9, 9)
    other = [Call(100 * at, 100 * at + 9, correlation=at + 1, process=20, thread=21) for at in range(9)]
    (note,) = info(tmp_path, api=[*one["api"], *other], kernels=one["kernels"]).health  # type: ignore[misc]
    assert "9 of 9 kernel launches of process 20" in note.text and "WSL2" not in note.text


def test_texts_of_good_captures_prove_nothing(tmp_path: Path) -> None:
    report = info(
        tmp_path,
        said("Not all CUDA events might have been collected.", "CUDA profiling might have not been started correctly."),
        **launches(3, 3),
    )
    assert report.health == ()
    assert "the profiler reports no dropped event" in report.passed


def test_driver_and_unified_memory(tmp_path: Path) -> None:
    texts = (
        "Installed CUDA driver version (13.0) is not supported by this build of Nsight Systems. CUDA trace will be",
        "CUDA device 0: Unified Memory cannot be traced on devices that do not support peer-to-peer transfers.",
    )
    assert info(tmp_path, said(texts[1]), **launches(3, 3)).health[0].affects == ()
    calls = {"api": [Call(), Call(1, 2, "cudaMallocManaged_v6000", correlation=9)], "kernels": [Kernel()]}
    driver, memory = info(tmp_path, said(*texts), **calls).health
    assert (driver.id, driver.affects) == ("driver_too_new", ())
    assert "(13.0)" in driver.text
    assert (memory.id, "managed_wait" in memory.affects) == ("unified_memory_not_traced", True)


def test_launches_without_work(tmp_path: Path) -> None:
    (note,) = info(tmp_path, **launches(10, 6)).health
    assert note.id == "lost_launches"
    assert "4 of 10 kernel launches of process 10 (40.0%) have no GPU work" in note.text
    (note,) = info(tmp_path, **launches(10, 0)).health
    assert "10 of 10" in note.text and "WSL2" in note.text
    assert "10 of 10 launches have their GPU work in the capture" in info(tmp_path, **launches(10, 10)).passed


def test_calls_without_any_gpu_work(tmp_path: Path) -> None:
    """The captures of WSL2: calls were traced, so the remedy is another driver or profiler."""
    with pytest.raises(NoGpuWorkError) as caught:
        analyze(build_export(tmp_path / "wsl.sqlite", **launches(10, 0)))  # type: ignore[arg-type]
    assert "its profiler got no events from the GPU; use a newer driver and nsys" in str(caught.value)
    path = build_export(tmp_path / "wsl.sqlite", **launches(10, 0), nvtx=[Nvtx(text="step")])  # type: ignore[arg-type]
    texts = {note.id: note.text for note in analyze(path).notes}
    assert "a newer driver" in texts["no_gpu_work"] and "does not use a GPU" not in texts["no_gpu_work"]
    assert "lost_launches" in texts


def test_graph_replays_without_work(tmp_path: Path) -> None:
    (note,) = info(tmp_path, **launches(10, 5, "cudaGraphLaunch_v10000")).health
    assert note.id == "lost_graph_replays"
    assert "5 of 10 CUDA graph launches" in note.text and "--cuda-graph-trace=node" in note.text
    graphs = [Graph(100 * i + 10, 100 * i + 60, correlation=i + 1) for i in range(10)]
    calls = launches(10, 0, "cudaGraphLaunch_v10000")["api"]
    assert info(tmp_path, api=calls, graphs=graphs).health == ()


def test_launches_that_need_no_work(tmp_path: Path) -> None:
    """Work still queued at the end, launches recorded into a graph, failed launches, and calls with two names."""
    calls = [Call(100, 109), Call(110, 119, correlation=2), Call(120, 129, correlation=3)]
    report = info(tmp_path, api=calls, kernels=[Kernel(130, 900)])
    assert report.health == ()
    assert "1 of 3 launches have their GPU work in the capture; 2 were still queued at its end" in report.passed
    captured = [
        Call(0, 9, "cudaStreamBeginCapture_v10000", correlation=7),
        Call(10, 19, correlation=8),
        Call(20, 29, "cudaStreamEndCapture_v10000", correlation=9),
    ]
    work = [Kernel(150, 160)]
    assert "1 of 1 launches" in info(tmp_path, api=[*captured, Call(100, 109)], kernels=work).passed[0]
    assert (
        "1 of 1 launches"
        in info(tmp_path, api=[Call(100, 109, "cudaLaunchKernel"), *calls[:1]], kernels=work).passed[0]
    )
    failed = "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 700 WHERE correlationId = 2"
    report = info(tmp_path, [RESULTS, failed], api=[Call(100, 109), Call(210, 219, correlation=2)], kernels=work)
    assert ids(report) == ["failed_calls"]
    assert "1 of 1 launches have their GPU work in the capture" in report.passed


def test_failed_calls(tmp_path: Path) -> None:
    calls = [
        Call(0, 9),
        Call(10, 19, "cudaEventQuery_v3020", correlation=2),
        Call(20, 29, "cudaMalloc_v3020", correlation=3),
        Call(30, 39, "cudaPointerGetAttributes_v4000", correlation=4),
    ]
    results = [
        f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = {r} WHERE correlationId = {c}"
        for c, r in ((2, 600), (4, 1))
    ]
    good = info(tmp_path, [RESULTS, *results], api=calls, kernels=[Kernel()])
    assert good.health == () and "no CUDA call failed" in good.passed
    out_of_memory = "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 2 WHERE correlationId = 3"
    (note,) = info(tmp_path, [RESULTS, *results, out_of_memory], api=calls, kernels=[Kernel()]).health
    assert "1 CUDA call failed: cudaMalloc (1 x out of memory)" in note.text
    assert not any("failed" in check for check in info(tmp_path, api=calls, kernels=[Kernel()]).passed)


def test_cuda_ends_before_the_ranges(tmp_path: Path) -> None:
    def steps(count: int, name: str = "iteration {}") -> list[Nvtx]:
        return [Nvtx(100 * i, 100 * i + 90, text=name.format(i)) for i in range(count)]

    (note,) = info(tmp_path, **launches(5, 5), nvtx=steps(9)).health
    assert note.id == "cuda_ends_early"
    assert "process 10" in note.text and "4 ranges such as 'iteration #'" in note.text
    assert note.affects == ("iterations", "nvtx")  # the window of a GPU ends with its last work
    # Other work after the last call: nothing is lost.
    other = [*steps(5), Nvtx(700, 790, text="save"), Nvtx(800, 890, text="save")]
    assert info(tmp_path, **launches(5, 5), nvtx=other).health == ()
    assert info(tmp_path, **launches(5, 5), nvtx=steps(6)).health == ()  # the end of a loop may do nothing


def test_cuda_ends_early_in_one_process(tmp_path: Path) -> None:
    ranges = [Nvtx(100 * i, 100 * i + 90, text="step", process=process) for i in range(9) for process in (10, 20)]
    calls = [Call(100 * i, 100 * i + 9, correlation=i + 1, process=10) for i in range(9)]
    calls += [Call(100 * i, 100 * i + 9, correlation=i + 1, process=20) for i in range(4)]
    kernels = [
        Kernel(call.start + 10, call.end + 50, correlation=call.correlation, process=call.process) for call in calls
    ]
    (note,) = info(tmp_path, api=calls, kernels=kernels, nvtx=ranges).health
    assert "process 20" in note.text and "5 ranges" in note.text


def test_lost_ranges(tmp_path: Path) -> None:
    domain = Nvtx(text="pipeline", kind=75, end=None)
    assert ids(info(tmp_path, **launches(3, 3), nvtx=[domain])) == ["lost_ranges"]
    python = Nvtx(text="Python Backtrace", kind=75, end=None)  # nsys creates it for its samples
    assert ids(info(tmp_path, **launches(3, 3), nvtx=[python])) == []
    library = Nvtx(text="cuBLAS", kind=75, end=None)  # it creates its domain without a range
    assert ids(info(tmp_path, **launches(3, 3), nvtx=[library])) == []
    assert info(tmp_path, **launches(3, 3), nvtx=[domain, Nvtx(text="step")]).health == ()
    name_of_a_thread = Nvtx(text="loader", kind=39, end=None)
    assert info(tmp_path, **launches(3, 3), nvtx=[name_of_a_thread]).health == ()


def test_overhead_of_cupti(tmp_path: Path) -> None:
    rows = "INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (100, 150, 3), (160, 180, 2), (0, 0, 4), (60, 90, 8)"
    path = build_export(
        tmp_path / "made.sqlite",
        kernels=[Kernel(10, 50), Kernel(200, 250, correlation=2)],
        api=[Call(), Call(190, 199, correlation=2)],
        overhead=[Overhead(140, 155)],
        statements=[CUPTI_OVERHEAD, rows],
    )
    # The profiler's types and PROFILER_OVERHEAD count together; JIT compilation and a full queue do not.
    assert analyze(path).devices[0].gaps.causes["profiler"] == 55
    ms = "INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (100, 2000100, 2), (60, 3000060, 8), (60, 1060, 6)"
    loading, full = info(tmp_path, [CUPTI_OVERHEAD, ms], **launches(3, 3)).health
    assert "JIT compilation 2.00 ms" in loading.text and "module" not in loading.text
    assert (full.id, "3.00 ms" in full.text) == ("launch_queue_full", True)


def test_findings_that_rest_on_lost_work_are_unsure(tmp_path: Path) -> None:
    def findings(kernels: int) -> tuple[Finding, ...]:
        ms = 1_000_000
        calls = [Call(10 * ms * i, 10 * ms * i + 9_000, correlation=i + 1) for i in range(40)]
        work = [Kernel(call.start + 10_000, call.start + ms, correlation=call.correlation) for call in calls[:kernels]]
        path = build_export(tmp_path / "made.sqlite", api=calls, kernels=work, nvtx=[Nvtx(0, 400 * ms, text="main")])
        analysis = analyze(path)
        assert analysis.findings
        assert f"Unsure: {analysis.findings[0].unsure_because}"[:40] in terminal.render(analysis) or kernels == 40
        return analysis.findings

    assert {finding.unsure_because for finding in findings(30)} == {
        "10 of 40 kernel launches of process 10 (25.0%) have no GPU work in the capture"
    }
    assert {finding.unsure_because for finding in findings(40)} == {None}


@pytest.mark.parametrize("name", ALL)
def test_real_captures_are_whole(name: str) -> None:
    notes = open_trace(shared(name)).info.health
    # Sizes of messages need an option of newer nsys; without them only bandwidths are missing.
    assert {note.id for note in notes if note.affects} <= {"unknown_messages"}


STRINGS_OF = {
    "kernel": "SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON shortName = id "
    "WHERE value LIKE 'nccl%'",
    "CUDA API call": "SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id "
    "WHERE value LIKE 'cudaStreamSynchronize%'",
    "NVTX range": "SELECT textId FROM NVTX_EVENTS WHERE textId IS NOT NULL AND eventType IN (59, 60)",
}


def without_names(folder: Path, what: str) -> tuple[Path, int]:
    """Return a copy of a real capture of two ranks without some strings, and the number of rows that refer to them."""
    path = folder / "nameless.sqlite"
    shutil.copy(sample("ddp2.sqlite"), path)
    path.chmod(0o644)
    with sqlite3.connect(path) as connection:
        rows = len(connection.execute(STRINGS_OF[what]).fetchall())
        connection.execute(f"DELETE FROM StringIds WHERE id IN ({STRINGS_OF[what]})")
    return path, rows


def notes_of(health: tuple[Note, ...]) -> list[Note]:
    return [note for note in health if note.id == "missing_names"]


@pytest.mark.parametrize("what", STRINGS_OF)
def test_missing_names_are_counted(tmp_path: Path, what: str) -> None:
    path, rows = without_names(tmp_path, what)
    assert rows
    (note,) = notes_of(open_trace(path).info.health)
    assert note.text.startswith(f"the names of {rows:,} of ") and f" {what}s (" in note.text
    assert note.affects


def test_findings_on_missing_kernel_names_are_in_doubt_and_the_summary_says_so(tmp_path: Path) -> None:
    path, _ = without_names(tmp_path, "kernel")
    analysis, complete = analyze(path), analyzed(sample("ddp2.sqlite"))
    assert all(device.communication_ns == 0 for device in analysis.devices)
    assert all(device.communication_ns > 0 for device in complete.devices)
    assert "are missing from the capture" in " ".join(terminal.render_brief(analysis).split())
    assert any("names of" in (finding.unsure_because or "") for finding in analysis.findings)
