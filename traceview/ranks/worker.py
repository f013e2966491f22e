"""Runs in a worker, on this machine or another: measures a report, or returns one line that says why it cannot.

The module imports nothing that loads polars, so that a worker can limit its threads first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from traceview.model.frozen import dataclass

if TYPE_CHECKING:
    from traceview.model.fleet import ReportResult

NOT_SEEN = "the worker does not see it; all workers need the reports under the same absolute paths"
THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Task:
    """A report to read, and how.

    Attributes:
        path: an absolute path.
        iteration: the pattern of iteration names, or None.
        skip: the number of warm-up iterations, or None.
        nsys: the path of nsys, or None.
        max_decoded: the limit of decoded bytes.
        exists: whether the first process sees the report. If it does, a worker of a cluster that does not reports a
            different error than for a mistyped path.
    """

    path: str
    iteration: str | None
    skip: int | None
    nsys: str | None
    max_decoded: int
    exists: bool = False


def read(task: Task) -> ReportResult | str:
    """Read one report; return its result, or an error as one line."""
    if "polars" not in sys.modules:  # which reads its limit when it is imported
        os.environ.update(dict.fromkeys(THREADS, "1"))  # the workers are the parallelism
    from traceview.errors import TraceviewError, is_out_of_memory
    from traceview.ranks.measure_report import measure_report
    from traceview.read.nsys_rep import CHOSEN
    from traceview.read.source import MAX_DECODED, display_name

    path = Path(task.path)
    if task.exists and not path.exists():
        return NOT_SEEN
    nsys, limit = CHOSEN.set(task.nsys), MAX_DECODED.set(task.max_decoded)
    try:
        return measure_report(path, task.iteration, task.skip)
    except TraceviewError as error:
        # The fleet names the file itself.
        return str(error).removeprefix(f"{display_name(path)}: ")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # PanicException of polars does not derive from Exception; the fleet must go on
        return "not enough memory to read it" if is_out_of_memory(error) else f"internal error ({type(error).__name__})"
    finally:
        CHOSEN.reset(nsys)
        MAX_DECODED.reset(limit)
