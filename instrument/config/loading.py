"""Build a configuration from defaults, a YAML file and flags. Errors name the source of each value."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from instrument.config.aliases import ALIASES, settings_by_alias
from instrument.config.settings import MAX_SHOWN_LENGTH, FieldError, did_you_mean, get_setting, parse_value, short_repr
from instrument.errors import ConfigError

ConfigT = TypeVar("ConfigT")
Values = dict[str, Any]


def merge(
    config_type: type[ConfigT], path: Path | None, flags: Mapping[str, object], is_cpu: Callable[[Values], bool]
) -> ConfigT:
    """Return the configuration of a file and flags. Flags override the file, and the file overrides the defaults.

    Args:
        config_type: the dataclass of sections.
        path: a YAML file; None for none.
        flags: long name with underscores -> value; None means not given.
        is_cpu: returns whether a run with these values ("section.field" -> value) has no GPU; such a run has the
            defaults of `Setting.cpu`.

    Raises:
        ConfigError: one line with the file or flag, the value, and what is allowed.
    """
    file_values = {} if path is None else _flatten(config_type, _read_yaml(path), f"{path}: ")
    flag_values = dict(_values_of_flags(config_type, flags))
    sources = {key: f"{path}: {key}" for key in file_values}
    sources |= {key: f"--{flag_names(config_type)[key]}" for key in flag_values}
    values = file_values | flag_values
    if is_cpu(values):
        settings = {key: get_setting(field) for key, field in iter_settings(config_type)}
        values = {key: setting.cpu for key, setting in settings.items() if setting.cpu is not None} | values
    return _build(config_type, values, sources)


def from_sections(config_type: type[ConfigT], sections: Mapping[str, Any]) -> ConfigT:
    """Return the configuration of a mapping of sections, for example from a checkpoint.

    Raises:
        ConfigError: a key is unknown or a value is invalid.
    """
    return _build(config_type, _flatten(config_type, sections, ""), {})


def section_types(config_type: type) -> Mapping[str, type]:
    """Return the class of each section of a configuration."""
    return get_type_hints(config_type)


def iter_settings(config_type: type) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield each setting as ("section.field", its field)."""
    for section, section_type in section_types(config_type).items():
        for field in dataclasses.fields(section_type):
            yield f"{section}.{field.name}", field


def flag_names(config_type: type) -> Mapping[str, str]:
    """Return the flag of each setting without leading dashes: "training.learning_rate" -> "learning-rate".

    A flag is named by its setting's `flag`, else by its field. If two sections have the field, the section comes first.
    """
    counts = Counter(field.name for _key, field in iter_settings(config_type))
    return {key: get_setting(field).flag or _flag_name(key, counts) for key, field in iter_settings(config_type)}


def _flag_name(key: str, counts: Counter[str]) -> str:
    name = key.split(".")[1]
    return (name if counts[name] == 1 else key).replace(".", "-").replace("_", "-")


def _values_of_flags(config_type: type, flags: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    keys_by_flag: dict[str, list[str]] = {}
    for key, flag in flag_names(config_type).items():
        keys_by_flag.setdefault(flag, []).append(key)
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if flag not in keys_by_flag:
            raise ConfigError(f"--{flag} is unknown{did_you_mean(flag, tuple(keys_by_flag))}")
        if value is not None:
            yield from _split_flag(flag, keys_by_flag[flag], value)


def _split_flag(flag: str, keys: list[str], value: object) -> Iterator[tuple[str, object]]:
    parts = [value] if len(keys) == 1 else str(value).split(":")
    if len(parts) != len(keys):
        expected = ":".join(key.split(".")[1].upper() for key in keys)
        raise ConfigError(f"--{flag}: invalid value {value!r}; expected {expected}")
    yield from zip(keys, parts, strict=True)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with an error for duplicate keys, of which PyYAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping; raise ConstructorError for a duplicate key."""
        seen = set()
        for key in (key for key, _value in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"duplicate key {_key_text(key.value)}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # a SafeLoader: it builds plain values
    except FileNotFoundError:
        raise ConfigError(f"{path}: file not found") from None
    except OSError as failure:
        raise ConfigError(f"{path}: cannot be read: {failure.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a YAML file (not UTF-8 text)") from None
    except (yaml.YAMLError, RecursionError, ValueError) as failure:
        raise ConfigError(f"{path}: invalid YAML{_yaml_problem(failure)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must contain sections such as training:, not {short_repr(values)}")
    return values


def _yaml_problem(failure: Exception) -> str:
    if not isinstance(failure, yaml.MarkedYAMLError) or failure.problem_mark is None:
        return f": {' '.join(str(failure).split())}"
    return f" in line {failure.problem_mark.line + 1}: {failure.problem}"


def _key_text(name: object) -> str:
    """Return a key as written in the file; as a shortened repr if it is long or not printable."""
    return str(name) if str(name).isprintable() and len(str(name)) <= MAX_SHOWN_LENGTH else short_repr(name)


def _flatten(config_type: type, sections: Mapping[str, Any], prefix: str) -> Values:
    """Return "section.field" -> value of nested sections. `prefix` starts each error message."""
    values: Values = {}
    for section, fields in sections.items():
        if section not in section_types(config_type):
            raise ConfigError(f"{prefix}{_unknown_section(config_type, section)}")
        if not isinstance(fields, Mapping | None):
            raise ConfigError(f"{prefix}{section}: must be a section with keys, not {short_repr(fields)}")
        for name, value in (fields or {}).items():
            key = f"{section}.{settings_by_alias(section).get(name, name)}"
            if key not in flag_names(config_type):
                raise ConfigError(f"{prefix}{_unknown_key(config_type, section, name)}")
            if key in values:
                raise ConfigError(f"{prefix}{section}.{name}: {key} is given twice, under two names")
            values[key] = value
    return values


def _settings_named(config_type: type, name: object) -> list[str]:
    """Return the settings with this name or alias, as "section.field"."""
    return [key for key, field in iter_settings(config_type) if name == field.name or name in ALIASES.get(key, ())]


def _unknown_section(config_type: type, section: object) -> str:
    keys = _settings_named(config_type, section)
    names = tuple(section_types(config_type))
    if keys:
        return f"{_key_text(section)} is not a section (did you mean {' or '.join(keys)}?)"
    return f"{_key_text(section)} is not a section{did_you_mean(section, names)}; allowed: {', '.join(names)}"


def _unknown_key(config_type: type, section: str, name: object) -> str:
    elsewhere = _settings_named(config_type, name)
    if elsewhere:
        return f"{section}.{_key_text(name)} is unknown (did you mean {' or '.join(elsewhere)}?)"
    names = tuple(field.name for field in dataclasses.fields(section_types(config_type)[section]))
    close = did_you_mean(name, (*names, *settings_by_alias(section)))
    return f"{section}.{_key_text(name)} is unknown{close}; allowed: {', '.join(names)}"


def _build(config_type: type[ConfigT], values: Values, sources: Mapping[str, str]) -> ConfigT:
    types = section_types(config_type)
    sections: dict[str, Values] = {section: {} for section in types}
    for key, value in values.items():
        section, name = key.split(".")
        sections[section][name] = parse_value(types[section], name, value)
    try:
        return config_type(**{section: types[section](**fields) for section, fields in sections.items()})
    except FieldError as failure:
        raise failure.with_sources(sources) from None
