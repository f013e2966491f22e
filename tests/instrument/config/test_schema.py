from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrument.config import settings
from instrument.config.loading import load
from instrument.config.schema import Capture, Checkpoint, Config, Data, Distributed, Model, Monitor, Training, to_dict
from instrument.errors import ConfigError
from tests.instrument.config.sections import from_sections


def test_cpu_defaults_are_smaller() -> None:
    small = load(None, {"device": "cpu", "width": "512"})
    assert small.model == Model(layers=2, width=512, vocabulary=1024, features=512)
    assert small.data == Data(batch=4, sequence=64)
    assert load(None, {"device": "cuda:1", "width": "512"}).data == Data(batch=128, sequence=256)


@pytest.mark.parametrize(("on_cpu", "width", "precision"), [(True, 256, "fp32"), (False, 1024, "bf16")])
def test_configuration_has_the_defaults_of_the_machine(
    on_cpu: bool, width: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "is_cpu", lambda device: device == "cpu" or (device == "auto" and on_cpu))
    assert Config() == load(None, {})
    assert (Config().model.width, Training().precision) == (width, precision)


def written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def refusal(path: Path | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as refused:
        load(path, flags)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_flags_over_file_over_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, "training: {steps: 7, seed: 1}\nmonitor:\n  jsonl: out/run.jsonl\ndata:\n")
    config = load(path, {"steps": "9", "batch": 4, "seed": None})
    assert config.training == Training(steps=9, seed=1)
    assert config.monitor == Monitor(jsonl=Path("out/run.jsonl"))
    assert config.data == Data(batch=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# all default\n", Training()),
        ("training: {learning_rate: 3e-4}", Training(learning_rate=3e-4)),  # text, to YAML
        ("training: {learning_rate: 1}", Training(learning_rate=1)),
        ("training: {sync: 25}", Training(sync="25")),
        ("training: {sync: every}", Training(sync="every")),
        ("training: {clip: null}", Training(clip=None)),
        ("training: {clip: none}", Training(clip=None)),
        ("training: {device: 'cuda:3'}", Training(device="cuda:3", precision="bf16")),
        ("training: {lr: 1e-4, gradient_accumulation_steps: 2}", Training(learning_rate=1e-4, accumulation=2)),
    ],
)
def test_yaml_values_are_parsed(tmp_path: Path, text: str, expected: Training) -> None:
    assert load(written(tmp_path, text), {}).training == expected


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(written(tmp_path, "data: {path: ~/corpus.npy}"), {}).data.path == tmp_path / "corpus.npy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainig: {steps: 1}", "trainig is not a section (did you mean training?); allowed: training, model, data, "),
        ("steps: 1", "steps is not a section (did you mean training.steps?)"),
        ("every: 1", "every is not a section (did you mean checkpoint.every or monitor.every?)"),
        ("training: {stesp: 1}", "training.stesp is unknown (did you mean steps?); allowed: strategy, sync, steps, "),
        ("training: {batch: 1}", "training.batch is unknown (did you mean data.batch?)"),
        (
            "training: {lr: 1, learning_rate: 2}",
            "training.learning_rate: training.learning_rate is given twice, under two",
        ),
        ("training: {max_step: 1}", "training.max_step is unknown (did you mean max_steps?)"),
        ("lr: 1", "lr is not a section (did you mean training.learning_rate?)"),
        ("training: {batch_size: 1}", "training.batch_size is unknown (did you mean data.batch?)"),
        ("training: {1: 1}", "training.1 is unknown; allowed: "),
        ("training: 5", "training: must be a section with keys, not 5"),
        ("- training", "must contain sections such as training:, not ['training']"),
        ("training: {steps: [1]}", "training.steps: invalid value [1]; expected a whole number of at least 0"),
        ("training: {steps: 1.5}", "training.steps: invalid value 1.5; expected a whole number of at least 0"),
        ("training: {steps: yes}", "training.steps: invalid value True; expected a whole number of at least 0"),
        ("training: {steps: -1}", "training.steps: invalid value -1; expected a whole number of at least 0"),
        ("training: {steps: null}", "training.steps: invalid value None; expected a whole number of at least 0"),
        ("training: {clip: .nan}", "training.clip: invalid value nan; expected a number above 0, or none"),
        ("training: {learning_rate: .inf}", "training.learning_rate: invalid value inf; expected a number above 0"),
        ("model: {compile: maybe}", "model.compile: invalid value 'maybe'; allowed: full, blocks"),
        ("model: {compile: 1}", "model.compile: invalid value '1'; allowed: full, blocks"),
        ("training: {schedule: no}", "training.schedule: invalid value False; allowed: constant, linear"),
        ("monitor: {jsonl: 5}", "monitor.jsonl: invalid value 5; expected a path, or none"),
        ("monitor: {wandb: {}}", "monitor.wandb: invalid value {}; expected text, or none"),
        ("training: {steps: 1\n", "invalid YAML in line 2: "),
        ("training: {steps: 1, steps: 2}", "invalid YAML in line 1: duplicate key steps"),
        ("a: !!python/name:os.system", "invalid YAML in line 1: could not determine a constructor"),
        ("? {a: 1}\n: 2", "invalid YAML in line 1: found unhashable key"),
        ("training: {<<: 3}", "invalid YAML in line 1: expected a mapping"),
        ('training: {"a\\nb": 1}', "training.'a\\nb' is unknown; allowed: "),
        ('{"a\\nb": 1, "a\\nb": 2}', "invalid YAML in line 1: duplicate key 'a\\nb'"),
        (f"training: {{steps: [{'1, ' * 99}]}}", f"training.steps: invalid value [{'1, ' * 18}1,...; expected a"),
        ("training: {steps: 2024-99-99}", "invalid YAML: month must be in 1..12"),
    ],
)
def test_invalid_file_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    assert refusal(path).startswith(f"{path}: {message}")


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: file not found"
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    (tmp_path / "capture.yaml").write_bytes(b"\xff\xfe\x00")
    assert refusal(tmp_path / "capture.yaml").endswith("not a YAML file (not UTF-8 text)")


