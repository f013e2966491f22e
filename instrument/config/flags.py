"""Command line of `instrument.train` and `instrument.diagnose`: one flag per setting, and errors as one line.

    @click.command(cls=ConfigCommand)
    @config_options
    def command(config: Config) -> None: ...

    run_command(command)

Flag values stay text until `instrument.config.loading.load` reads them, so flags and YAML files give the same errors.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from instrument.config.loading import SWITCHES, alias_flags, flag_names, iter_settings, load, section_types
from instrument.config.settings import Kind, field_kinds, get_setting
from instrument.errors import ConfigError, InstrumentError

Result = TypeVar("Result")


class _Flag(click.Option):
    """An option with the name of the section it belongs to."""

    def __init__(self, declarations: Sequence[str], section: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.section = section

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the first name and the help, which ends with the other names."""
        names, off_names = self.opts, self.secondary_opts
        self.opts, self.secondary_opts = names[:1], off_names[:1]
        record = super().get_help_record(ctx)
        self.opts, self.secondary_opts = names, off_names
        if record is None or len(names) == 1:
            return record
        return record[0], f"{record[1]} (also {', '.join(names[1:])})"


class ConfigCommand(click.Command):
    """A click command whose help groups the flags by section and whose usage errors are one line.

    Flags may be written with underscores, as those of Hugging Face and nanoGPT are: `--batch_size=8`.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.context_settings["token_normalize_func"] = lambda name: name.replace("_", "-")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line.

        Raises:
            ConfigError: an option is unknown or lacks its value, or there is an unexpected argument.
        """
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as failure:
            raise ConfigError(f"{' '.join(failure.format_message().split())} (--help lists the flags)") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the general options first, then the flags of each section."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("options", *section_types())}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups[getattr(parameter, "section", "options")].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def config_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add `--config FILE.yaml` and a flag for each setting to a click command, which is called with `config`.

    Other options of the command are passed on unchanged. The call raises ConfigError for an invalid value.
    """
    names = {name.replace("-", "_") for name in flag_names().values()}

    @functools.wraps(command)
    def call(config_file: Path | None, **values: Any) -> Result:
        flags = {name: values.pop(name) for name in names}
        for name, (key, word) in SWITCHES.items():
            if values.pop(name):
                flags[key.split(".")[1]] = word
        return command(config=load(config_file, flags), **values)

    for option in reversed(_options()):
        call = option(call)
    return call


def print_message(text: str) -> None:
    """Print one line to standard error; standard output is for results."""
    click.echo(f"instrument: {text}", err=True)


def run_command(command: click.Command) -> None:
    """Run a command; an error the user can cause is printed as one line, with exit code 2."""
    try:
        command(standalone_mode=False)
    except InstrumentError as error:
        print_message(f"error: {error}")
        sys.exit(2)
    except click.exceptions.Exit as end:  # --help
        sys.exit(end.exit_code)
    except click.Abort:
        sys.exit(130)


def _options() -> list[Callable[[Callable[..., Result]], Callable[..., Result]]]:
    file = click.option(
        "--config",
        "config_file",
        metavar="FILE.yaml",
        type=click.Path(path_type=Path),
        help="Read settings from a YAML file with one section each; flags override it.",
    )
    flags: dict[str, Callable[[Callable[..., Result]], Callable[..., Result]]] = {}
    for key, field in iter_settings():
        # Two fields that share a flag are one option, described by the first field.
        flags.setdefault(flag_names()[key], _option(key, field))
    switches = [
        click.option(
            f"--{name}", cls=_Flag, section=key.split(".")[0], is_flag=True, help=f"Same as --precision {word}"
        )
        for name, (key, word) in SWITCHES.items()
    ]
    return [file, *flags.values(), *switches]


def _option(key: str, field: dataclasses.Field[Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    section, name = key.split(".")
    kind, flag, setting = field_kinds(section_types()[section])[name], flag_names()[key], get_setting(field)
    help_text = f"{setting.help}{_default_text(field)}"
    names = (flag, *alias_flags(key))
    if kind.base is bool:
        on_and_off = (f"--{name}/--{setting.off or f'no-{name}'}" for name in names)
        return click.option(*on_and_off, cls=_Flag, section=section, default=None, help=help_text)
    bare = {} if setting.bare is None else {"is_flag": False, "flag_value": setting.bare}
    metavar = _metavar(key, field, kind)
    return click.option(
        *(f"--{name}" for name in names), cls=_Flag, section=section, metavar=metavar, help=help_text, **bare
    )


def _default_text(field: dataclasses.Field[Any]) -> str:
    setting = get_setting(field)
    if isinstance(setting.default, bool):
        return " [on]" if setting.default else " [off]"
    without_gpu = "" if setting.cpu is None else f"; without a GPU {setting.cpu}"
    word = next((word for word, value in setting.words.items() if value == setting.default), setting.default)
    return "" if word is None else f" [{word}{without_gpu}]"


def _metavar(key: str, field: dataclasses.Field[Any], kind: Kind) -> str:
    shared = [other for other, flag in flag_names().items() if flag == flag_names()[key]]
    if len(shared) > 1:
        return ":".join(other.split(".")[1].upper() for other in shared)
    default = {int: "N", float: "X", Path: "PATH"}.get(kind.base, "TEXT")
    return get_setting(field).metavar or "|".join(kind.choices) or default
