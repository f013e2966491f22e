"""The diagnosis, run on the CPU with a tiny model; what it prints and what it writes."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from instrument.config.schema import Config, Data, Model, Training
from instrument.diagnosis import command as command_module
from instrument.diagnosis import measure as measure_module
from instrument.diagnosis import output
from instrument.diagnosis.command import command, main
from instrument.diagnosis.costs import Diagnosis, Remedy, StageResult
from instrument.diagnosis.measure import (
    FIGURES,
    ROUNDS,
    Plan,
    measure,
)
from instrument.diagnosis.output import WIDTH, diagnosis_table
from instrument.diagnosis.own import report_stages
from instrument.diagnosis.stages import (
    STAGES,
    Stage,
    StageContext,
    select_stages,
)
from instrument.diagnosis.verdict import build_diagnosis
from instrument.errors import ConfigError, InstrumentError
from tests.instrument.config.sections import from_sections

TINY = (
    "--device cpu --precision fp32 --layers 1 --width 16 --heads 2 --features 8 --vocabulary 16 --sequence 4 --batch 2"
)
QUICK = [*TINY.split(), "--iterations", "2", "--warm-up", "1"]
NAMES = [stage.name for stage in STAGES]


def tiny(**training: Any) -> Config:
    return Config(
        Training(**({"device": "cpu", "precision": "fp32"} | training)),
        Model(layers=1, width=16, heads=2, features=8, vocabulary=16),
        Data(batch=2, sequence=4, samples=16),
    )


def setting(**training: Any) -> StageContext:
    return StageContext.from_config(tiny(**training))


def run(*arguments: str) -> None:
    command.main([*QUICK, *arguments], standalone_mode=False)


def refusal(*arguments: str) -> str:
    with pytest.raises(InstrumentError) as refused:
        run(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_all_stages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run("--precision", "bf16", "--json", str(tmp_path / "found.json"))
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(STAGES)]] == NAMES
    assert all(len(line) <= WIDTH for line in lines)
    assert any(line.startswith(("Time is lost in", "No time is lost", "unknown: too noisy")) for line in lines)
    assert printed.err.splitlines() == [
        f"instrument: round {number} of {ROUNDS}: {', '.join(NAMES)}" for number in range(1, ROUNDS + 1)
    ]
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["stage"] for row in found["stages"]] == NAMES
    for row in found["stages"]:
        if row["stage"] == "plain":
            assert row["not_measured"]["ms"] == "without a GPU nothing is copied, so it equals the pipeline"
            continue
        assert len(row["rounds_ms"]) == ROUNDS
        assert min(row["rounds_ms"]) <= row["ms"] <= max(row["rounds_ms"])
        assert row["samples_per_s"] == pytest.approx(2000 / row["ms"])
        assert row["not_measured"]["gpu_ms"]
    assert found["verdict"]["capture"][0].startswith("nsys profile -t nvtx ")
    verdict = found["verdict"]
    if verdict["bound"] == "unknown":
        assert verdict["because"].startswith("too noisy: ") and "unknown: too noisy: " in printed.out
    else:
        assert 0 <= verdict["lost_ms"] <= verdict["total_ms"]
        assert 0 <= verdict["lost_percent"] <= 100


def test_run_without_flags_fits_the_time_of_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--layers", "1", "--width", "64", "--heads", "2", "--features", "8", "--vocabulary", "64"]
    began = time.process_time()
    command.main(["--device", "cpu", *sizes, "--sequence", "16", "--batch", "2"], standalone_mode=False)
    assert time.process_time() - began < 60
    printed = " ".join(capsys.readouterr().out.split())
    assert "A CPU shows loading, the loop and the precision of the compute." in printed
    assert "--capture" not in printed and "--strategy" not in printed and "for the GPU (stage" not in printed


def test_slow_iterations_end_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "CPU_SECONDS", 0.0)
    done: list[str] = []
    plan = Plan.of_device(torch.device("cpu"), None, None)
    measure_one(stage(lambda _setting: Counted(done)), plan)
    assert done == ["iterate", "begin", "iterate", "close"] * ROUNDS
    assert Plan.of_device(torch.device("cuda"), None, None) == Plan(10, 5)
    assert Plan.of_device(torch.device("cpu"), 3, 0) == Plan(3, 0)


def test_json_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--stages", "loader", "--json", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    keys = str(inspect.getdoc(output)).split("The JSON document:\n\n")[1].splitlines()
    documented = {name.strip() for line in keys for name in line[:15].split(",") if name.strip()}
    assert set(found) == documented
    assert set(found["stages"][0]) == {field.name for field in fields(StageResult)}
    assert set(found["verdict"]) == {field.name for field in fields(Diagnosis)}
    assert set(found["verdict"]["remedy"]) == {field.name for field in fields(Remedy)}
    assert from_sections(found["config"]).data.batch == 2
    assert (found["program"], found["format"], found["device"], found["gpu"]) == ("instrument.diagnose", 1, "cpu", None)
    assert (found["iterations"], found["warm_up"], found["rounds"]) == (2, 1, ROUNDS)
    assert "unknown: stage training: not selected by --stages" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("strategy", "sync"),
    [
        ("serial", "every"),
        ("pinned", "2"),
        ("prefetch", "every"),
        ("prefetch", "2"),
        ("prefetch", "event"),
        ("staged", "event"),
        ("graph", "2"),
    ],
)
def test_pipeline_runs_each_strategy_under_each_policy(strategy: str, sync: str) -> None:
    report = report_stages(
        setting(strategy=strategy, sync=sync), select_stages("pipeline"), Plan(3, 1), lambda _text: None
    )
    (row,) = report.stages
    assert row.ms is not None
    assert row.title == f"{strategy}, sync {1 if sync == 'every' else sync}"
    assert row.data_load_ms is not None
    assert row.data_load_ms < row.ms


def test_workers_and_accumulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    run("--workers", "1", "--accumulation", "2", "--stages", "pipeline,training,loader", "--json", str(path))
    found = json.loads(path.read_text())
    assert [row["stage"] for row in found["stages"]] == ["training", "loader", "pipeline"]
    assert found["stages"][0]["samples_per_s"] == pytest.approx(4000 / found["stages"][0]["ms"])
    assert found["verdict"]["bound"] != "unknown" or "too noisy" in found["verdict"]["because"]
    assert capsys.readouterr().out


def measure_one(opened: Stage, plan: Plan) -> StageResult:
    (row,) = measure([opened], setting(), plan, lambda _text: None)
    return row


def test_stages_run_the_planned_steps_and_synchronize_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(measure_module, "synchronize", lambda _device: done.append("wait"))
    row = measure_one(stage(lambda _setting: Counted(done)), Plan(iterations=4, warm_up=3))
    assert done == (["iterate"] * 3 + ["begin", "wait"] + ["iterate"] * 4 + ["wait", "close"]) * ROUNDS
    assert len(row.rounds_ms) == ROUNDS
    assert row.data_load_ms == 1.5


def test_preloaded_batches_are_not_timed() -> None:
    done: list[str] = []
    config = tiny()
    loading = replace(setting(), config=replace(config, data=replace(config.data, workers=3, distinct_batches=0)))
    measure([stage(lambda _setting: Counted(done))], loading, Plan(1, 1), lambda _text: None)
    assert done[:8] == ["iterate"] * 7 + ["begin"]


class Timed:
    """Hand-made: a stage whose iteration takes `ms` on a fake clock, times how slow the machine is at that moment."""

    launches_only = False

    def __init__(self, clock: Clock, name: str, ms: float) -> None:
        self.clock, self.name, self.ms = clock, name, ms

    def begin(self) -> None:
        self.clock.turns.append(self.name)

    def iterate(self) -> None:
        self.clock.now += self.ms / 1000 * self.clock.slowness(self.clock.now)

    def figures(self) -> Mapping[str, float | None]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


class Clock:
    """Hand-made: a clock that stages move on, of a machine that slows down as `slowness` of its seconds says."""

    def __init__(self, slowness: Any) -> None:
        self.now, self.slowness, self.turns = 0.0, slowness, list[str]()

    def rows(self, monkeypatch: pytest.MonkeyPatch, **ms: float) -> list[StageResult]:
        monkeypatch.setattr(measure_module.time, "perf_counter", lambda: self.now)
        stages = [
            Stage(name, lambda _config: "hand-made", lambda _setting, name=name: Timed(self, name, ms[name]))
            for name in ms
        ]
        return measure(stages, setting(), Plan(iterations=10, warm_up=0), lambda _text: None)


def test_stages_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(lambda _now: 1.0)
    rows = clock.rows(monkeypatch, training=10.0, loader=1.0, pipeline=12.0)
    assert clock.turns == ["training", "loader", "pipeline"] * ROUNDS
    assert [row.ms for row in rows] == [pytest.approx(10.0), pytest.approx(1.0), pytest.approx(12.0)]


def test_slowing_machine_keeps_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends 1.5 times slower: measured one after the other, the last stage would seem slower than it is."""
    config = tiny(sync="every", device="cuda")
    steady = Clock(lambda _now: 1.0).rows(monkeypatch, training=10.0, loader=0.01, pipeline=14.0)
    slower = Clock(lambda now: 1.0 + now / 3).rows(monkeypatch, training=10.0, loader=0.01, pipeline=14.0)
    expected, found = build_diagnosis(steady, config), build_diagnosis(slower, config)
    assert (found.bound, expected.bound) == ("synchronisation", "synchronisation")
    assert found.lost_percent == pytest.approx(expected.lost_percent, abs=6)


