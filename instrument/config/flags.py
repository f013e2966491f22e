"""Command line of `instrument.train` and `instrument.diagnose`: one flag per setting, and errors as one line.

    parser = ConfigParser("python -m instrument.train", "Train a model.")
    config, given = parser.parsed(sys.argv[1:])

Flag values stay text until `instrument.config.loading.load` reads them, so flags and YAML files give the same errors.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from instrument.config.loading import SWITCHES, alias_flags, flag_names, iter_settings, load, section_types
from instrument.config.schema import Config
from instrument.config.settings import Kind, field_kinds, get_setting
from instrument.errors import ConfigError, InstrumentError


class ConfigParser(argparse.ArgumentParser):
    """A parser with `--config FILE.yaml` and a flag for each setting, whose help groups them by section.

    Flags may be written with underscores, as those of Hugging Face and nanoGPT are: `--batch_size=8`.

    Args:
        program: the command.
        about: what it does.
    """

    def __init__(self, program: str, about: str) -> None:
        super().__init__(prog=program, usage=f"{program} [OPTION ...]", description=about, allow_abbrev=False)
        text = "Read settings from a YAML file with one section each; flags override it."
        self.add_argument("--config", type=Path, metavar="FILE.yaml", help=text)
        self._sections = {section: self.add_argument_group(section) for section in section_types()}
        fields: dict[str, tuple[str, dataclasses.Field[Any]]] = {}
        for key, field in iter_settings():
            # Two fields that share a flag are one option, described by the first field.
            fields.setdefault(flag_names()[key], (key, field))
        for flag, (key, field) in fields.items():
            self._add_setting(flag, key, field)
        for name, (key, word) in SWITCHES.items():
            self._sections[key.split(".")[0]].add_argument(
                f"--{name}",
                dest=flag_names()[key],
                action="store_const",
                const=word,
                help=f"Same as --precision {word}",
            )

    def parsed(self, words: Sequence[str]) -> tuple[Config, argparse.Namespace]:
        """Return the configuration, and the values of options that were added to this parser.

        Raises:
            ConfigError: a value is invalid, an option is unknown or lacks its value, or an argument is unexpected.
        """
        given = self.parse_args([with_dashes(word) for word in words])
        flags = {flag: vars(given).pop(flag) for flag in dict.fromkeys(flag_names().values())}
        return load(given.config, flags), given

    def error(self, message: str) -> NoReturn:
        """Raise an error of the command line."""
        raise ConfigError(f"{message} (--help lists the flags)")

    def _add_setting(self, flag: str, key: str, field: dataclasses.Field[Any]) -> None:
        section, name = key.split(".")
        kind, setting, aliases = field_kinds(section_types()[section])[name], get_setting(field), alias_flags(key)
        about: dict[str, Any] = {"metavar": _metavar(key, field, kind)}
        if setting.bare is not None:
            about |= {"nargs": "?", "const": setting.bare}
        if kind.base is bool:
            about = {"action": argparse.BooleanOptionalAction}
        also = f" (also {', '.join(f'--{alias}' for alias in aliases)})" if aliases else ""
        text = f"{setting.help}{_default_text(field)}{also}".replace("%", "%%")
        self._sections[section].add_argument(f"--{flag}", dest=flag, help=text, **about)
        for alias in aliases:
            self._sections[section].add_argument(f"--{alias}", dest=flag, help=argparse.SUPPRESS, **about)


def with_dashes(word: str) -> str:
    """Return a flag with dashes in place of underscores; any other word unchanged."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def print_message(text: str) -> None:
    """Print one line to standard error; standard output is for results."""
    sys.stderr.write(f"instrument: {text}\n")
    sys.stderr.flush()


def run_command(command: Callable[[Sequence[str]], object]) -> None:
    """Run a command with the words of the command line; print an error the user can cause in one line, exit code 2."""
    try:
        command(sys.argv[1:])
    except InstrumentError as error:
        print_message(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


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
