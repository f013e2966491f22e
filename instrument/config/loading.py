"""Build a configuration from defaults, a YAML file and flags. Errors name the source of each value."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from instrument.config.schema import Config
from instrument.config.settings import MAX_SHOWN_LENGTH, FieldError, did_you_mean, get_setting, parse_value, short_repr
from instrument.errors import ConfigError

Values = dict[str, Any]

# The names that PyTorch, Hugging Face, Lightning and nanoGPT have for settings. Each is a key and a flag too.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "training.steps": ("max_steps", "max_iters"),
    "training.epochs": ("num_train_epochs", "num_epochs", "max_epochs"),
    "training.accumulation": ("gradient_accumulation_steps", "accumulate_grad_batches"),
    "training.clip": ("max_grad_norm", "gradient_clip_val", "grad_clip"),
    "training.learning_rate": ("lr",),
    "training.schedule": ("lr_scheduler_type", "lr_scheduler"),
    "training.warmup": ("warmup_steps", "num_warmup_steps", "warmup_iters"),
    "model.layers": ("num_layers", "num_hidden_layers", "n_layer"),
    "model.width": ("hidden_size", "d_model", "n_embd"),
    "model.heads": ("num_heads", "num_attention_heads", "n_head"),
    "model.vocabulary": ("vocab_size",),
    "model.checkpointing": ("gradient_checkpointing", "activation_checkpointing"),
    "model.compile": ("torch_compile",),
    "data.batch": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "data.sequence": ("sequence_length", "max_seq_length", "block_size"),
    "data.workers": ("num_workers", "dataloader_num_workers"),
    "data.prefetch_factor": ("dataloader_prefetch_factor",),
    "data.persistent_workers": ("dataloader_persistent_workers",),
    "distributed.bucket_mb": ("bucket_cap_mb",),
    "checkpoint.folder": ("output_dir",),
    "checkpoint.every": ("save_steps",),
    "checkpoint.keep": ("save_total_limit",),
    "checkpoint.resume": ("resume_from_checkpoint",),
    "monitor.every": ("logging_steps", "log_interval", "log_every_n_steps"),
}
# Switches of other libraries, with the setting and the value that they stand for.
SWITCHES: Mapping[str, tuple[str, str]] = {
    "fp16": ("training.precision", "fp16"),
    "bf16": ("training.precision", "bf16"),
}


def load(path: Path | None, flags: Mapping[str, object]) -> Config:
    """Return the configuration of a YAML file and flags. Flags override the file, and the file overrides the defaults.

    A run without a GPU has smaller defaults (`Setting.cpu`), so that a step takes a fraction of a second.

    Args:
        path: the YAML file; None for none.
        flags: long name with underscores ("learning_rate", "monitor_every", "capture") -> value; None means not given.

    Raises:
        ConfigError: one line with the file or flag, the value, and what is allowed.
    """
    file_values = {} if path is None else _flatten(_read_yaml(path), f"{path}: ")
    flag_values = dict(_values_of_flags(flags))
    sources = {key: f"{path}: {key}" for key in file_values}
    sources |= {key: f"--{flag_names()[key]}" for key in flag_values}
    values = file_values | flag_values
    device = str(values.get("training.device", "auto"))
    defaults = {key: get_setting(field).default_for(device) for key, field in iter_settings()}
    return _build(defaults | values, sources)


@cache
def section_types() -> Mapping[str, type]:
    """Return the class of each section of a configuration."""
    return get_type_hints(Config)


def iter_settings() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield each setting as ("section.field", its field)."""
    for section, section_type in section_types().items():
        for field in dataclasses.fields(section_type):
            yield f"{section}.{field.name}", field


@cache
def flag_names() -> Mapping[str, str]:
    """Return the flag of each setting without leading dashes: "training.learning_rate" -> "learning-rate".

    A flag is named by its setting's `flag`, else by its field. If two sections have the field, the section comes first.
    """
    counts = Counter(field.name for _key, field in iter_settings())
    return {key: get_setting(field).flag or _flag_name(key, counts) for key, field in iter_settings()}


def settings_by_alias(section: str) -> dict[str, str]:
    """Return the field that each alias in a section stands for: {"lr": "learning_rate"} of "training"."""
    own = {key.split(".")[1]: names for key, names in ALIASES.items() if key.startswith(f"{section}.")}
    return {alias: field for field, aliases in own.items() for alias in aliases}


def alias_flags(key: str) -> tuple[str, ...]:
    """Return the flags, without dashes in front, of a setting's aliases: ("lr",) of "training.learning_rate"."""
    return tuple(alias.replace("_", "-") for alias in ALIASES.get(key, ()))


def _flag_name(key: str, counts: Counter[str]) -> str:
    name = key.split(".")[1]
    return (name if counts[name] == 1 else key).replace(".", "-").replace("_", "-")


def _values_of_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    keys_by_flag: dict[str, list[str]] = {}
    for key, flag in flag_names().items():
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


def _flatten(sections: Mapping[str, Any], prefix: str) -> Values:
    """Return "section.field" -> value of nested sections. `prefix` starts each error message."""
    values: Values = {}
    for section, fields in sections.items():
        if section not in section_types():
            names = tuple(section_types())
            raise ConfigError(_unknown(f"{prefix}{_key_text(section)} is not a section", section, names, names))
        if not isinstance(fields, Mapping | None):
            raise ConfigError(f"{prefix}{section}: must be a section with keys, not {short_repr(fields)}")
        for name, value in (fields or {}).items():
            key = f"{section}.{settings_by_alias(section).get(name, name)}"
            if name in SWITCHES and SWITCHES[name][0].startswith(f"{section}."):
                if value is False:
                    continue
                key, value = SWITCHES[name] if value is True else (key, value)
            if key not in flag_names():
                names = tuple(field.name for field in dataclasses.fields(section_types()[section]))
                known = (*names, *settings_by_alias(section))
                raise ConfigError(_unknown(f"{prefix}{section}.{_key_text(name)} is unknown", name, known, names))
            if key in values:
                raise ConfigError(f"{prefix}{section}.{name}: {key} is given twice, under two names")
            values[key] = value
    return values


def _settings_named(name: object) -> list[str]:
    """Return the settings with this name or alias, as "section.field"."""
    return [key for key, field in iter_settings() if name == field.name or name in ALIASES.get(key, ())]


def _unknown(what: str, name: object, known: tuple[str, ...], allowed: tuple[str, ...]) -> str:
    """Return that a name is unknown, with the settings or the known name that may be meant."""
    elsewhere = _settings_named(name)
    meant = f" (did you mean {' or '.join(elsewhere)}?)" if elsewhere else did_you_mean(name, known)
    return f"{what}{meant}; allowed: {', '.join(allowed)}"


def _build(values: Values, sources: Mapping[str, str]) -> Config:
    types = section_types()
    sections: dict[str, Values] = {section: {} for section in types}
    for key, value in values.items():
        section, name = key.split(".")
        sections[section][name] = parse_value(types[section], name, value)
    try:
        return Config(**{section: types[section](**fields) for section, fields in sections.items()})
    except FieldError as failure:
        raise failure.with_sources(sources) from None
