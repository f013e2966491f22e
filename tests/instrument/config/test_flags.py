from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from instrument.config.flags import ConfigParser
from instrument.config.loading import alias_flags, flag_names, iter_settings, load
from instrument.config.schema import Capture, Checkpoint, Config, Data, Distributed, Model, Monitor, Training, to_dict
from instrument.errors import ConfigError


def parser() -> ConfigParser:
    made = ConfigParser("train", "Train.")
    made.add_argument("--extra", default="none", help="Something of the command's own.")
    return made


def run(*arguments: str) -> Config:
    return parser().parsed(arguments)[0]


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as refused:
        run(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def help_text() -> str:
    return parser().format_help()


def test_no_flags_give_the_defaults() -> None:
    assert run() == Config()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--strategy serial --sync every --steps 5", Config(training=Training("serial", "every", 5))),
        ("--batch 8 --data x.npy", Config(data=Data(Path("x.npy"), 8))),
        ("--learning-rate 1e-3 --clip none", Config(training=Training(learning_rate=1e-3, clip=None))),
        ("--jsonl a.jsonl --no-progress", Config(monitor=Monitor(jsonl=Path("a.jsonl"), progress=False))),
        ("--checkpoint-folder k --resume", Config(checkpoint=Checkpoint(Path("k"), resume="latest"))),
        ("--checkpoint-folder k --resume best", Config(checkpoint=Checkpoint(Path("k"), resume="best"))),
        (
            "--checkpoint-folder k --resume --steps 7",
            Config(Training(steps=7), checkpoint=Checkpoint(Path("k"), resume="latest")),
        ),
        ("--resume k/0007-step-300.pt", Config(checkpoint=Checkpoint(resume="k/0007-step-300.pt"))),
        ("--capture 5:9", Config(capture=Capture(5, 9))),
        ("--lr 1e-3 --max-grad-norm 2", Config(training=Training(learning_rate=1e-3, clip=2.0))),
        ("--batch-size 8 --num-workers 2", Config(data=Data(batch=8, workers=2))),
        ("--gradient-checkpointing", Config(model=Model(checkpointing=True))),
        ("--compile --torch-compile none", Config()),
        ("--compile --compile-mode max-autotune", Config(model=Model(compile=True, compile_mode="max-autotune"))),
        (
            "--shard --no-reshard-after-forward",
            Config(distributed=Distributed(shard=True, reshard_after_forward=False)),
        ),
        (
            "--monitor-every 3 --checkpoint-folder k --checkpoint-every 4",
            Config(monitor=Monitor(3), checkpoint=Checkpoint(Path("k"), 4)),
        ),
    ],
)
def test_flags_set_the_configuration(arguments: str, expected: Config) -> None:
    assert run(*arguments.split()) == expected


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("training: {steps: 7, seed: 3}\nmonitor: {progress: false}\n")
    assert run("--config", str(file), "--seed", "4") == Config(
        Training(steps=7, seed=4), monitor=Monitor(progress=False)
    )
    assert run("--config", str(file), "--progress").monitor.progress


def test_help_shows_both_defaults() -> None:
    assert "[1024; without a GPU 256]" in " ".join(help_text().split())


def test_other_options_of_a_command_are_parsed() -> None:
    config, given = parser().parsed(["--extra", "some"])
    assert (config, given.extra) == (Config(), "some")


def test_invalid_value_is_one_line() -> None:
    assert refusal("--strategy", "fast").startswith("--strategy: invalid value 'fast'; allowed: serial, pinned, prefet")
    assert refusal("--strategy", "graph", "--compile").startswith("--strategy and --compile: graph with full: ")
    assert refusal("--config", "none.yaml") == "none.yaml: file not found"


@pytest.mark.parametrize("arguments", [["--stesp", "5"], ["--steps"], ["5"], ["--shard=yes"], ["--every", "5"]])
def test_usage_error_is_one_line(arguments: list[str]) -> None:
    assert refusal(*arguments).endswith("(--help lists the flags)")
    assert arguments[0].split("=")[0] in refusal(*arguments)


def test_every_setting_has_one_flag() -> None:
    names = flag_names()
    assert set(names) == {f"{section}.{field}" for section, fields in to_dict(Config()).items() for field in fields}
    shared = sorted(key for key, name in names.items() if list(names.values()).count(name) > 1)
    assert shared == ["capture.start", "capture.stop"]
    load(None, dict.fromkeys(name.replace("-", "_") for name in names.values()))


def test_help_lists_every_setting() -> None:
    text = help_text()
    places = [text.index(f"\n{section}:\n") for section in ("options", *to_dict(Config()))]
    assert places == sorted(places)
    words = " ".join(text.split())
    for key, field in iter_settings():
        about: Any = field.metadata["setting"]
        flag = flag_names()[key]
        assert f"--{flag} " in words or f"--{flag}, --no-{flag} " in words
        assert all(f"--{alias}" in "".join(words.split()) for alias in alias_flags(key))
        assert key == "capture.stop" or about.help in words
    assert words.index("--strategy ") < words.index("--sync ") < words.index("--retries ")
    assert "[prefetch]" in words
    assert "Something of the command's own." in words


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, help_text().splitlines())) <= 80
