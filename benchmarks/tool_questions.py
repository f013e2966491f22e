"""The questions of benchmarks/compare_tools, the commands that answer them, and parsers of their output."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plain_truth import TracedTruth, Truth

MS = 1_000_000
TEMPORAL = (
    "import logging, sys; logging.disable(logging.CRITICAL); from hta.trace_analysis import TraceAnalysis; "
    "found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='').get_temporal_breakdown(visualize=False); "
    "print(found[sys.argv[2]].sum())"
)
TIMELINE = (
    "import logging, sys; logging.disable(logging.CRITICAL); from TraceLens import TreePerfAnalyzer; "
    "found = TreePerfAnalyzer.from_file(profile_filepath=sys.argv[1]).get_df_gpu_timeline(); "
    "print(found.set_index('type')['time ms'][sys.argv[2]])"
)
KERNELS = (
    "import sys, polars as pl; from traceview import open_trace; frame = open_trace(sys.argv[1]).operations; "
    "frame = frame.filter(pl.col('source') == 'kernel'); print(int((frame['end'] - frame['start']).sum()))"
)


@dataclass(frozen=True, slots=True)
class Way:
    """A tool's command for a question. `{report}` is replaced by a copy of the report; `read` parses the figure."""

    tool: str
    command: list[str]
    read: Callable[[str], float]
    shown: str  # the command as typed by a user
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A figure, its accepted reference values, and the tools that compute it."""

    text: str
    truths: tuple[int, ...]
    time: bool
    ways: tuple[Way, ...]
    silent: tuple[tuple[str, str], ...] = ()  # tools without an answer, and their nearest report

    def formatted(self, value: float) -> str:
        """Format a figure for the table."""
        return f"{value / MS:,.3f} ms" if self.time else f"{value:,.0f}"


def traced(hta: str | None, tracelens: str | None, known: TracedTruth) -> list[Question]:
    """Return the questions about a torch.profiler trace, which these tools read and nsys does not."""
    command = [sys.executable, "-m", "traceview", "analyze", "{report}", "--json", "-", "--no-html", "--quiet"]

    def ours(read: Callable[[dict[str, Any]], int], remark: str = "") -> Way:
        def total(text: str) -> float:
            return sum(read(device) for device in json.loads(text)["devices"])

        return Way("traceview", command, total, "traceview analyze --json -", remark)

    def temporal(column: str, *settings: str, remark: str = "") -> tuple[Way, ...]:
        asked = ["env", *settings, hta or "", "-c", TEMPORAL, "{report}", column]
        shown = " ".join([*settings, f"get_temporal_breakdown()['{column}']"])
        way = Way("Holistic Trace Analysis", asked, lambda text: float(text.split()[-1]) * 1000, shown, remark)
        return (way,) if hta else ()

    def timeline(row: str, remark: str = "") -> tuple[Way, ...]:
        asked = [tracelens or "", "-c", TIMELINE, "{report}", row]
        shown = f"get_df_gpu_timeline(): {row}"
        way = Way("TraceLens", asked, lambda text: float(text.split()[-1]) * MS, shown, remark)
        return (way,) if tracelens else ()

    exact = "HTA_DISABLE_NS_ROUNDING=1"
    silent = (("Holistic Trace Analysis", "the share that overlaps alone (get_comm_comp_overlap)"),) if hta else ()
    mixed = (("Holistic Trace Analysis", "with communication alone (non_compute_time)"),) if hta else ()
    return [
        Question(
            "GPU idle, first to last work",
            (known.idle_ns,),
            True,
            (
                ours(lambda device: device["gaps"]["total_ns"]),
                *temporal("idle_time(us)", remark="rounds to whole us"),
                *temporal("idle_time(us)", exact),
                *timeline("idle_time"),
            ),
        ),
        Question(
            "GPU computes",
            (known.compute_ns,),
            True,
            (
                ours(lambda device: device["compute_ns"]),
                *temporal("compute_time(us)", exact),
                *timeline("computation_time", "counts memsets"),
            ),
        ),
        Question(
            "communication that no compute hides",
            (known.exposed_communication_ns,),
            True,
            (ours(lambda device: device["communication"]["exposed_ns"]), *timeline("exposed_comm_time")),
            silent,
        ),
        Question(
            "copies that no kernel hides",
            (known.exposed_copies_ns,),
            True,
            (
                ours(
                    lambda device: sum(row["exposed_ns"] for row in device["copies"]),
                    "that no compute hides, each kind alone",
                ),
                *timeline("exposed_memcpy_time"),
            ),
            mixed,
        ),
    ]


def rows(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the CSV table that nsys prints after its messages."""
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if "(ns)" in line and "," in line), len(lines))
    yield from csv.DictReader(lines[first:])


def records(text: str) -> list[dict[str, Any]]:
    """Return the JSON that a skill of nsys-ai prints after its messages."""
    output: list[dict[str, Any]] = json.loads(text[text.index("[\n") :])
    return output


