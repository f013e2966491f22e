"""The verdict on hand-made rows: what an engineer would say who looks at them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrument.config.flags import ConfigParser
from instrument.config.schema import Capture, Config, Data, Model, Training
from instrument.diagnosis.costs import Diagnosis, StageResult, StageTimes, compute_costs
from instrument.diagnosis.verdict import REMEDIES, build_diagnosis, capture_commands


def config(*, device: str = "cuda:0", model: Model | None = None, data: Data | None = None, **training: Any) -> Config:
    return Config(
        Training(**{"device": device, "precision": "bf16"} | training), model or Model(), data or Data(workers=0)
    )


def row(stage: str, ms: float, apart: float = 0.0, **figures: Any) -> StageResult:
    return StageResult(stage, rounds_ms=(ms - apart / 2, ms, ms + apart / 2), ms=ms, **figures)


def measured(
    pipeline: float, of: Config, *, compute: float = 10.0, gpu: float | None = 10.0, loader: float | None = 0.1,
    waited: float = 0.05, copy: float = 0.1,
) -> StageTimes:  # fmt: skip
    """Return the times of a run on a GPU that computes for 10 ms in bf16, and is fed well unless said otherwise."""
    fed = {"loader_ms": loader, "data_load_ms": waited, "copy_ms": copy}
    return StageTimes(of, row("compute", compute, gpu_ms=gpu), row("pipeline", pipeline, **fed))


ANEW, SLOW = Data(workers=4, distinct_batches=0), Data(workers=0, distinct_batches=0)
KEPT, COMPILED = Data(preload=True), Model(compile=True)
SERIAL, STAGED = config(strategy="serial"), config(strategy="staged", accumulation=2)
GRAPH, PREFETCH = "--strategy graph", "--strategy prefetch"


PROGRAM = ["python", "-m", "instrument.train", "--strategy", "pinned", "--batch", "8"]


def diagnosed(times: StageTimes) -> Diagnosis:
    return build_diagnosis(times, PROGRAM)


def is_whole(found: Diagnosis) -> bool:
    """Whether a verdict says all that it has to, and no more was lost than there is."""
    assert found.total_ms is not None
    assert found.lost_ms is not None
    assert found.lost_percent is not None
    assert 0 <= found.lost_ms <= found.total_ms
    assert found.lost_percent == pytest.approx(100 * found.lost_ms / found.total_ms)
    return bool(found.because and found.remedy.why and len(found.capture) == 3)


@pytest.mark.parametrize(
    ("times", "bound", "lost_ms", "flags", "said"),
    [
        (measured(50.0, config(data=replace(ANEW, workers=32)), loader=49.0), "loader", 39.0, "", "49.00"),
        (measured(50.0, config(data=ANEW), loader=49.0), "loader", 39.0, "--workers 20", "49.00"),
        (measured(30.0, config(data=SLOW), loader=29.0), "loader", 20.0, "--workers 3", "--distinct-batches"),
        # A loading thread slows the thread that launches.
        (measured(14.0, config(data=SLOW), loader=6.0), "loader", 4.0, "--workers 2", ""),
        (measured(17.0, config(strategy="serial", data=SLOW), loader=4.0, copy=3.0), "loader", 4.0, "--workers 2", ""),
        # A loader that is no DataLoader shows what the host waits for it; batches in memory take nothing.
        (measured(50.0, config(data=SLOW), loader=None, waited=40.0), "loader", 40.0, "--workers 4", "40.00"),
        (measured(26.0, config(data=KEPT), loader=None, waited=16.0, copy=25.0), "copy", 15.0, "", "fewer bytes"),
        (measured(19.0, config(strategy="pinned", data=KEPT), loader=None, copy=9.0), "copy", 9.0, PREFETCH, ""),
        (measured(26.0, config(data=Data(workers=2)), copy=25.0), "copy", 15.0, "", "fewer bytes"),
        # As on an H200: 24 ms a step from pageable memory, 10 from pinned.
        (measured(24.0, SERIAL, compute=9.0, gpu=9.0, copy=14.0), "copy", 14.0, PREFETCH, ""),
        (measured(13.0, config(sync="every", data=Data(workers=2))), "synchronisation", 3.0, "--sync 10", ""),
        (measured(13.0, config(sync="1"), loader=5.0), "synchronisation", 3.0, "--sync 10", ""),
        (measured(14.0, STAGED), "synchronisation", 3.9, PREFETCH, ""),
        (measured(10.2, config(), gpu=4.0), "launch", 6.0, GRAPH, "--annotate-modules 2"),
        (measured(10.2, config(precision="fp16"), gpu=4.0), "launch", 6.0, "--compile", ""),
        (measured(10.2, config(accumulation=2), gpu=4.0), "launch", 6.0, "--compile", ""),
        (measured(10.2, config(model=COMPILED, data=Data(batch=32)), gpu=4.0), "launch", 6.0, "--batch 64", ""),
        # As on an H200, with 12 narrow layers: the pipeline is a little faster than its compute.
        (measured(22.9, config(), compute=26.2, gpu=2.8), "launch", 20.1, GRAPH, ""),
        (measured(4.1, config(strategy="graph"), gpu=4.0), "compute", 0.0, "", ""),
        (measured(8.0, config(strategy="graph", data=KEPT), gpu=4.0, copy=7.5), "copy", 3.5, "", ""),
        (measured(10.3, config()), "compute", 0.0, "--compile", ""),
        (measured(10.0, config(precision="fp32")), "compute", 0.0, "--precision bf16", ""),
        (measured(10.0, config(model=Model(checkpointing=True))), "compute", 0.0, "--checkpointing none", ""),
        (measured(10.0, config(model=COMPILED)), "compute", 0.0, "", ""),
        # What a pinned copy takes while the launches wait is free.
        (measured(14.0, config(strategy="pinned"), gpu=5.0, loader=4.0, copy=2.0), "launch", 5.0, GRAPH, ""),
    ],
)  # fmt: skip
def test_verdict(times: StageTimes, bound: str, lost_ms: float, flags: str, said: str) -> None:
    found = diagnosed(times)
    assert (found.bound, found.remedy.flags) == (bound, flags)
    assert found.lost_ms == pytest.approx(lost_ms)
    assert said in " ".join([found.because, found.remedy.why, *found.notes, *found.capture])
    assert is_whole(found)


def test_pinned_copy_during_launch_wait_is_free() -> None:
    times = measured(14.0, config(strategy="pinned"), gpu=5.0, loader=4.0, copy=2.0)
    named = {cost.bound: cost.ms for cost in compute_costs(times)}
    assert (named["loader"], named["copy"]) == (pytest.approx(4.0), 0.0)


def test_overlap_states_what_it_hides() -> None:
    workers = config(data=Data(workers=4))
    found = diagnosed(measured(10.2, workers, loader=7.0, copy=6.0))
    assert found.bound == "compute"
    assert found.notes == ("The pipeline hides 12.80 of 13.00 ms of loading and copying behind the compute.",)
    found = diagnosed(measured(15.0, workers, loader=14.0, copy=6.0))
    assert "The pipeline hides 15.00 of 20.00 ms of loading and copying behind the compute." in found.notes


def with_rounds(times: StageTimes, **rounds: tuple[float, ...]) -> StageTimes:
    """Return the times with these rounds, and their medians."""
    made = {name: replace(getattr(times, name), ms=median(each), rounds_ms=each) for name, each in rounds.items()}
    return replace(times, **made)


STEADY = (10.0, 10.0, 10.0)


@pytest.mark.parametrize(
    ("times", "because"),
    [
        (
            with_rounds(measured(11.5, config()), compute=STEADY, pipeline=(9.5, 11.5, 13.5)),
            "the rounds differ by 4.00 ms and the cost is 1.40 ms (",
        ),
        (
            with_rounds(measured(10.0, config()), compute=STEADY, pipeline=(9.0, 10.0, 12.0)),
            "the rounds differ by 3.00 ms and an iteration takes 10.00 ms",
        ),
        # Once a verdict that lost 205% of an iteration.
        (
            measured(46.0, config(device="cpu"), compute=154.0, gpu=None),
            "the pipeline takes 46.00 ms, less than its compute alone (154.00 ms)",
        ),
    ],
)  # fmt: skip
def test_noise_decides_nothing(times: StageTimes, because: str) -> None:
    found = diagnosed(times)
    assert (found.bound, found.lost_ms, found.lost_percent, found.total_ms) == ("unknown", None, None, None)
    assert found.because.startswith(f"too noisy: {because}")
    assert "--iterations" in found.remedy.why


@pytest.mark.parametrize(("slow", "bound"), [((13.0, 30.0), "synchronisation"), ((25.0, 30.0), "unknown")])
def test_one_disturbed_round_is_not_noise(slow: tuple[float, float], bound: str) -> None:
    times = measured(13.0, config(sync="every", data=Data(workers=2)))
    pipeline = (13.0, 13.0, 13.0, *slow)
    assert diagnosed(with_rounds(times, compute=5 * (10.0,), pipeline=pipeline)).bound == bound


def test_common_drift_is_not_noise() -> None:
    drifting = measured(13.0, config(sync="every", data=Data(workers=2)), gpu=None)
    found = diagnosed(with_rounds(drifting, compute=(10.0, 15.0, 20.0), pipeline=(13.0, 18.0, 23.0)))
    assert (found.bound, found.lost_ms) == ("synchronisation", pytest.approx(3.0))


def test_no_copies_or_launches_without_a_gpu() -> None:
    found = diagnosed(measured(18.0, config(device="cpu", data=SLOW), gpu=None, copy=3.0, loader=6.0))
    assert (found.bound, found.lost_ms) == ("loader", pytest.approx(6.0))
    assert not any("hides" in note for note in found.notes)
    assert "cudaProfilerApi" not in found.capture[0]


TIME = st.floats(0.01, 1000)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("pipeline", "compute", "waited", "copy"), TIME)
        | dict.fromkeys(("gpu", "loader"), TIME | st.none())
    ),
    st.sampled_from(["serial", "pinned", "prefetch", "staged", "graph"]),
    st.sampled_from(["auto", "every", "10", "event"]),
    st.integers(0, 3),
    st.sampled_from(["cpu", "cuda:0"]),
)
def test_every_measurement_has_a_verdict(given_ms: Any, strategy: Any, sync: str, workers: int, device: str) -> None:
    made_config = config(device=device, strategy=strategy, sync=sync, data=Data(workers=workers, distinct_batches=0))
    times = measured(given_ms.pop("pipeline"), made_config, **given_ms)
    found = diagnosed(times)
    named = {cost.bound: cost.ms for cost in compute_costs(times)}
    assert all(0 <= cost <= times.pipeline.ms for cost in named.values())
    assert found.lost_ms is None or 0 <= found.lost_ms <= times.pipeline.ms
    assert max(named["loader"], named["copy"], named["synchronisation"]) <= times.feeding_ms
    assert found.bound in (*REMEDIES, "unknown")
    assert found.capture


def parse(*arguments: str) -> Config:
    return ConfigParser("train", "Train.").parsed(arguments)[0]


@pytest.mark.parametrize("bound", REMEDIES)
def test_suggested_commands_are_valid(bound: Any) -> None:
    of = config(strategy="pinned", warmup=50, epochs=9, data=Data(batch=8))
    commands = capture_commands(bound, of, [*PROGRAM, "--warmup", "50", "--epochs", "9"])
    profile, export, analyze = (shlex.split(command) for command in commands)
    at = profile.index("python")
    assert profile[:2] == ["nsys", "profile"]
    assert profile[2 : at - 2] == [
        "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "-c", "cudaProfilerApi", "--capture-range-end=stop",
    ]  # fmt: skip
    assert profile[at - 2 : at + 3] == ["-o", f"next-{bound}", "python", "-m", "instrument.train"]
    made = parse(*profile[at + 3 :])
    assert made.capture == Capture(20, 30)
    assert (made.training.steps, made.training.epochs) == (30, None)
    assert (made.training.strategy, made.data.batch) == ("pinned", 8)
    assert export[-1] == f"next-{bound}.nsys-rep"
    assert analyze == ["traceview", "analyze", f"next-{bound}.sqlite"]
    assert export[export.index("-o") + 1] == analyze[-1]


@pytest.mark.parametrize("strategy", ["serial", "pinned", "prefetch", "staged", "graph"])
@pytest.mark.parametrize("sync", ["every", "event"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_suggested_flags_are_valid(strategy: Any, sync: str, device: str) -> None:
    made_config = config(strategy=strategy, sync=sync, device=device)
    made = measured(20.0, made_config)
    for remedy in REMEDIES.values():
        parse(*shlex.split(remedy(made).flags))
        assert remedy(made).why
