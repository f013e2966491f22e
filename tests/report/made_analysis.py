"""Hand-made analyses that fill every part of a report, with hostile names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from tests.made_trace import made_trace
from traceview.measure import MEASURES
from traceview.model.analysis import (
    CAUSES,
    EXPOSED_CAUSES,
    Analysis,
    DeviceFigures,
    DeviceUse,
    Gap,
    Gaps,
    HostUse,
    Iteration,
    IterationCandidate,
    Iterations,
    NotMeasured,
    Spread,
    SyncUse,
    Unmatched,
)
from traceview.model.columns import Table
from traceview.model.findings import Answer, Finding, Gain, Place, severity_from_share
from traceview.model.rows import ApiTotal, CommunicationOverlap, CopyOverlap, RangeUse, SpeedOfLight, StreamUse
from traceview.model.trace import Note, ReportInfo, Window

MS = 1_000_000
GAIN = Gain(1 * MS, 0, 1 * MS, "bound", "no model", 3 * MS)
TABLES = {measure.table.name: measure.table for measure in MEASURES}


def causes(**given: int) -> dict[str, int]:
    return {cause: given.get(cause, 0) for cause in CAUSES}


def exposed_causes(**given: int) -> dict[str, int]:
    return {cause: given.get(cause, 0) for cause in EXPOSED_CAUSES}


def made_device(device: str = "GPU 0", name: str = "NVIDIA H200", names: str = "") -> DeviceUse:
    """A window of 100 ms: 60 compute, 10 exposed communication, 5 exposed copies, 25 idle."""
    idle = causes(launch=20 * MS, host=5 * MS)
    gap = Gap(70 * MS, 90 * MS, idle | {"launch": 15 * MS, "host": 5 * MS}, f"gemm{names}", 0, f"step{names}")
    of_parts = _device_tables(
        copies=(CopyOverlap("h2d", "pageable", 3, 4096, 8 * MS, 3 * MS, 5 * MS, exposed_causes(host=5 * MS)),),
        communication=(
            CommunicationOverlap(2, 12 * MS, 2 * MS, 10 * MS, exposed_causes(queue=10 * MS), 4 * MS, *[None] * 5),
        ),
    )
    streams = _device_tables(streams=(_stream(names),))
    steady = DeviceFigures(
        window=Window(0, 100 * MS),
        kernel_count=7,
        busy_ns=75 * MS,
        compute_ns=60 * MS,
        communication_ns=12 * MS,
        exposed_h2d_ns=5 * MS,
        exposed_d2h_ns=0,
        idle_ns=25 * MS,
        gaps=Gaps(2, 25 * MS, idle, pl.DataFrame()),
        tables=of_parts,
    )
    whole = steady.figures() | {"gaps": replace(steady.gaps, longest=(gap,)), "tables": of_parts | streams}
    return DeviceUse(**whole, device=0, id=device, name=name, process_ids=(1,), steady=steady)


def _device_tables(**rows: tuple[Any, ...]) -> dict[str, Table]:
    return {name: TABLES[name].with_rows(some) for name, some in rows.items()}


def _stream(names: str) -> StreamUse:
    return StreamUse(
        stream=0,
        id=7,
        process_id=1,
        context_id=1,
        label=f"stream 7{names}",
        purpose="compute",
        kernel_count=7,
        copy_count=3,
        operation_count=10,
        bytes=4096,
        busy_ns=75 * MS,
        compute_ns=60 * MS,
        communication_ns=12 * MS,
        copy_ns=8 * MS,
        gap_count=2,
        gap_ns=25 * MS,
    )


def made_finding(number: int, device: str | None = "GPU 0", names: str = "") -> Finding:
    return Finding(
        id=f"finding_{number}",
        severity=severity_from_share((9 - number) / 100),
        title=f"finding number {number}{names}",
        evidence=(Place(f"the worst place{names}", 10, 20, device, 0, 0),),
        cost_ns=(9 - number) * MS,
        advice=f"change number {number}{names}; " + "and do it well, " * 12,
        code=f"model = torch.compile(model, mode='reduce-overhead', options={{'number': {number}}})  # faster{names}",
        device=device,
        cost_fraction=(9 - number) / 100,
        cost_per_iteration_ns=1234,
        gain=Gain((9 - number) * MS // 100, 0, (9 - number) * MS // 100, "bound", "no model", MS),
    )


def _sync(names: str) -> SyncUse:
    call = ApiTotal(f"cudaStreamSynchronize{names}", 4, 10 * MS, 6 * MS, 4 * MS, 4 * MS, 999, 4 * MS)
    return SyncUse(4, 10 * MS, 6 * MS, 4 * MS, 4 * MS, 999, 4 * MS, (call,), pl.DataFrame())


def _iterations(names: str) -> Iterations:
    one = Iteration(
        name=f"iteration 3{names}",
        start_ns=5,
        end_ns=25 * MS,
        skipped=False,
        wall_ns=25 * MS - 5,
        compute_ns=20 * MS,
        communication_ns=0,
        exposed_h2d_ns=1,
        exposed_d2h_ns=0,
        exposed_communication_ns=0,
        idle_ns=4 * MS,
        idle=causes(host=4 * MS),
        blocked_ns=7,
        kernel_count=9,
        gpu_end_ns=None,
    )
    spreads = {
        name: Spread(3 * MS, 2 * MS, 4 * MS)
        for name in ("wall_ns", "compute_ns", "exposed_h2d_ns", "idle_ns", "blocked_ns")
    }
    return Iterations(
        range=f"iteration #{names}",
        source="range",
        confidence=0.95,
        time_ns=3 * MS,
        steady=Window(5, 25 * MS),
        candidates=(IterationCandidate(f"epoch #{names}", "range", 2, 12 * MS, 0.999),),
        thread=0,
        process_id=1,
        count=4,
        skipped=1,
        skipped_why="the first took more than 1.5 times the median",
        wall_ns=spreads["wall_ns"],
        spreads=spreads,
        per_iteration=(one,),
    )


def _speed_of_light(names: str) -> SpeedOfLight:
    tera = 10**12
    return SpeedOfLight(
        device=f"GPU 0{names}",
        source="shapes",
        count=7,
        time_ns=10 * MS,
        flops=tera // 5,
        flops_per_s=20 * tera,
        precision="fp32",
        peak_flops_per_s=67 * tera,
        mfu=20 / 67,
        tf32_peak_flops_per_s=494 * tera,
        bf16_peak_flops_per_s=989 * tera,
        at_peak_ns=3 * MS,
        known_fraction=0.9,
        unknown_because=None,
    )


def made_analysis(names: str = "", findings: int = 5, devices: int = 1) -> Analysis:
    """Return an analysis that fills every part; `names` is appended to every name."""
    trace = made_trace(operations=[(0, 10, "compute", 0, 0)], api=[(0, 1, "api", 0)], ranges=[(0, 20, "step", 0)])
    return Analysis(
        answer=Answer(f"CUDA, 3.00 ms an iteration: 60% is compute and 9% finding 0{names}.", "finding", GAIN),
        info=ReportInfo(f"report{names}.sqlite", "2024.2.3", "3.11.1", {}),
        trace=trace,
        devices=tuple(made_device(f"GPU {index}", names=names) for index in range(devices)),
        host=HostUse(_sync(names), _sync(names)),
        tables={
            "speed_of_light": TABLES["speed_of_light"].with_rows((_speed_of_light(names),)),
            "sync_calls": TABLES["sync_calls"].with_rows(_sync(names).calls),
            "implicit_sync_calls": TABLES["implicit_sync_calls"].with_rows(_sync(names).calls),
            "nvtx": TABLES["nvtx"].with_rows(_ranges(names)),
            "nvtx_phases": TABLES["nvtx_phases"].with_rows(_ranges(names)),
        },
        iterations=_iterations(names),
        unmatched=Unmatched(1, 2, 3, 4),
        findings=tuple(made_finding(number, names=names) for number in range(findings)),
        notes=(Note("left_out", f"something was left out{names}"),),
    )


def _ranges(names: str) -> tuple[RangeUse, ...]:
    return tuple(
        RangeUse(f"range {index}{names}", f"domain{names}", 2, 5 * MS, 4 * MS, 4 * MS, 4 * MS, 3, 4, 1)
        for index in range(12)
    )


def bare_analysis() -> Analysis:
    """Return an analysis of a capture without ranges, findings, copies or calls."""
    device, none = made_device(), CommunicationOverlap(0, 0, 0, 0, exposed_causes(), 0, *[None] * 5)
    busy: dict[str, Any] = {"busy_ns": 100 * MS, "compute_ns": 100 * MS, "communication_ns": 0, "idle_ns": 0}
    busy["gaps"] = Gaps(0, 0, causes(), pl.DataFrame())
    device = replace(
        device,
        tables=_device_tables(copies=(), communication=(none,), streams=()),
        steady=replace(device.steady, tables=_device_tables(copies=(), communication=(none,)), **busy),
        **busy,
    )
    no_calls = SyncUse(0, 0, 0, 0, 0, 0, 0, (), pl.DataFrame())
    return replace(
        made_analysis(findings=0),
        devices=(device,),
        host=HostUse(no_calls, no_calls),
        tables={
            "speed_of_light": TABLES["speed_of_light"],
            "sync_calls": TABLES["sync_calls"],
            "implicit_sync_calls": TABLES["implicit_sync_calls"],
            "nvtx": TABLES["nvtx"].unmeasured("no NVTX ranges"),
        },
        iterations=NotMeasured("no iterations"),
        notes=(Note("no_nvtx", "no NVTX ranges"), Note("no_iterations", "no iterations")),
    )
