"""`traceview mcp`: read-only tools for agents, on captures, over the Model Context Protocol.

Each tool returns a part of the JSON of `analyze`, `compare` or `whatif`, with the same keys and values, cut to the size
of an answer. Keys end in their units: `_ns`, `_bytes`, `_fraction`. The docstrings are what an agent reads. SKILL.md
says how an agent works with the tools. The server, on standard input and output, needs the package `mcp`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent

from traceview import __version__
from traceview.captures.info import describe
from traceview.comparison import compare_analyses
from traceview.errors import RequestError, TraceviewError, is_out_of_memory
from traceview.mcp.answers import TOOLS, Answer, Row, agent_tool, chosen, encoded, first_rows, fitted, matching
from traceview.mcp.captures import Captures
from traceview.model.analysis import NotMeasured
from traceview.model.units import plain
from traceview.ranks.analyze_reports import fleet
from traceview.report.analysis import document
from traceview.report.comparison import document as comparison_document
from traceview.report.fleet import document as fleet_document
from traceview.report.json import Document
from traceview.report.whatif import document as whatif_document

By = Literal["kernels", "kernel_families", "kernel_places", "modules"]
MAX_ROWS = 50
FINDING = (
    *("id", "severity", "title", "device", "cost_ns", "cost_fraction", "cost_per_iteration_ns"),
    *("unprofiled_cost_per_iteration_ns", "claims", "remedy", "change", "gain", "unsure_because"),
)
KERNEL = (
    *("label", "family", "precision", "tensor_core", "count", "total_ns", "mean_ns", "share", "grid", "block"),
    *("waves", "occupancy", "occupancy_limit", "limiter"),
)
USE = ("window_ns", "kernel_count", "busy_ns", "compute_ns", "communication_ns", "idle_ns")
EXPOSED = ("exposed_h2d_ns", "exposed_d2h_ns", "exposed_communication_ns")
ITERATIONS = ("range", "source", "confidence", "count", "skipped", "time_ns", "kinds", "unprofiled_ns", "wall_ns")
PREDICTION = ("change", "title", "iteration_ns", "low_ns", "high_ns")
RANK = (
    *("label", "gpu", "iterations", "wall_ns", "own_ns", "lag_ns", "compute_ns", "idle_ns", "wait_ns", "caused_ns"),
)
CHANGE = ("before_ns", "after_ns", "difference_ns", "verdict")
STACKS = "it has no samples of stacks: record with `traceview record --python -- COMMAND`"
HOW_TO_SEE = {  # tables that need options of nsys, and these
    "lines": STACKS,
    "modules": "it has no modules of PyTorch: record with torch.profiler and with_modules=True, or annotate them "
    "(instrument.annotate_module)",
    "memory": "nsys did not record memory: record with --cuda-memory-usage=true",
}


class Tools:
    """The tools on the captures of a server."""

    def __init__(self, captures: Captures) -> None:
        self._captures = captures

    def open(self, capture: str = "", iteration: str = "", skip: int = -1, whole: bool = False) -> Answer:
        """Describe a capture: profiler, GPUs, iterations, tables, what it cannot answer. Without `capture`, list them.

        These stay in force for the capture: `iteration` (a regular expression on NVTX ranges), `skip` (warm-up
        iterations), and `whole`: all tools cover the whole window, not the counted iterations.
        """
        if not capture:
            captures = self._captures.listed()
            return first_rows({"count": len(captures)}, "captures", captures, MAX_ROWS)
        given = {"iteration": iteration or None, "skip": None if skip < 0 else skip, "whole": whole or None}
        options = {key: value for key, value in given.items() if value is not None}
        analysis = self._captures.set_options(capture, **options)
        figures = document(analysis)
        tables = {name: len(rows) for name, rows in _tables(figures).items() if rows}
        missing = [
            _unanswered(name, figures).get("cannot_be_answered")
            for name in ("iterations", "kernels", "lines", "memory")
            if not _rows(figures, name)
        ]
        return {
            **chosen(figures, "report", "program"),
            "devices": [chosen(device, "id", "name", "window_ns") for device in figures["devices"]],
            "iterations": chosen(figures["iterations"], *ITERATIONS, "not_measured"),
            "rows_of_tables": tables,
            "notes": [chosen(note, "id", "text", "affects") for note in figures["notes"]],
            "cannot_be_answered": [reason for reason in missing if reason],
        }

    def summary(self, capture: str, device: str = "") -> Answer:
        """State where the time went: the answer, the iteration time, use and idle time by cause of each GPU, waits.

        GPUs are in their steady part: from the first counted iteration to the last.
        """
        whole = document(self._captures.analysis(capture))
        if not whole["devices"]:
            return {"answer": whole["answer"], **_unanswered("GPU time", whole)}
        return {
            "answer": whole["answer"],
            "iterations": chosen(whole["iterations"], *ITERATIONS, "not_measured"),
            "devices": [_device(use, whole["whole"]) for use in _devices(whole, device)],
            "host": {
                name: chosen(use, "count", "blocked_ns", "waited_ns", "starved_ns", "cost_ns")
                for name, use in whole["host"].items()
            },
            "findings": [chosen(finding, "id", "severity", "gain", "remedy") for finding in whole["findings"][:3]],
        }

    def findings(self, capture: str, number: int = 0, rows: int = 5) -> Answer:
        """List what costs GPU time with its remedy, in the order of what that saves of an iteration (`gain`).

        `number` (from 1) explains one finding: advice, code, places.
        """
        every = document(self._captures.analysis(capture))["findings"]
        if not number:
            return first_rows({"count": len(every)}, "findings", [chosen(row, *FINDING) for row in every], _limit(rows))
        if not 1 <= number <= len(every):
            raise RequestError(f"finding {number} does not exist; the capture has {len(every)}")
        finding = {key: value for key, value in every[number - 1].items() if key != "others"}
        return {"number": number, "finding": finding}

    def kernels(self, capture: str, match: str = "", by: By = "kernels", device: str = "", rows: int = 6) -> Answer:
        """List the kernels of the counted iterations, the costliest first.

        `by` groups them: launch shapes, families, places in the program (range, module, operation, line) or modules.
        """
        return self.table(capture, by, match, device, rows)

    def lines(self, capture: str, match: str = "", rows: int = 6) -> Answer:
        """List the source lines where the host was while a GPU was idle, the most idle time first.

        Needs samples of stacks in the capture.
        """
        return self.table(capture, "lines", match, "", rows)

    def table(self, capture: str, name: str, match: str = "", device: str = "", rows: int = 6) -> Answer:
        """List the rows of a table that `open` names: copies, streams, nvtx, calls, gaps, per_iteration, ..."""
        whole = document(self._captures.analysis(capture))
        if name not in (tables := _tables(whole, device)):
            raise RequestError(f"no table is called {name[:40]!r}; choose from {', '.join(tables)}")
        if not tables[name]:
            return _unanswered(name, whole)
        shown = matching(tables[name], match)
        if name == "kernels":
            shown = [chosen(row, "device", *KERNEL) for row in shown]
        return first_rows({"table": name, "count": len(shown)}, "rows", shown, _limit(rows))

    def window(self, capture: str, start: str = "", end: str = "", range_name: str = "") -> Answer:
        """State the figures of a time window.

        `start` and `end`: 120ms after the first GPU work, or whole ns on the capture's clock. Or `range_name`: from the
        first start to the last end of the NVTX ranges of this name.
        """
        if not (start or end or range_name):
            raise RequestError("name a window: start and end, for example 120ms and 150ms, or range_name")
        whole = document(self._captures.analysis(capture, start, end, range_name))
        devices = []
        for device in whole["devices"]:
            kernels = [chosen(row, "label", "count", "total_ns", "share") for row in device["kernels"][:4]]
            gaps = [
                chosen(gap, "start_ns", "end_ns", "cause", "next_operation", "range")
                for gap in device["gaps"]["longest"][:3]
            ]
            causes = {"idle_causes_ns": _nonzero(device["gaps"]["causes"])}
            devices.append(
                {"id": device["id"], **chosen(device, *USE), **causes, "kernels": kernels, "longest_gaps": gaps}
            )
        return {"devices": devices, "not_measured": None if devices else "no GPU works in this window"}

    def compare(self, before: str, after: str, rows: int = 4) -> Answer:
        """State whether `after` is faster than `before`, by how much, and why.

        Times are per iteration: its parts, and the kernels and lines that changed.
        """
        analyses = [self._captures.analysis(name) for name in (before, after)]
        whole: Any = comparison_document(compare_analyses(analyses))
        against = whole["against"][0]
        captures = {"base": whole["base"], "capture": against["capture"]}
        parts = {name: chosen(part, *CHANGE) for name, part in against["mean_parts"].items() if part["difference_ns"]}
        kernels = [chosen(row, "label", "status", "cost_ns") for row in against["kernels"] if row["status"] != "same"]
        lines = [
            {**chosen(row, "file", "line", "function"), "idle": chosen(row["idle"], *CHANGE)}
            for row in against["lines"]
        ]
        answer = {
            **{name: chosen(row, "file", "count", "skipped", "unprofiled_ns") for name, row in captures.items()},
            **chosen(against, "verdict", "why", "confidence", "ratio", "ratio_low", "ratio_high", "unprofiled_ratio"),
            "time": chosen(against["time"], *CHANGE, "low_ns", "high_ns"),
            "mean_parts": parts,
            "notes": [note["text"] for note in (*whole["notes"], *against["notes"])],
        }
        return first_rows(first_rows(answer, "kernels", kernels, _limit(rows)), "lines", lines, _limit(rows))

    def whatif(self, capture: str, change: str = "", faster: dict[str, float] | None = None, rows: int = 6) -> Answer:
        """Predict the time of an iteration after each change alone, and after several together.

        `change` explains one prediction. `faster` assumes speedups of kernels, for example {"gemm": 1.5}.
        """
        result = self._captures.prediction(capture, faster)
        if isinstance(result, NotMeasured):
            return {"cannot_be_answered": _because("a prediction", result.reason)}
        whole: Any = whatif_document(result)
        head = chosen(whole, "measured_ns", "unprofiled_ns", "replayed_ns", "path_ns")
        if change:
            return {**head, **_prediction(whole, change)}
        together = [chosen(row, *PREDICTION) for row in whole["together"]]
        every = [chosen(row, *PREDICTION) for row in whole["predictions"]]
        answer = first_rows({**head, "path_ns": _nonzero(whole["path_ns"])}, "predictions", every, _limit(rows))
        left_out = [chosen(row, "change", "reason") for row in whole["left_out"]]
        return {**answer, "together": together, "not_applicable": left_out}

    def fleet(self, captures: list[str], iteration: str = "", skip: int = -1, rows: int = 6) -> Answer:
        """Compare the ranks of a run: stragglers with the reason, waits for each other, and what to change first."""
        paths = self._captures.reports(captures)
        whole: Any = fleet_document(fleet(*paths, iteration=iteration or None, skip=None if skip < 0 else skip))
        ranks = [chosen(row, *RANK) for row in sorted(whole["ranks"], key=lambda row: -(row["lag_ns"] or 0))]
        label = [rank["label"] for rank in whole["ranks"]]
        waits = [
            {"label": f"{label[row['waiter']]} for {label[row['last']]}", **row} for row in whole["waits"]["longest"]
        ]
        answer = {
            "rank_count": len(ranks),
            **chosen(whole, "typical_own_ns", "skipped"),
            **{
                name: [{"label": label[row["rank"]], **row} for row in whole[name]] for name in ("stragglers", "advice")
            },
            "notes": [note["text"] for note in whole["notes"]],
        }
        return first_rows(first_rows(answer, "ranks", ranks, _limit(rows)), "waits", waits, _limit(rows))

    def info(self, capture: str) -> Answer:
        """State what a capture holds and lacks, with the option that records it, and what the profiler lost."""
        contents = Document[object]().values(describe(self._captures.path(capture)))
        ranges = [{"range": name, "count": count} for name, count in contents["ranges"]]
        answer = chosen(contents, "file", "profiler", "nsys_version", "span_ns", "gpus", "tables", "missing", "health")
        return first_rows({**answer, "stream_count": len(contents["streams"])}, "ranges", ranges, 10)


def _limit(rows: int) -> int:
    return min(max(rows, 1), MAX_ROWS)


def _nonzero(values: Row) -> Answer:
    return {name: value for name, value in values.items() if value}


def _devices(whole: Row, device: str) -> list[Any]:
    """Return the devices, or the one with this id."""
    devices = [use for use in whole["devices"] if not device or use["id"] == device]
    if device and not devices:
        raise RequestError(f"no device is called {device[:40]!r}; `open` names them")
    return devices


def _device(use: Row, is_whole: bool) -> Answer:
    """Return the figures of a device in its steady part, or in its window if the analysis covers that."""
    steady = use["steady"]
    covered, causes = (use, use["gaps"]["causes"]) if is_whole else (steady, steady["causes"])
    copies = [chosen(row, "kind", "memory", "bytes", "busy_ns", "exposed_ns") for row in covered["copies"]]
    figures = {**chosen(covered, *USE, *EXPOSED), "idle_causes_ns": _nonzero(causes), "copies": copies}
    return {**chosen(use, "id", "name"), "window" if is_whole else "steady": figures}


def _tables(whole: Row, device: str = "") -> dict[str, list[Any]]:
    """Return every list of rows by name: those of GPUs in what the analysis covers, with the GPU in each row."""
    tables: dict[str, list[Any]] = {}
    for use in _devices(whole, device):
        covered = use if whole["whole"] else use["steady"]
        own = {**use, **covered, "gaps": use["gaps"]["longest"], **use.get("extensions", {})}
        for name, rows in own.items():
            if isinstance(rows, list) and name not in ("window_ns", "process_ids"):
                tables.setdefault(name, []).extend({"device": use["id"], **row} for row in rows)
    host = whole["host"]
    calls = {"calls": host["sync"]["calls"] or [], "implicit_calls": host["implicit_sync"]["calls"] or []}
    tables |= calls | {"per_iteration": whole["iterations"]["per_iteration"]}
    others = ("findings", "notes", "devices", "extensions")
    return tables | {name: rows for name, rows in whole.items() if isinstance(rows, list) and name not in others}


def _rows(whole: Row, name: str) -> list[Any]:
    return _tables(whole).get("per_iteration" if name == "iterations" else name, [])


def _unanswered(name: str, whole: Row) -> Answer:
    """Return why a table has no rows: what the capture lacks; only a count of 0 if it lacks nothing."""
    if not whole["devices"]:
        return {"cannot_be_answered": _because(name, "it has no GPU work")}
    if name in ("iterations", "per_iteration"):
        return {"cannot_be_answered": _because(name, whole["iterations"]["not_measured"])}
    if name in HOW_TO_SEE:
        return {"cannot_be_answered": _because(name, HOW_TO_SEE[name])}
    notes = (
        note["text"]
        for note in whole["notes"]
        if name in note["affects"] or (note["id"] == "whole_graphs" and "kernel" in name)
    )
    reason = next(notes, None)
    return {"table": name, "count": 0} if reason is None else {"cannot_be_answered": _because(name, reason)}


def _because(what: str, reason: str) -> str:
    return f"{what} cannot be answered from this capture, because {reason}"


def _prediction(whole: Mapping[str, Any], change: str) -> Answer:
    """Return everything on one change."""
    for row in (*whole["predictions"], *whole["left_out"]):
        if row["change"] == change and "reason" in row:
            return {"cannot_be_answered": _because(f"the change {change}", row["reason"])}
        if row["change"] == change:
            return {"prediction": row}
    names = ", ".join(row["change"] for row in (*whole["predictions"], *whole["left_out"]))
    raise RequestError(f"no change is called {change[:40]!r}; choose from {names}")


NAMES = tuple(TOOLS["results"])


def build_server(named: Sequence[Path], folder: Path) -> MCPServer:
    """Return a server with the tools on the named files and folders, and on those under the working folder."""
    tools, lock = Tools(Captures(named, folder)), threading.Lock()
    return MCPServer(
        "traceview",
        instructions=TOOLS["instructions"],
        version=__version__,
        log_level="ERROR",
        tools=[agent_tool(name, _as_result(getattr(tools, name), lock)) for name in NAMES],
    )


def _as_result(tool: Callable[..., Answer], lock: threading.Lock) -> Callable[..., CallToolResult]:
    """Return a tool that answers in text and in values. One tool runs at a time, because analyses take memory."""

    @functools.wraps(tool)
    def result(*values: object, **named: object) -> CallToolResult:
        try:
            with lock:
                answer = fitted(tool(*values, **named))
        except TraceviewError as error:
            raise ToolError(plain(str(error), 1_000)) from None
        except Exception as error:  # its own text may hold data from the capture
            what = "not enough memory" if is_out_of_memory(error) else f"internal error ({type(error).__name__})"
            raise ToolError(f"{what}; call `open` without a capture, or change the arguments") from None
        return CallToolResult(content=[TextContent(text=encoded(answer))], structured_content=answer)

    return result


def serve(named: Sequence[Path]) -> None:
    """Answer on standard input and output until the input ends."""
    build_server(named, Path.cwd()).run("stdio")