def test_busy_machine_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Clock(lambda now: 4.0 if int(now * 10) % 3 == 0 else 1.0).rows(monkeypatch, training=10.0, pipeline=11.0)
    assert build_diagnosis(rows, tiny()).because.startswith("too noisy: ")


class Counted:
    """A stage that records its calls."""

    launches_only = False

    def __init__(self, done: list[str], failure: Exception | None = None) -> None:
        self.done, self.failure = done, failure

    def iterate(self) -> None:
        self.done.append("iterate")
        if self.failure is not None:
            raise self.failure

    def begin(self) -> None:
        self.done.append("begin")

    def figures(self) -> Mapping[str, float | None]:
        return {"data_load_ms": 1.5}

    def close(self) -> None:
        self.done.append("close")


def stage(opened: Any) -> Stage:
    return Stage("mine", lambda _config: "my own", opened)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "out of memory; use a smaller --batch"),
        (InstrumentError("pinned memory: too little"), "pinned memory: too little"),
        (RuntimeError("this loss is unsafe to autocast"), "RuntimeError: this loss is unsafe to autocast"),
    ],
)
def test_failed_stage_has_a_reason_and_is_closed(failure: Exception, reason: str) -> None:
    done: list[str] = []
    row = measure_one(stage(lambda _setting: Counted(done, failure)), Plan(2, 1))
    assert done == ["iterate", "close"]
    assert row.title == "my own"
    assert all(getattr(row, name) is None for name in FIGURES)
    assert all(reason in row.not_measured[name] for name in FIGURES)


