"""The `help` command: commands, the rules that find lost time, the form of the JSON, shell completion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceview.cli import COMMANDS, cli, command
from traceview.cli.options import JSON
from traceview.cli.outputs import check_outputs, print_out, write_document
from traceview.errors import RequestError

if TYPE_CHECKING:
    from traceview.cli.catalogue import ExplainedRule

SHELLS = ("bash", "zsh", "fish")


@command(
    "traceview help rules host_bound launch_bound",
    "traceview help schema whatif > whatif.schema.json",
    'eval "$(traceview help completion bash)"     # in ~/.bashrc',
    "traceview help completion fish > ~/.config/fish/completions/traceview.fish",
)
@click.argument("topic", required=False)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@JSON
def help(topic: str | None, words: tuple[str, ...], json_path: Path | None) -> None:
    """Explain TOPIC: a command, or one of these.

    \b
    rules [NAME]...       the rules that find lost time, in their order
    schema COMMAND        the JSON Schema of what COMMAND writes with --json
    completion SHELL      the completion script for bash, zsh or fish
    """  # noqa: D301 - click's mark of a paragraph that is not wrapped
    context = click.get_current_context()
    assert context.parent is not None, "help is a command of traceview"
    if json_path is not None and topic != "rules":
        raise RequestError("--json is for `traceview help rules`")
    if topic is None or topic in COMMANDS:
        shown = cli if topic is None else cli.get_command(context, topic)
        assert shown is not None, "every command of COMMANDS exists"
        print_out(shown.get_help(click.Context(shown, context.parent, topic) if topic else context.parent) + "\n")
    elif topic == "rules":
        _rules(words, json_path)
    elif topic == "completion":
        _completion(_one_of(topic, words, SHELLS))
    elif topic == "schema":
        from traceview.cli.schemas import SCHEMAS
        from traceview.report.json import indented_text

        print_out(indented_text(SCHEMAS[_one_of(topic, words, tuple(SCHEMAS))]()))
    else:
        raise RequestError(f"no help on {topic[:40]!r}; use a command, rules, schema or completion")


def _one_of(topic: str, words: tuple[str, ...], known: Sequence[str]) -> str:
    if len(words) != 1 or words[0] not in known:
        raise RequestError(f"traceview help {topic} takes one of {', '.join(known)}")
    return words[0]


def _completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None, "click supports every shell in SHELLS"
    print_out(completer(cli, {}, "traceview", "_TRACEVIEW_COMPLETE").source() + "\n")


def _rules(names: tuple[str, ...], json_path: Path | None) -> None:
    """List the rules, or explain those with a name. Rules and measures of other packages have the package's name."""
    from traceview.cli.catalogue import OWN, Catalogue, explained_rules, listed_measures

    every, measures = explained_rules(), listed_measures()
    chosen = [rule for rule in every if rule.name in names or not names]
    unknown = sorted(set(names) - {rule.name for rule in every})
    if unknown:
        raise RequestError(f"no rule is called {unknown[0][:80]!r}; `traceview help rules` lists them")
    check_outputs((), (json_path,))
    if write_document(json_path, Catalogue(tuple(chosen), measures)):
        return
    if names:
        print_out("\n".join(f"{rule.name}{_package(rule.package, OWN)}\n\n{_indented(rule)}\n" for rule in chosen))
        return
    width = max(len(rule.name) for rule in every)
    lines = [f"  {rule.name:<{width}}  {rule.summary}{_package(rule.package, OWN)}" for rule in every]
    others = [
        f"  {row.name:<{width}}  {row.title}{_package(row.package, OWN)}" for row in measures if row.package != OWN
    ]
    parts = [lines, ["Measures of other packages", *others]] if others else [lines]
    print_out("\n\n".join("\n".join(part) for part in parts) + "\n")


def _package(package: str, own: str) -> str:
    return "" if package == own else f" [{package}]"


def _indented(rule: ExplainedRule) -> str:
    return "\n".join(f"  {line}".rstrip() for line in rule.text.splitlines())
