"""What `traceview analyze` can be told, and how `--help` explains it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
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

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Return a number of bytes: 8MB, 1.5GB, 500kB, or a whole number."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-zA-Z]*)", text.strip())
    if found is None or found[2].lower() not in UNITS:
        raise click.BadParameter(f"{text[:40]!r} is no size; write it like 15MB")
    return int(float(found[1]) * UNITS[found[2].lower()])


FILE = click.Path(path_type=Path)
CAPTURES = "traceview.captures"  # in a click context's `meta`: what the command was given


class _Capture(click.Path):
    """A capture that a command was given: whatever runs out on the way to an answer can name it."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        found = super().convert(value, param, ctx)
        if ctx is not None:
            ctx.meta.setdefault(CAPTURES, []).append(found)
        return found


CAPTURE = _Capture(path_type=Path)
REPORT = click.argument("report", type=CAPTURE)


def _with_nsys(context: click.Context, _option: click.Parameter, name: str | None) -> None:
    """Have this command call the nsys of this name."""
    if name is not None:
        from traceview.read.nsys_rep import CHOSEN

        context.call_on_close(partial(CHOSEN.reset, CHOSEN.set(name)))


def _with_max_decoded(context: click.Context, _option: click.Parameter, text: str | None) -> None:
    """Set the limit on decoded data for this command."""
    limit = size(context, _option, text)
    if limit is not None:
        from traceview.read.limits import MAX_DECODED

        context.call_on_close(partial(MAX_DECODED.reset, MAX_DECODED.set(limit)))


_READING = (
    click.option(
        "--nsys",
        expose_value=False,
        callback=_with_nsys,
        metavar="PROGRAM",
        help="The nsys that exports a .nsys-rep.  [default: the one on PATH]",
    ),
    click.option(
        "--max-decoded",
        expose_value=False,
        callback=_with_max_decoded,
        metavar="SIZE",
        help="Refuse a capture that unpacks or decodes to more.  [default: 4GB]",
    ),
)


def reading_options(command: Decorated) -> Decorated:
    """Give a command the options that every reader of a capture follows."""
    return _with(command, _READING)


OPEN = click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
OUTPUTS = (
    click.option("--html", type=FILE, help="Where the page goes.  [default: REPORT.overlap.html beside the report]"),
    click.option("--no-html", is_flag=True, help="Write no page."),
    click.option(
        "--detail",
        callback=size,
        metavar="SIZE",
        help="How large the page may be: with more, the timeline holds more events one by one.  [default: 15MB]",
    ),
    OPEN,
    click.option("--json", "json_path", type=FILE, help="Write every figure as JSON; - is standard output, alone."),
)
ANALYSIS = (
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
)
VERDICT = (
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
    """Give a command the report and the options of an analysis with its outputs."""
    return _with(command, (REPORT, *OUTPUTS, *ANALYSIS, reading_options, *VERDICT))


def serve_options(command: Decorated) -> Decorated:
    """Give a command the report, where it is served, and the options of an analysis."""
    port = click.option(
        "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port.  [default: any free one]"
    )
    return _with(command, (REPORT, port, OPEN, *ANALYSIS, reading_options, VERDICT[-1]))


def _with(command: Decorated, options: tuple[Callable[[Decorated], Decorated], ...]) -> Decorated:
    for option in reversed(options):
        command = option(command)
    return command
