"""Rules: each explains lost GPU time with its cost, places and remedy. One file per rule, which has the rule's name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from traceview.pricing.base import Rule
from traceview.pricing.packages import AnyRule, rules_of_packages

# The rules in the order in which they claim time. The most specific cause claims first: later rules cannot claim the
# time that it is granted.
RULES = (
    "shared_gpu",
    "whole_graphs",
    "profiler_overhead",
    "start_up",
    "idle_stream",
    "copy_bound",
    "pageable_copies",
    "allocation",
    "synchronize",
    "kernel_storm",
    "launch_bound",
    "communication_wait",
    "shared_stream",
    "exposed_communication",
    "exposed_copies",
    "outside_iterations",
    "host_bound",
    "slow_calls",
    "queued_work",
    "unknown_launch",
    "slow_kernels",
    "small_grids",
    "costliest_kernel",
)


@cache
def own_rules() -> tuple[Rule, ...]:
    """Return the rules of this package, in the order of RULES."""
    return tuple(getattr(import_module(f"{__name__}.{name}"), name) for name in RULES)


def all_rules() -> tuple[AnyRule, ...]:
    """Return the rules of other packages, then own_rules. Those know the program, so they claim first."""
    return (*rules_of_packages(), *own_rules())
