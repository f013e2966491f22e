"""What `traceview analyze` can be told, and how `--help` explains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

EXPLAINED = """\b
TIME is 120ms or 1.5s: that long after the first GPU work; or a whole number
of ns, or @8.25s: a time on the capture's own clock, as in the JSON and nsys.

\b
EXPR is a QUANTITY, one of > >= < <= == !=, and a number with % ns us ms or s.
Of each device, % of its window; it holds when it holds on any:
  busy  idle  idle.CAUSE  compute  communication  findings.cost
  exposed_KIND  exposed_copies  exposed_communication
Of each device, % of its own busy time:
  overlap_KIND  overlap_communication
Of all calls, % of the longest window:
  sync.blocked .waited .starved .refill   implicit_sync.blocked ...
Of the iterations that count, % of their median wall time:
  iteration.FIGURE.median .p5 .p95
Counts, without a unit:
  kernels  gaps  unmatched  sync.count  implicit_sync.count  iteration.count
  findings.count  findings.high .medium .low .info
CAUSE: profiler queued launch sync blocking_copy memory api host unknown
KIND: h2d d2h d2d h2h p2p um_h2d um_d2h um_d2d other
FIGURE: wall compute communication exposed_h2d exposed_d2h
        exposed_communication idle idle_CAUSE blocked

\b
Exit codes: 0 done; 1 a --fail-if holds; 2 nothing can be said, and why;
130 interrupted. Files are written whole or not at all.
"""

Decorated = TypeVar("Decorated", bound=Callable[..., object])

FILE = click.Path(path_type=Path)
OPTIONS = (
    click.argument("report", type=FILE),
    click.option("--html", type=FILE, help="Where the page goes.  [default: REPORT.overlap.html beside the report]"),
    click.option("--no-html", is_flag=True, help="Write no page."),
    click.option("--json", "json_path", type=FILE, help="Write every figure as JSON; - is standard output, alone."),
    click.option("--from", "start", metavar="TIME", help="Begin there: 120ms after the first GPU work."),
    click.option("--to", "end", metavar="TIME", help="End there, written like --from."),
    click.option(
        "--range",
        "range_name",
        metavar="NVTX",
        help="Narrow to the ranges of this name, first start to last end.",
    ),
    click.option("--device", metavar="GPU", help="Only this device: its id ('GPU 0') or its ordinal."),
    click.option("--iteration", metavar="REGEX", help="NVTX ranges whose name matches are the iterations."),
    click.option(
        "--skip", type=click.IntRange(min=0), metavar="N", help="Set the first N iterations aside as warm-up."
    ),
    click.option(
        "--top",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        metavar="N",
        help="How long the longest lists are; what is counted stays the same.",
    ),
    click.option(
        "--fail-if",
        "conditions",
        multiple=True,
        metavar="EXPR",
        help="Exit with 1 when this holds: 'exposed_h2d > 5%'. May be repeated.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="Print no summary and no progress."),
)


def all_options(command: Decorated) -> Decorated:
    """Give a command the report and the options of an analysis."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
