"""How a configuration is put together: defaults, under a YAML file, under flags; each value's source is known."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from instrument.config.settings import LONGEST, FieldError, did_you_mean, read, shown, spec
from instrument.errors import ConfigError

Whole = TypeVar("Whole")
Values = dict[str, Any]


def merge(
    whole: type[Whole], path: Path | None, flags: Mapping[str, object], is_cpu: Callable[[Values], bool]
) -> Whole:
    """Return the configuration of a file and flags; a flag wins over the file, the file over the default.

    Args:
        whole: the dataclass of sections.
        path: a YAML file; None for none.
        flags: long name with underscores -> value; None is not given.
        is_cpu: whether a run of these values ("section.field" -> value) has no GPU; its defaults are `Setting.cpu`.

    Raises:
        ConfigError: one line naming the file or flag, the value, and what is allowed.
    """
    filed = {} if path is None else _flatten(whole, _read_yaml(path), f"{path}: ")
    flagged = dict(_from_flags(whole, flags))
    sources = {key: f"{path}: {key}" for key in filed}
    sources |= {key: f"--{long_names(whole)[key]}" for key in flagged}
    values = filed | flagged
    if is_cpu(values):
        values = {key: spec(field).cpu for key, field in keys_of(whole) if spec(field).cpu is not None} | values
    return _build(whole, values, sources)


def from_sections(whole: type[Whole], sections: Mapping[str, Any]) -> Whole:
    """Return the configuration of a mapping of sections, such as a checkpoint holds.

    Raises:
        ConfigError: a key or a value is unknown or impossible.
    """
    return _build(whole, _flatten(whole, sections, ""), {})


def sections_of(whole: type) -> Mapping[str, type]:
    """Return the class of each section of a configuration."""
    return get_type_hints(whole)


def keys_of(whole: type) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield each setting as ("section.field", its field)."""
    for section, owner in sections_of(whole).items():
        for field in dataclasses.fields(owner):
            yield f"{section}.{field.name}", field


def long_names(whole: type) -> Mapping[str, str]:
    """Return the flag of each setting, without dashes in front: "training.learning_rate" -> "learning-rate".

    It is the field's own name, unless the setting names another; where two sections have it, the section
    comes in front.
    """
    counts = Counter(field.name for _key, field in keys_of(whole))
    return {key: spec(field).flag or _long_name(key, counts) for key, field in keys_of(whole)}


def _long_name(key: str, counts: Counter[str]) -> str:
    name = key.split(".")[1]
    return (name if counts[name] == 1 else key).replace(".", "-").replace("_", "-")


def _from_flags(whole: type, flags: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    by_flag: dict[str, list[str]] = {}
    for key, flag in long_names(whole).items():
        by_flag.setdefault(flag, []).append(key)
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if flag not in by_flag:
            raise ConfigError(f"--{flag} is unknown{did_you_mean(flag, tuple(by_flag))}")
        if value is not None:
            yield from _one_flag(flag, by_flag[flag], value)


def _one_flag(flag: str, keys: list[str], value: object) -> Iterator[tuple[str, object]]:
    parts = [value] if len(keys) == 1 else str(value).split(":")
    if len(parts) != len(keys):
        expected = ":".join(key.split(".")[1].upper() for key in keys)
        raise ConfigError(f"--{flag}: {value!r} is not {expected}")
    yield from zip(keys, parts, strict=True)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which alone would keep the last of two equal keys and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping whose keys are all different."""
        seen = set()
        for key in (key for key, _value in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                twice = f"{_plain(key.value)} is there twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        # The loader is a SafeLoader: it makes nothing but plain values.
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as failure:
        raise ConfigError(f"{path}: cannot be read: {failure.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text, so no YAML file") from None
    except (yaml.YAMLError, RecursionError, ValueError) as failure:
        raise ConfigError(f"{path}: is not YAML{_where(failure)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold sections such as training:, not {shown(values)}")
    return values


def _where(failure: Exception) -> str:
    if not isinstance(failure, yaml.MarkedYAMLError) or failure.problem_mark is None:
        return f": {' '.join(str(failure).split())}"
    return f" in line {failure.problem_mark.line + 1}: {failure.problem}"


def _plain(name: object) -> str:
    """Return a key of a file as it is, unless it would break the line."""
    return str(name) if str(name).isprintable() and len(str(name)) <= LONGEST else shown(name)


def _flatten(whole: type, sections: Mapping[str, Any], where: str) -> Values:
    """Return "section.field" -> value of nested sections; `where` goes in front of each error."""
    values: Values = {}
    for section, fields in sections.items():
        if section not in sections_of(whole):
            raise ConfigError(f"{where}{_unknown_section(whole, section)}")
        if not isinstance(fields, Mapping | None):
            raise ConfigError(f"{where}{section}: is a section with keys of its own, not {shown(fields)}")
        for name, value in (fields or {}).items():
            key = f"{section}.{name}"
            if key not in dict(keys_of(whole)):
                raise ConfigError(f"{where}{_unknown_key(whole, section, name)}")
            values[key] = value
    return values


def _unknown_section(whole: type, section: object) -> str:
    homes = [key for key, field in keys_of(whole) if field.name == section]
    names = tuple(sections_of(whole))
    if homes:
        return f"{_plain(section)} is no section; did you mean {' or '.join(homes)}?"
    return f"{_plain(section)} is no section{did_you_mean(section, names)}; allowed: {', '.join(names)}"


def _unknown_key(whole: type, section: str, name: object) -> str:
    elsewhere = [key for key, field in keys_of(whole) if field.name == name]
    if elsewhere:
        return f"{section}.{_plain(name)} is unknown; did you mean {' or '.join(elsewhere)}?"
    here = tuple(field.name for field in dataclasses.fields(sections_of(whole)[section]))
    return f"{section}.{_plain(name)} is unknown{did_you_mean(name, here)}; allowed: {', '.join(here)}"


def _build(whole: type[Whole], values: Values, sources: Mapping[str, str]) -> Whole:
    owners = sections_of(whole)
    sections: dict[str, Values] = {section: {} for section in owners}
    for key, value in values.items():
        section, name = key.split(".")
        sections[section][name] = read(owners[section], name, value)
    try:
        return whole(**{section: owners[section](**fields) for section, fields in sections.items()})
    except FieldError as failure:
        raise failure.named(sources) from None
