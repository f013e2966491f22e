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

import pytest
import torch

from instrument.config.schema import Config, Data, Model, Training
from instrument.diagnosis import command as command_module
from instrument.diagnosis import measure as measure_module
from instrument.diagnosis import output
from instrument.diagnosis.command import command, main
from instrument.diagnosis.costs import Diagnosis, Remedy, StageResult, StageTimes
from instrument.diagnosis.measure import ROUNDS, Plan, measure
from instrument.diagnosis.output import WIDTH, diagnosis_table
from instrument.diagnosis.own import report_stages
from instrument.diagnosis.stages import Stage, StageContext
from instrument.diagnosis.verdict import build_diagnosis
from instrument.errors import ConfigError, InstrumentError
from tests.instrument.config.sections import from_sections

TINY = (
    "--device cpu --precision fp32 --layers 1 --width 16 --heads 2 --features 8 --vocabulary 16 --sequence 4 --batch 2"
)
QUICK = [*TINY.split(), "--iterations", "2", "--warm-up", "1"]
NAMES = ["compute", "pipeline"]


def tiny(**training: Any) -> Config:
    return Config(
        Training(**({"device": "cpu", "precision": "fp32"} | training)),
        Model(layers=1, width=16, heads=2, features=8, vocabulary=16),
        Data(batch=2, sequence=4, samples=16),
    )


def setting(**training: Any) -> StageContext:
    return StageContext.from_config(tiny(**training))


def run(*arguments: str) -> None:
    command([*QUICK, *arguments])


def refusal(*arguments: str) -> str:
    with pytest.raises(InstrumentError) as refused:
        run(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_all_stages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run("--distinct-batches", "0", "--json", str(tmp_path / "found.json"))
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == NAMES
    assert all(len(line) <= WIDTH for line in lines)
    assert any(line.startswith(("Time is lost in", "No time is lost", "unknown: too noisy")) for line in lines)
    assert printed.err.splitlines() == [f"instrument: round {number} of {ROUNDS}" for number in range(1, ROUNDS + 1)]
    found = json.loads((tmp_path / "found.json").read_text())
    compute, pipeline = found["stages"]
    assert [compute["stage"], pipeline["stage"]] == NAMES
    for row in found["stages"]:
        assert len(row["rounds_ms"]) == ROUNDS
        assert min(row["rounds_ms"]) <= row["ms"] <= max(row["rounds_ms"])
        assert row["samples_per_s"] == pytest.approx(2000 / row["ms"])
        assert row["gpu_ms"] is None
    assert compute["loader_ms"] is compute["data_load_ms"] is None
    assert 0 < pipeline["loader_ms"] <= pipeline["data_load_ms"] < pipeline["ms"]
    verdict = found["verdict"]
    assert verdict["capture"][0].startswith("nsys profile -t nvtx ")
    if verdict["bound"] == "unknown":
        assert verdict["because"].startswith("too noisy: ") and "unknown: too noisy: " in printed.out
    else:
        assert 0 <= verdict["lost_ms"] <= verdict["total_ms"]
        assert 0 <= verdict["lost_percent"] <= 100


def test_run_without_flags_fits_the_time_of_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--layers", "1", "--width", "64", "--heads", "2", "--features", "8", "--vocabulary", "64"]
    began = time.process_time()
    command(["--device", "cpu", *sizes, "--sequence", "16", "--batch", "2"])
    assert time.process_time() - began < 60
    printed = " ".join(capsys.readouterr().out.split())
    assert "A CPU shows loading and the loop." in printed
    assert "--capture" not in printed and "--strategy" not in printed and "lost in waiting" not in printed


def test_slow_iterations_end_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "CPU_SECONDS", 0.0)
    done: list[str] = []
    plan = Plan.of_device(torch.device("cpu"), None, None)
    measure_one(counted(done), plan)
    assert done == ["iterate", "begin", "iterate", "close"] * ROUNDS
    assert Plan.of_device(torch.device("cuda"), None, None) == Plan(10, 5)
    assert Plan.of_device(torch.device("cpu"), 3, 0) == Plan(3, 0)


