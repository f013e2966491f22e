"""What each rule looks for, from its docstring: symptom, cause, remedy, and what it claims."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from inspect import cleandoc

from traceview import __version__
from traceview.measure import all_measures
from traceview.model.plugins import Plugin, is_fault
from traceview.pricing.packages import rules_of_packages
from traceview.rules import own_rules

OWN = f"traceview {__version__}"
PART = re.compile(r"^(Symptom|Cause|Remedy): (.+?)(?=\n(?:Symptom|Cause|Remedy): |\n\n|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ExplainedRule:
    """A rule: its name, its package with the version, its docstring, and the parts of it."""

    name: str
    package: str
    summary: str
    symptom: str | None
    cause: str | None
    remedy: str | None
    text: str


@dataclass(frozen=True, slots=True)
class ListedMeasure:
    """A measure: the name of its table in the JSON, its package with the version, and its title."""

    name: str
    package: str
    title: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every rule, or those that a user names, and every measure."""

    rules: tuple[ExplainedRule, ...]
    measures: tuple[ListedMeasure, ...]


def explained_rules() -> tuple[ExplainedRule, ...]:
    """Return every rule in the order in which rules claim time: those of other packages first."""
    return (
        *(_package_rule(rule.plugin) for rule in rules_of_packages()),
        *(_explained(rule.name, OWN, sys.modules[rule.decide.__module__].__doc__) for rule in own_rules()),
    )


def listed_measures() -> tuple[ListedMeasure, ...]:
    """Return every measure in the order in which reports show them."""
    tables = (measure.table for measure in all_measures())
    return tuple(ListedMeasure(table.name, table.package or OWN, table.title) for table in tables)


def _package_rule(plugin: Plugin) -> ExplainedRule:
    try:
        rule = plugin.load()
        text = rule.decide.__doc__ or sys.modules[rule.decide.__module__].__doc__
    except BaseException as error:
        if not is_fault(error):
            raise
        text = plugin.failure(error)
    return _explained(plugin.name, plugin.package, text)


def _explained(name: str, package: str, text: str | None) -> ExplainedRule:
    text = cleandoc(text or "The rule has no description.")
    parts = {part.lower(): " ".join(words.split()) for part, words in PART.findall(text)}
    summary = " ".join(text.partition("\n\n")[0].split())
    return ExplainedRule(name, package, summary, parts.get("symptom"), parts.get("cause"), parts.get("remedy"), text)