def test_unexpected_error_closes_the_stage() -> None:
    done: list[str] = []
    with pytest.raises(LookupError, match="shapes"):
        measure_one(stage(lambda _setting: Counted(done, LookupError("shapes"))), Plan(2, 1))
    assert done == ["iterate", "close"]


def test_fp32_has_no_mixed_precision_stage(capsys: pytest.CaptureFixture[str]) -> None:
    run("--stages", "mixed,training")
    assert "the run uses fp32" in capsys.readouterr().out


def test_stages_keep_their_order() -> None:
    assert [one.name for one in select_stages("pipeline, training")] == ["training", "pipeline"]
    assert select_stages(None) == STAGES


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "loadr"], ["--stages", "'loadr'", "did you mean loader", "pipeline"]),
        (["--stages", ""], ["--stages", "''"]),
        (["--iterations", "0"], ["--iterations"]),
        (["--warm-up", "-1"], ["--warm-up"]),
        (["--json", "/nowhere/found.json"], ["--json", "/nowhere"]),
        (["--json", "/"], ["--json", "folder"]),
        (["--data", "/nowhere/x.npy"], ["/nowhere/x.npy"]),
        (["--precision", "fp16"], ["fp16", "GPU"]),
        (["--batch", "17", "--samples", "16"], ["16"]),
        (["--width", "15"], ["width"]),
    ],
)
def test_invalid_options_are_one_line(arguments: list[str], words: list[str]) -> None:
    line = refusal(*arguments)
    assert all(word in line for word in words), line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_missing_gpu_is_one_line() -> None:
    assert "torch finds no GPU" in refusal("--device", "cuda")