def test_json_has_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--json", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    keys = str(inspect.getdoc(output)).split("The JSON document:\n\n")[1].splitlines()
    documented = {name.strip() for line in keys for name in line[:15].split(",") if name.strip()}
    assert set(found) == documented
    assert set(found["stages"][0]) == {field.name for field in fields(StageResult)}
    assert set(found["verdict"]) == {field.name for field in fields(Diagnosis)}
    assert set(found["verdict"]["remedy"]) == {field.name for field in fields(Remedy)}
    assert from_sections(found["config"]).data.batch == 2
    assert (found["program"], found["format"], found["device"], found["gpu"]) == ("instrument.diagnose", 2, "cpu", None)
    assert (found["iterations"], found["warm_up"], found["rounds"]) == (2, 1, ROUNDS)
    assert capsys.readouterr().out


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
    _compute, row = report_stages(
        setting(strategy=strategy, sync=sync), Plan(3, 1), lambda _text: None, ["python"]
    ).stages
    assert row.title == f"{strategy}, sync {1 if sync == 'every' else sync}"
    assert row.data_load_ms is not None
    assert row.data_load_ms < row.ms


def test_workers_and_accumulation() -> None:
    config = tiny(accumulation=2)
    context = StageContext.from_config(replace(config, data=replace(config.data, workers=1, distinct_batches=0)))
    compute, pipeline = report_stages(context, Plan(4, 1), lambda _text: None, ["python"]).stages
    assert compute.samples_per_s == pytest.approx(4000 / compute.ms)
    assert pipeline.loader_ms is not None and pipeline.loader_ms > 0


def measure_one(made: type[Stage], plan: Plan) -> StageResult:
    (row,) = measure(setting(), plan, lambda _text: None, [made])
    return row


def test_stages_run_the_planned_steps_and_synchronize_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(measure_module, "synchronize", lambda _device: done.append("wait"))
    row = measure_one(counted(done), Plan(iterations=4, warm_up=3))
    assert done == (["iterate"] * 3 + ["begin", "wait"] + ["iterate"] * 4 + ["wait", "close"]) * ROUNDS
    assert len(row.rounds_ms) == ROUNDS
    assert row.data_load_ms == 1.5


def test_preloaded_batches_are_not_timed() -> None:
    done: list[str] = []
    config = tiny()
    loading = replace(setting(), config=replace(config, data=replace(config.data, workers=3, distinct_batches=0)))
    measure(loading, Plan(1, 1), lambda _text: None, [counted(done)])
    assert done[:8] == ["iterate"] * 7 + ["begin"]


class Clock:
    """Hand-made: a clock that stages move on, of a machine that slows down as `slowness` of its seconds says."""

    def __init__(self, slowness: Any) -> None:
        self.now, self.slowness, self.turns = 0.0, slowness, list[str]()

    def timed(self, stage: str, ms: float) -> type[Stage]:
        """Return a stage whose iteration takes `ms`, times how slow the machine is at that moment."""
        clock = self

        class Timed(Stage):
            name = stage

            def begin(self) -> None:
                clock.turns.append(stage)

            def iterate(self) -> None:
                clock.now += ms / 1000 * clock.slowness(clock.now)

        return Timed

    def times(self, monkeypatch: pytest.MonkeyPatch, config: Config, **ms: float) -> StageTimes:
        monkeypatch.setattr(measure_module.time, "perf_counter", lambda: self.now)
        stages = [self.timed(name, each) for name, each in ms.items()]
        plan = Plan(iterations=10, warm_up=0)
        return StageTimes(config, *measure(setting(), plan, lambda _text: None, stages))


def test_stages_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(lambda _now: 1.0)
    times = clock.times(monkeypatch, tiny(), compute=10.0, pipeline=12.0)
    assert clock.turns == ["compute", "pipeline"] * ROUNDS
    assert (times.compute.ms, times.pipeline.ms) == (pytest.approx(10.0), pytest.approx(12.0))