def questions(nsys: str, nsys_ai: list[str], name: str, known: Truth) -> list[Question]:
    """Return all questions."""
    python = [
        sys.executable,
        "-m",
        "traceview",
        "analyze",
        "{report}",
        "--json",
        "-",
        "--no-html",
        "--quiet",
    ]

    def ours(read: Callable[[dict[str, Any]], float]) -> Way:
        return Way("traceview", python, lambda text: read(json.loads(text)), "traceview analyze --json -")

    def stats(kind: str, what: str, read: Callable[[Iterator[dict[str, str]]], float], remark: str = "") -> Way:
        command = [nsys, kind, "--report" if kind == "stats" else "--rule", what, "--format", "csv", "{report}"]
        return Way("nsys", command, lambda text: read(rows(text)), f"nsys {kind} {what}", remark)

    def skill(what: str, read: Callable[[list[dict[str, Any]]], float], *options: str, remark: str = "") -> Way:
        arguments = [part for option in options for part in ("-p", option)]
        command = [*nsys_ai, "skill", "run", what, "{report}", "--format", "json", *arguments]
        shown = " ".join(["nsys-ai skill run", what, *arguments])
        return Way("nsys-ai", command, lambda text: read(records(text)), shown, remark)

    def total(
        column: str, having: str = "", among: Sequence[str] = ("",)
    ) -> Callable[[Iterator[dict[str, str]]], float]:
        return lambda output: sum(
            float(row[column]) for row in output if not having or row[having].startswith(tuple(among))
        )

    def operations_in_range(output: Iterator[dict[str, str]]) -> float:
        return sum(float(row["Total GPU Ops"]) for row in output if row["Range"].split(":")[-1] == name)

    def regions(output: list[dict[str, Any]]) -> float:
        return sum(entry["kernel_count"] for entry in output if entry.get("nvtx_region") == name)

    def pair(output: list[dict[str, Any]]) -> float:
        wanted = {"compute", "memcpy_h2d"}
        pairs = ((entry, {entry.get("category_a"), entry.get("category_b")}) for entry in output)
        return sum(entry["overlap_ns"] for entry, categories in pairs if categories == wanted)

    return [
        Question(
            "host-to-device copies hidden under compute",
            (known.hidden_ns,),
            True,
            (
                ours(
                    lambda output: sum(
                        c["overlapped_ns"] for d in output["devices"] for c in d["copies"] if c["kind"] == "h2d"
                    )
                ),
                skill("kernel_overlap_matrix", pair),
            ),
            (("nsys", "no report or rule; cuda_memcpy_async lists pageable copies"),),
        ),
        Question(
            "GPU idle, first to last work",
            (known.idle_ns,),
            True,
            (
                ours(lambda output: sum(device["gaps"]["total_ns"] for device in output["devices"])),
                stats(
                    "analyze",
                    "gpu_gaps:gap=0:rows=-1",
                    total("Duration (ns)"),
                    "asked for all; without options from 500 ms on",
                ),
                skill("pipeline_bubble_metrics", lambda output: sum(entry["bubble_ms"] for entry in output) * MS),
            ),
        ),
        Question(
            "host in synchronize calls",
            (known.sync_ns, known.sync_some_ns),
            True,
            (
                ours(lambda output: output["host"]["sync"]["blocked_ns"]),
                stats(
                    "analyze",
                    "cuda_api_sync:rows=-1",
                    total("Duration (ns)"),
                    "device and stream alone; asked for all, without options 50 rows",
                ),
                skill(
                    "sync_cost_analysis",
                    lambda output: output[0]["total_sync_wall_ms"] * MS,
                    remark="counts what streams wait, too",
                ),
            ),
        ),
        Question(
            f"GPU work launched while `{name}` was open ({known.launched_kernels:,} of it kernels)",
            (known.launched, known.launched_kernels),
            False,
            (
                ours(lambda output: sum(entry["operation_count"] for entry in output["nvtx"] if entry["name"] == name)),
                stats("stats", "nvtx_gpu_proj_sum", operations_in_range),
                skill("nvtx_layer_breakdown", regions, "auto_depth=false", "limit=1000000", remark="counts kernels"),
            ),
        ),
        Question(
            "all kernels, one after the other",
            (known.kernel_ns,),
            True,
            (
                Way(
                    "traceview",
                    [sys.executable, "-c", KERNELS, "{report}"],
                    float,
                    "open_trace(REPORT).operations",
                    "in Python",
                ),
                stats("stats", "cuda_gpu_kern_sum", total("Total Time (ns)"), "a row for each kernel"),
                skill(
                    "top_kernels",
                    lambda output: sum(entry.get("total_ms", 0) for entry in output) * MS,
                    "limit=1000000",
                    remark="a row for each kernel, each rounded",
                ),
            ),
        ),
    ]