def test_old_file_stays_until_new_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.json"
    path.write_text("old")

    def fail(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InstrumentError, match="No space left"):
        output.write_json(path, {"new": 1})
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["found.json"]


def test_non_finite_figures_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        output.write_json(tmp_path / "found.json", {"ms": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "instrument.diagnose", *QUICK, "--stages", "loader,bad"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("instrument: error: --stages: unknown stage 'bad'")
    assert done.stderr.count("\n") == 1


def test_processes_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert refusal().startswith("a diagnosis measures one process: run it without torchrun")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert setting().device == torch.device("cpu")


@pytest.mark.parametrize(
    ("raised", "code"), [(ConfigError("x"), 2), (click.exceptions.Exit(0), 0), (click.Abort(), 130)]
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, raised: Exception, code: int) -> None:
    def fail(**_given: object) -> None:
        raise raised

    monkeypatch.setattr(command_module, "command", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code


@pytest.fixture
def long_verdict() -> Iterator[Diagnosis]:
    command_line = "nsys profile " + " ".join(f"--option-{number} value" for number in range(12))
    yield Diagnosis(
        "loader", "loader", 1234.5, 617.25, 50.0, "because " * 30, Remedy("--workers 4", "why " * 40),
        ("note " * 30,), (command_line, "traceview analyze 'a b.sqlite'"),
    )  # fmt: skip


def test_table_fits_a_terminal(long_verdict: Diagnosis) -> None:
    long = [
        StageResult(one.name, "a title that is much longer than any", 123456.789, (1.0,), 1234567.8, 1234.5)
        for one in STAGES
    ]
    missing = [*long, StageResult("late", "what", not_measured={"ms": "a reason " * 30})]
    text = diagnosis_table(missing, long_verdict)
    assert text.endswith("\n")
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "617.25 of 1234.50 ms per iteration (50%)" in text


def test_command_can_be_copied(long_verdict: Diagnosis) -> None:
    text = diagnosis_table([], long_verdict)
    copied = text[text.index("nsys profile") : text.index("  next     traceview")].replace("\\\n", " ")
    assert copied.split() == long_verdict.capture[0].split()
    assert "traceview analyze 'a b.sqlite'" in text


def test_reasons_are_printed_once() -> None:
    rows = [StageResult(name, not_measured={"ms": "too big", "gpu_ms": "not shown"}) for name in ("a", "b")]
    text = diagnosis_table(rows, Diagnosis("unknown", None, None, None, None, "because", Remedy("", "why")))
    assert text.count("not measured: a, b: too big\n") == 1
    assert "not shown" not in text


@pytest.mark.gpu
def test_real_gpu_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--device", "cuda", "--precision", "bf16", "--json", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    by_name = {row["stage"]: row for row in found["stages"]}
    assert all(row["ms"] is not None for row in by_name.values())
    for name in ("training", "mixed"):
        assert by_name[name]["gpu_ms"] > 0
    for name in ("plain", "pipeline"):
        assert by_name[name]["copy_ms"] > 0
    assert found["gpu"] == torch.cuda.get_device_name()
    assert "-c cudaProfilerApi" in found["verdict"]["capture"][0]
    assert capsys.readouterr().out


@pytest.mark.gpu
def test_work_launched_ahead_has_no_gaps() -> None:
    """Many kernels of a few elements: launched one by one the GPU waits between them."""
    from instrument.diagnosis.measure import launched_ahead_ms

    small, device = torch.zeros(8, device="cuda"), torch.device("cuda", 0)

    def iterate() -> None:
        for _ in range(200):
            small.add_(1)
            sum(range(2000))  # a host that is slow to launch

    begun = time.perf_counter()
    iterate()
    torch.cuda.synchronize()
    alone = (time.perf_counter() - begun) * 1000
    assert 0 < launched_ahead_ms(iterate, device) < alone / 2
