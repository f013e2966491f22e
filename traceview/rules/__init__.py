"""Rules: each explains lost GPU time with its cost, places and remedy. One file and one line in RULES per rule."""

from __future__ import annotations

from typing import Any

from traceview.pricing.base import Rule
from traceview.pricing.packages import AnyRule, rules_of_packages
from traceview.rules.allocation import allocation
from traceview.rules.communication_wait import communication_wait
from traceview.rules.copy_bound import copy_bound
from traceview.rules.costliest_kernel import costliest_kernel
from traceview.rules.cut_capture import cut_capture
from traceview.rules.exposed_communication import exposed_communication
from traceview.rules.exposed_copies import exposed_copies
from traceview.rules.host_bound import host_bound
from traceview.rules.idle_stream import idle_stream
from traceview.rules.kernel_storm import kernel_storm
from traceview.rules.launch_bound import launch_bound
from traceview.rules.missing_data import missing_data
from traceview.rules.outside_iterations import outside_iterations
from traceview.rules.pageable_copies import pageable_copies
from traceview.rules.profiler_overhead import profiler_overhead
from traceview.rules.queued_work import queued_work
from traceview.rules.shared_gpu import shared_gpu
from traceview.rules.shared_stream import shared_stream
from traceview.rules.slow_calls import slow_calls
from traceview.rules.slow_kernels import slow_kernels
from traceview.rules.small_grids import small_grids
from traceview.rules.start_up import start_up
from traceview.rules.synchronize import synchronize
from traceview.rules.unknown_launch import unknown_launch
from traceview.rules.whole_graphs import whole_graphs

# The most specific cause claims first: later rules cannot claim the time it is granted.
RULES: tuple[Rule[Any], ...] = (
    missing_data,
    cut_capture,
    shared_gpu,
    whole_graphs,
    profiler_overhead,
    start_up,
    idle_stream,
    copy_bound,
    pageable_copies,
    allocation,
    synchronize,
    kernel_storm,
    launch_bound,
    communication_wait,
    shared_stream,
    exposed_communication,
    exposed_copies,
    outside_iterations,
    host_bound,
    slow_calls,
    queued_work,
    unknown_launch,
    slow_kernels,
    small_grids,
    costliest_kernel,
)


def all_rules() -> tuple[AnyRule, ...]:
    """Return the rules of other packages, then RULES. Those know the program, so they claim first."""
    return (*rules_of_packages(), *RULES)
