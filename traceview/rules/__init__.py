"""Rules: each explains lost GPU time with its cost, places and remedy. One file per rule, which has the rule's name."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from traceview.pricing.base import OldRule, Rule
from traceview.pricing.packages import AnyRule, rules_of_packages


@cache
def own_rules() -> tuple[Rule | OldRule[Any], ...]:
    """Return the rules of this package, in the order in which they claim time.

    The most specific cause claims first: later rules cannot claim the time it is granted.
    """
    names = [module.name for module in iter_modules(__path__)]
    members = [getattr(import_module(f"{__name__}.{name}"), name, None) for name in names]
    return tuple(
        sorted(
            (rule for rule in members if isinstance(rule, (Rule, OldRule))), key=lambda rule: (rule.place, rule.name)
        )
    )


def all_rules() -> tuple[AnyRule, ...]:
    """Return the rules of other packages, then own_rules. Those know the program, so they claim first."""
    return (*rules_of_packages(), *own_rules())
