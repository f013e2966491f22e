"""A flag for every setting of the configuration, made from its fields.

    @click.command(cls=ConfiguredCommand)
    @configured
    def main(config: Config) -> None: ...

The values stay text until `instrument.config.schema.load` reads them, so that a wrong one is refused as in the file.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from instrument.config.loading import keys_of, long_names, sections_of
from instrument.config.schema import Config, load
from instrument.config.settings import Kind, kinds, spec
from instrument.errors import ConfigError

Result = TypeVar("Result")


class _Flag(click.Option):
    """An option that knows the section it belongs to."""

    def __init__(self, declarations: Sequence[str], section: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.section = section


class ConfiguredCommand(click.Command):
    """A click command whose help groups the flags by section, and whose mistakes are one line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line.

        Raises:
            ConfigError: an option is unknown, lacks its value, or an argument is there that means nothing.
        """
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as failure:
            raise ConfigError(f"{' '.join(failure.format_message().split())} (--help lists the flags)") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, those of no section first, then a section after the other."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("options", *sections_of(Config))}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups[getattr(parameter, "section", "options")].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def configured(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a click command `--config FILE.yaml` and every flag; it is called with `config`, made from them.

    The command's other options are passed on as they are. Calling it raises ConfigError where a value cannot be.
    """
    names = {name.replace("-", "_") for name in long_names(Config).values()}

    @functools.wraps(command)
    def call(config_file: Path | None, **given: Any) -> Result:
        flags = {name: given.pop(name) for name in names}
        return command(config=load(config_file, flags), **given)

    for option in reversed(_options()):
        call = option(call)
    return call


def _options() -> list[Callable[[Callable[..., Result]], Callable[..., Result]]]:
    file = click.option(
        "--config", "config_file", metavar="FILE.yaml", type=click.Path(path_type=Path), help="Sections of settings."
    )
    flags: dict[str, Callable[[Callable[..., Result]], Callable[..., Result]]] = {}
    for key, field in keys_of(Config):
        # Two fields that one flag sets together are one option: the first one describes it.
        flags.setdefault(long_names(Config)[key], _option(key, field))
    return [file, *flags.values()]


def _option(key: str, field: dataclasses.Field[Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    section, name = key.split(".")
    kind, flag = kinds(sections_of(Config)[section])[name], long_names(Config)[key]
    about = f"{spec(field).help}{_default(field)}"
    if kind.base is bool:
        off = spec(field).off or f"no-{flag}"
        return click.option(f"--{flag}/--{off}", cls=_Flag, section=section, default=None, help=about)
    bare = {} if spec(field).bare is None else {"is_flag": False, "flag_value": spec(field).bare}
    return click.option(f"--{flag}", cls=_Flag, section=section, metavar=_metavar(key, field, kind), help=about, **bare)


def _default(field: dataclasses.Field[Any]) -> str:
    if isinstance(field.default, bool):
        return " [on]" if field.default else " [off]"
    without_gpu = "" if spec(field).cpu is None else f"; without a GPU {spec(field).cpu}"
    return "" if field.default is None else f" [{field.default}{without_gpu}]"


def _metavar(key: str, field: dataclasses.Field[Any], kind: Kind) -> str:
    together = [other for other, flag in long_names(Config).items() if flag == long_names(Config)[key]]
    if len(together) > 1:
        return ":".join(other.split(".")[1].upper() for other in together)
    return spec(field).metavar or "|".join(kind.choices) or {int: "N", float: "X", Path: "PATH"}.get(kind.base, "TEXT")
