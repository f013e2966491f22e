"""The `info`, `rules` and `schema` commands: what a capture holds, what traceview looks for, the form of its JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceview.cli import examples
from traceview.cli.options import JSON, REPORT, VERBOSE, reading_options
from traceview.cli.outputs import check_outputs, print_out, screen, write_document
from traceview.errors import RequestError

if TYPE_CHECKING:
    from traceview.rules.catalogue import ExplainedRule


MORE = "every stream, table, range and check of the capture's health"


@click.command()
@REPORT
@JSON
@reading_options
@VERBOSE
@examples(
    "traceview info report.sqlite",
    "traceview info report.nsys-rep -v",
)
def info(report: Path, json_path: Path | None, verbose: bool) -> None:
    """List what REPORT contains and what is missing. Measures nothing."""
    from traceview.captures.info import brief_lines, describe, lines

    check_outputs((report,), (json_path,))
    contents = describe(report)
    if write_document(json_path, contents):
        return
    parts = [list((lines if verbose else brief_lines)(contents))]
    print_out(screen().text(parts) if verbose else screen().brief(parts, MORE))


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


DOCUMENTS = (
    *("analyze", "baseline", "calibrate", "compare", "doctor", "export", "fleet", "info", "optimize", "record"),
    *("redact", "rules", "whatif"),
)


@click.command()
@click.argument("command", metavar="COMMAND", type=click.Choice(DOCUMENTS))
@examples("traceview schema analyze", "traceview schema whatif > whatif.schema.json")
def schema(command: str) -> None:
    """Print the JSON Schema of what COMMAND writes with --json."""
    from traceview.cli.schemas import SCHEMAS
    from traceview.report.json import indented_text

    print_out(indented_text(SCHEMAS[command]()))