def test_slowing_machine_keeps_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends 1.5 times slower: measured one after the other, the last stage would seem slower than it is."""
    config = tiny(sync="every", device="cuda")
    steady = Clock(lambda _now: 1.0).times(monkeypatch, config, compute=10.0, pipeline=14.0)
    slower = Clock(lambda now: 1.0 + now / 3).times(monkeypatch, config, compute=10.0, pipeline=14.0)
    expected, found = build_diagnosis(steady, ["python"]), build_diagnosis(slower, ["python"])
    assert (found.bound, expected.bound) == ("synchronisation", "synchronisation")
    assert found.lost_percent == pytest.approx(expected.lost_percent, abs=6)


def test_busy_machine_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(lambda now: 4.0 if int(now * 10) % 3 == 0 else 1.0)
    times = clock.times(monkeypatch, tiny(device="cuda"), compute=10.0, pipeline=11.0)
    assert build_diagnosis(times, ["python"]).because.startswith("too noisy: ")


def counted(done: list[str], failure: Exception | None = None) -> type[Stage]:
    """Return a stage that records its calls."""

    class Counted(Stage):
        name = "mine"

        def iterate(self) -> None:
            done.append("iterate")
            if failure is not None:
                raise failure

        def begin(self) -> None:
            done.append("begin")

        def figures(self) -> Mapping[str, float | None]:
            return {"data_load_ms": 1.5}

        def close(self) -> None:
            done.append("close")

    return Counted


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "out of memory; use a smaller --batch"),
        (InstrumentError("pinned memory: too little"), "pinned memory: too little"),
        (RuntimeError("this loss is unsafe to autocast"), "RuntimeError: this loss is unsafe to autocast"),
    ],
)
def test_failed_stage_is_one_line_and_closed(failure: Exception, reason: str) -> None:
    done: list[str] = []
    with pytest.raises(InstrumentError, match=reason) as raised:
        measure_one(counted(done, failure), Plan(2, 1))
    assert "\n" not in str(raised.value)
    assert done == ["iterate", "close"]


def test_unexpected_error_closes_the_stage() -> None:
    done: list[str] = []
    with pytest.raises(LookupError, match="shapes"):
        measure_one(counted(done, LookupError("shapes")), Plan(2, 1))
    assert done == ["iterate", "close"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "loader"], ["--stages"]),
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


def test_next_command_has_the_flags_of_this_one() -> None:
    words = ["--batch", "4", "--json", "x", "--lr=1", "--warm_up=3", "--iterations", "5", "--shard"]
    assert list(command_module._train_flags(words)) == ["--batch", "4", "--lr=1", "--shard"]


def test_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "instrument.diagnose", *QUICK, "--strategy", "bad"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("instrument: error: --strategy: invalid value 'bad'")
    assert done.stderr.count("\n") == 1


def test_processes_of_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert refusal().startswith("a diagnosis measures one process: run it without torchrun")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert setting().device == torch.device("cpu")


@pytest.mark.parametrize(("raised", "code"), [(ConfigError("x"), 2), (SystemExit(0), 0), (KeyboardInterrupt(), 130)])
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int) -> None:
    def fail(_words: object) -> None:
        raise raised

    monkeypatch.setattr(command_module, "command", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code


@pytest.fixture
def long_verdict() -> Iterator[Diagnosis]:
    command_line = "nsys profile " + " ".join(f"--option-{number} value" for number in range(12))
    yield Diagnosis(
        "loader", 1234.5, 617.25, 50.0, "because " * 30, Remedy("--workers 4", "why " * 40),
        ("note " * 30,), (command_line, "traceview analyze 'a b.sqlite'"),
    )  # fmt: skip


def test_table_fits_a_terminal(long_verdict: Diagnosis) -> None:
    title = "a title that is much longer than any"
    text = diagnosis_table(
        [StageResult(name, title, 1234567.8, (), 123456.789, 1234.5) for name in NAMES], long_verdict
    )
    assert text.endswith("\n")
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "617.25 of 1234.50 ms per iteration (50%)" in text


def test_command_can_be_copied(long_verdict: Diagnosis) -> None:
    text = diagnosis_table([], long_verdict)
    copied = text[text.index("nsys profile") : text.index("  next     traceview")].replace("\\\n", " ")
    assert copied.split() == long_verdict.capture[0].split()
    assert "traceview analyze 'a b.sqlite'" in text


@pytest.mark.gpu
def test_real_gpu_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--device", "cuda", "--precision", "bf16", "--json", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    compute, pipeline = found["stages"]
    assert compute["gpu_ms"] > 0
    assert pipeline["copy_ms"] > 0
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
