"""Rules: each explains lost GPU time with its cost, places and remedy. One function per rule, one file per theme."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from traceview.pricing.base import Rule
from traceview.pricing.packages import AnyRule, rules_of_packages

# The file of each rule. They claim time in this order, the most specific cause first: later rules cannot claim the time
# that it is granted.
RULES: Mapping[str, str] = {
    "shared_gpu": "captured",
    "whole_graphs": "captured",
    "profiler_overhead": "captured",
    "start_up": "start_up",
    "idle_stream": "queues",
    "copy_bound": "copies",
    "pageable_copies": "copies",
    "allocation": "calls",
    "synchronize": "calls",
    "kernel_storm": "launches",
    "launch_bound": "launches",
    "communication_wait": "communication",
    "shared_stream": "copies",
    "exposed_communication": "communication",
    "exposed_copies": "copies",
    "outside_iterations": "outside",
    "host_bound": "host_bound",
    "slow_calls": "calls",
    "queued_work": "queues",
    "unknown_launch": "queues",
    "slow_kernels": "kernels",
    "small_grids": "kernels",
    "costliest_kernel": "kernels",
}


@cache
def own_rules() -> tuple[Rule, ...]:
    """Return the rules of this package, in the order of RULES."""
    return tuple(Rule(name, getattr(import_module(f"{__name__}.{file}"), name)) for name, file in RULES.items())


def all_rules() -> tuple[AnyRule, ...]:
    """Return the rules of other packages, then own_rules. Those know the program, so they claim first."""
    return (*rules_of_packages(), *own_rules())
