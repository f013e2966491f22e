"""The `rules` command: what traceview looks for, and the rules and measures of other packages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceview.cli import examples
from traceview.cli.options import JSON
from traceview.cli.outputs import check_outputs, print_out, write_document
from traceview.errors import RequestError

if TYPE_CHECKING:
    from traceview.rules.catalogue import ExplainedRule


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@JSON
@examples("traceview rules", "traceview rules host_bound launch_bound", "traceview rules --json rules.json")
def rules(names: tuple[str, ...], json_path: Path | None) -> None:
    """List the rules that find what costs GPU time, or explain those with a NAME.

    Rules claim lost time in the order of the list. Rules and measures of other packages have the name of the package.
    """
    from traceview.rules.catalogue import OWN, Catalogue, explained_rules, listed_measures

    every, measures = explained_rules(), listed_measures()
    chosen = [rule for rule in every if rule.name in names or not names]
    unknown = sorted(set(names) - {rule.name for rule in every})
    if unknown:
        raise RequestError(f"no rule is called {unknown[0][:80]!r}; `traceview rules` lists them")
    check_outputs((), (json_path,))
    if write_document(json_path, Catalogue(tuple(chosen), measures)):
        return
    if names:
        print_out("\n".join(f"{_title(rule, OWN)}\n\n{_indented(rule.text)}\n" for rule in chosen))
        return
    width = max(len(rule.name) for rule in every)
    lines = [f"  {rule.name:<{width}}  {rule.summary}{_package(rule.package, OWN)}" for rule in every]
    others = [
        f"  {row.name:<{width}}  {row.title}{_package(row.package, OWN)}" for row in measures if row.package != OWN
    ]
    parts = [lines, ["Measures of other packages", *others]] if others else [lines]
    print_out("\n\n".join("\n".join(part) for part in parts) + "\n")


def _title(rule: ExplainedRule, own: str) -> str:
    return f"{rule.name}{_package(rule.package, own)}"


def _package(package: str, own: str) -> str:
    return "" if package == own else f" [{package}]"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