def test_yaml_anchors(tmp_path: Path) -> None:
    text = "training: &t {steps: 3}\nmodel: {<<: {layers: 2}, width: 64}\n"
    config = load(written(tmp_path, text), {})
    assert (config.training.steps, config.model.layers, config.model.width) == (3, 2, 64)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"strategy": "prefech"},
            "--strategy: invalid value 'prefech' (did you mean prefetch?); allowed: serial, pinned, ",
        ),
        ({"monitor_every": "0"}, "--monitor-every: invalid value 0; expected a whole number of at least 1"),
        ({"every": 5}, "--every is unknown"),
        ({"learning_rate": "fast"}, "--learning-rate: invalid value 'fast'; expected a number above 0"),
        ({"sync": "0"}, "--sync: invalid value '0'; expected auto, every, event or a number of steps (at least 1)"),
        ({"device": "gpu"}, "--device: invalid value 'gpu'; expected auto, cpu, cuda or cuda:N"),
        ({"jsonl": ""}, "--jsonl: invalid value ''; expected a path, or none"),
        ({"capture": "7"}, "--capture: invalid value '7'; expected START:STOP"),
        ({"capture": "1:2:3"}, "--capture: invalid value '1:2:3'; expected START:STOP"),
        ({"capture": "a:3"}, "--capture: invalid value 'a'; expected a whole number of at least 0, or none"),
        ({"capture": "none:3"}, "--capture: None with 3: give both capture.start and capture.stop, or neither"),
        ({"capture": "7:7"}, "--capture: 7 with 7: the capture is empty"),
    ],
)
def test_error_names_the_flag(flags: dict[str, object], message: str) -> None:
    assert refusal(**flags).startswith(message)


def test_conflict_names_the_source_of_both_settings(tmp_path: Path) -> None:
    path = written(tmp_path, "training: {strategy: graph}")
    assert refusal(path, accumulation=2).startswith(
        f"{path}: training.strategy and --accumulation: graph with 2: a CUDA graph holds one backward pass per step"
    )


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"training": {"strategy": "graph", "accumulation": 2}}, "training.strategy and training.accumulation"),
        ({"training": {"strategy": "graph"}, "model": {"compile": True}}, "training.strategy and model.compile"),
        ({"training": {"strategy": "graph", "precision": "fp16"}}, "training.strategy and training.precision"),
        ({"training": {"steps": 10, "warmup": 10}}, "training.warmup and training.steps"),
        ({"training": {"steps": 10}, "capture": {"start": 5, "stop": 11}}, "capture.stop and training.steps"),
        ({"capture": {"start": 5}}, "capture.start and capture.stop"),
        ({"model": {"width": 100, "heads": 16}}, "model.width and model.heads"),
        ({"data": {"workers": 0, "prefetch_factor": 2}}, "data.prefetch_factor and data.workers"),
        ({"data": {"workers": 0, "persistent_workers": True}}, "data.persistent_workers and data.workers"),
        ({"checkpoint": {"every": 5}}, "checkpoint.every"),
        ({"checkpoint": {"resume": "latest"}}, "checkpoint.resume"),
    ],
)
def test_conflicting_settings_are_refused(sections: dict[str, Any], keys: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(keys)}: ") as refused:
        from_sections(sections)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        Config(training=Training(strategy="staged", accumulation=4)),
        Config(training=Training(strategy="graph"), model=Model(checkpointing=True)),
        Config(training=Training(strategy="graph", sync="event", precision="fp32")),
        Config(training=Training(device="cpu", precision="fp32"), model=Model(checkpointing="selective")),
        Config(training=Training(steps=0)),
        Config(training=Training(epochs=1, steps=5, warmup=50), capture=Capture(100, 110)),
        Config(training=Training(steps=10), capture=Capture(5, 10)),
        Config(data=Data(workers=2, prefetch_factor=4, persistent_workers=True)),
        Config(checkpoint=Checkpoint(resume="elsewhere/last.pt")),
        Config(checkpoint=Checkpoint(folder=Path("kept"), every=5, resume="best")),
        Config(distributed=Distributed(shard=True)),
    ],
)
def test_valid_combinations_survive_json(config: Config) -> None:
    assert from_sections(json.loads(json.dumps(to_dict(config)))) == config


def test_sections_are_validated() -> None:
    with pytest.raises(ConfigError, match=r"^training\.strategy: invalid value 'fast'; allowed: "):
        Training(strategy="fast")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^data\.batch: invalid value '8'; expected a whole .* at least 1, or auto$"):
        Data(batch="8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^training\.retries: invalid value -1; "):
        dataclasses.replace(Training(), retries=-1)
    with pytest.raises(ConfigError, match=r"^data\.path: invalid value 'x\.npy'; expected a path, or none$"):
        Data(path="x.npy")  # type: ignore[arg-type]


def test_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().training.steps = 5  # type: ignore[misc]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(scalars, inner, max_size=2)
)


@given(section=st.sampled_from(sorted(to_dict(Config()))), data=st.data(), value=anything)
def test_any_value_is_accepted_or_a_config_error(section: str, data: st.DataObject, value: object) -> None:
    name = data.draw(st.sampled_from(sorted(to_dict(Config())[section])))
    try:
        config = from_sections({section: {name: value}})
    except ConfigError as refused:
        assert f"{section}.{name}" in str(refused)
        assert "\n" not in str(refused)
    else:
        assert from_sections(to_dict(config)) == config
