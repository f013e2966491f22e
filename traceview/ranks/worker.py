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
    """

    path: str
    iteration: str | None
    skip: int | None
    nsys: str | None
    max_decoded: int


def read(task: Task) -> ReportResult | str:
    """Read one report; return its result, or an error as one line."""
    if "polars" not in sys.modules:  # which reads its limit when it is imported
        os.environ.update(dict.fromkeys(THREADS, "1"))  # the workers are the parallelism
    from traceview.errors import TraceviewError, is_out_of_memory
    from traceview.ranks.measure_report import measure_report
    from traceview.read.nsys_rep import CHOSEN
    from traceview.read.source import MAX_DECODED, display_name

    path = Path(task.path)
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
